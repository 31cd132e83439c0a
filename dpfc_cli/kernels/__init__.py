"""Fast exact block sums. Trusted by test only: each equals its query's `contribution` summed.

`rows` runs a query's per-record map as one jit-compiled function over a block, spread over all devices; `products`
multiplies the integer factors it returns. Importing this room loads JAX and switches it to 64 bits, without which it
would make float32 of float64 silently.
"""

from typing import Any

import jax

_config: Any = jax.config
_config.update("jax_enable_x64", True)
