"""A `Picture` as SVG, PNG or PDF."""

from collections.abc import Callable

from matplotlib.figure import Figure

from dpfc_cli.extensions.plots import accuracy, canvas, confusion, reliability
from dpfc_cli.report.picture import Curves, Picture


def drawn(picture: Picture) -> Figure:
    """An evaluation must have confusions and a calibration."""
    of = picture.of
    if isinstance(of, Curves):
        return canvas.draw(accuracy.panel(of), title=picture.title)
    assert of.calibration is not None
    names = [each.name for each in of.per_class]
    numbers = {name: i for i, name in enumerate(names)}
    cells = [(numbers[each.label], numbers[each.predicted], each.n) for each in of.confusions or ()]
    return canvas.draw(confusion.panel(names, cells), reliability.panel(of.calibration), title=picture.title)


def _as(kind: str) -> Callable[[Picture], bytes]:
    return lambda picture: canvas.bytes_of(drawn(picture), kind)


svg, png, pdf = map(_as, ("svg", "png", "pdf"))
