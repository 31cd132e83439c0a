"""Several processes or machines train one head: `dpfc train --distributed`.

`command`: the option. `processes`: how they meet, and notice that one is gone. `leader`: what process 0 asks of the
others. `adding`: the devices add arrays.
"""
