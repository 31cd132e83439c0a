"""Prediction: a head and a source in, a row for each record out."""

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from dpfc_cli.errors import conflict, counted, parameter
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.backbone import recipe_of
from dpfc_cli.heads.head import Head, as_probabilities
from dpfc_cli.options import takes
from dpfc_cli.prediction import calibration, output, sources
from dpfc_cli.prediction.calibration import Temperature
from dpfc_cli.prediction.output import Row, Saved
from dpfc_cli.prediction.request import Predicting, added_hooks
from dpfc_cli.progress import Progress

LOADING, PREDICTING = "Loading the model", "Predicting"
"""The stages that progress is told. More words may follow after a colon."""


class Predictions:
    """The predictions for a source. They are computed while you go through them, each time anew.

        for row in predict("heads/first.safetensors", "photos"):
            print(row.name, row.best, row.error)

    Attributes:
        head: the head.
        n: how many records there are.
        noun: what one of them is called, "picture" or "record".
        top: how many classes a row has.
        calibration: the temperature and what it was fitted on; None: the probabilities are not calibrated.
        warnings: sentences for whoever reads the predictions.
        remarks: how the source was read, in sentences.

    """

    def __init__(
        self,
        head: Head,
        source: sources.Source,
        top: int,
        calibrated: Temperature | None,
        progress: Progress | None,
    ) -> None:
        self.head, self.top, self.calibration = head, top, calibrated
        self.n, self.noun = source.n, source.noun
        self.warnings = (*source.warnings, *(calibrated.warnings if calibrated else ()))
        self.remarks = source.remarks
        self._source, self._progress = source, progress

    def __repr__(self) -> str:
        return f"<predictions for {counted(self.n, self.noun)}: go through them, or save(path)>"

    def __iter__(self) -> Iterator[Row]:
        for rows in self.blocks():
            yield from rows

    def __len__(self) -> int:
        return self.n

    def blocks(self) -> Generator[list[Row], None, None]:
        """The rows, some at a time. If you do not read it to its end, close it."""
        temperature = 1.0 if self.calibration is None else self.calibration.temperature
        tell = self._progress or (lambda stage, done, total: None)
        tell(PREDICTING, 0, self.n)
        with closing(self._source.blocks()) as blocks:
            for block in blocks:
                rows = self._rows(block, temperature)
                tell(PREDICTING, block.start + len(rows), self.n)
                yield rows

    def save(self, path: str | Path, form: str | None = None) -> Saved:
        """Write all rows to a file. The file gets its name when it is whole.

        Args:
            path: the file. It must not exist.
            form: one of `output.FORMATS`. Default: by the name's end.

        Returns:
            What was written.

        Raises:
            UserError: the file exists or cannot be written, or the source cannot be read.

        """
        return output.save(self.blocks(), self.top, Path(path), form)

    def _rows(self, block: sources.Block, temperature: float) -> list[Row]:
        broken = dict(block.broken)
        with np.errstate(over="ignore"):
            x = block.features.astype(np.float32)
        for row in np.flatnonzero(~np.isfinite(x).all(axis=1)).tolist():
            broken.setdefault(row, "it has features that are NaN, infinite, or too large for the precision of the set")
        x[list(broken)] = 0
        scores = self.head.scores(x)
        found = as_probabilities(scores / temperature, several=self.head.several_labels)
        # The order is that of the scores: probabilities near 1 may be equal.
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.top]
        classes = self.head.classes
        rows = []
        for i, best in enumerate(order.tolist()):
            name = self._source.name(block.start + i)
            if i in broken:
                rows.append(Row(name=name, classes=(), probabilities=(), error=broken[i]))
            else:
                probabilities = tuple(float(found[i, j]) for j in best)
                rows.append(Row(name=name, classes=tuple(classes[j] for j in best), probabilities=probabilities))
        return rows


@takes(Predicting, *added_hooks())
def predict(wanted: Predicting) -> Predictions:
    """Apply a head to pictures, or to features.

    For pictures, the backbone is made again from the head's card: model, weights, pooling, and how pictures are
    prepared. A picture that cannot be read has a row with its error, and does not stop the others.

    Returns:
        The rows, in the order of the source.

    Raises:
        UserError: the head is damaged, or contradicts itself; the source cannot be read or does not fit; or the
            backbone cannot be made again.

    Examples:
        >>> predict("heads/first.safetensors", "photos").save("photos.csv")

    """
    loaded = wanted.head if isinstance(wanted.head, Head) else Head.load(wanted.head)
    found = _source(loaded, wanted)
    for hook in wanted.hooks:
        loaded, found = hook.chosen(loaded, found, wanted.progress)
    calibrated = None if wanted.calibrate_on is None else calibration.fit(loaded, wanted.calibrate_on)
    top = min(wanted.top, len(loaded.classes))
    return Predictions(loaded, found, top, calibrated, wanted.progress)


def _source(head: Head, wanted: Predicting) -> sources.Source:
    source, weights, batch, progress = wanted.source, wanted.weights, wanted.batch, wanted.progress
    features: sources.Source | None
    if isinstance(source, FeatureSet):
        features = sources.of_set(source, head)
    elif isinstance(source, np.ndarray):
        features = sources.of_array(source, head)
    else:
        features = sources.features_at(str(source), head)
    if features is not None:
        if weights is not None or batch is not None:
            name = "batch" if weights is None else "weights"
            raise conflict(f"{parameter(name)} is for pictures, and these are features already.", "Leave it out.")
        return features
    recipe = recipe_of(head)
    pictures = sources.pictures_at(str(source))
    tell = progress or (lambda stage, done, total: None)
    tell(LOADING, 0, None)
    backbone = recipe.load(weights, batch, lambda what, done, total: tell(f"{LOADING}: {what}", done, total))
    return sources.Pictures(pictures, recipe, backbone)
