"""Other processes and machines do the work, as a cluster of Ray: `--on ray`.

`engine`: what the driver, the process with the command, asks of them. `cluster`: how they meet, and who does which
task. `work`: what they do.
"""
