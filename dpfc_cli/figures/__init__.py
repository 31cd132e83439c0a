"""Figures: numbers in, a picture out. Nothing here knows of heads, records or privacy.

A *panel* is one plot with its axes. A module of this room has a function `panel` that takes numbers and names and
returns a `Panel`. `canvas.draw` puts panels side by side into a `Drawing`, which becomes a file:

    from dpfc_cli.figures import accuracy, canvas

    canvas.check(path)  # before any work: is matplotlib there, and can the file be of that kind?
    series = accuracy.Series("dp-whitened", (0.5, 1, 2), (0.81, 0.86, 0.88), (0.79, 0.84, 0.86), (0.83, 0.88, 0.90))
    canvas.draw(accuracy.panel([series]), title="Accuracy against ε").save(path)

To add a figure, add a module with a function `panel(…) -> Panel`. It gets a matplotlib `Axes` and draws on it through
its methods, with the colours of `canvas`. It sets no font, size or background: these are in `canvas.STYLE`. It never
uses pyplot, whose state is of the whole program. matplotlib is imported inside functions, because it may be missing.
Names may have any characters. Look at the result as a picture: SVG in a browser, and PNG.
"""
