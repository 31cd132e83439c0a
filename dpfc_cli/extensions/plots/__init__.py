"""Pictures of evaluations and forecasts: numbers in, a picture out. Nothing here knows of records or privacy.

A *panel* is one plot with its axes, and `canvas` puts panels side by side. To add one, add a module with a function
`panel(…) -> Panel`. It draws on a matplotlib `Axes` through its methods, with the colours of `canvas`. It sets no font,
size or background: these are in `canvas.STYLE`. It never uses pyplot, whose state is of the whole program. Names may
have any characters. Look at the result as a picture: SVG in a browser, and PNG.
"""

from dpfc_cli.errors import check_installed

check_installed("matplotlib", "plot", "To draw figures")
