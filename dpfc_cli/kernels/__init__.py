"""Fast exact sums over blocks of records. Tests establish that each sum equals the sum of its query's `contribution`.

`rows` runs the per-record map of a query as one jit-compiled function over a block, spread over all devices. `products`
multiplies the integer factors that it returns. Importing this package loads JAX and switches it to 64 bits. Without
that, JAX would silently turn float64 into float32.
"""

import jax

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
