"""Public records without labels beside private ones: `train --unlabelled`."""

from dataclasses import replace

import numpy as np

from dpfc_cli.errors import damaged, quoted
from dpfc_cli.extensions.unlabelled.predictions import check_memory, usable
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.methods.unlabelled import Unlabelled
from dpfc_cli.records.card import Card, Said
from dpfc_cli.training import public
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request

ROWS = 8192


class UnlabelledRecords(public.PublicSet):
    """Public records without labels that a head was adapted to."""

    def trained(self, card: Card) -> Said:
        said = f"{self.name}: {self.rows:,} records; the head may have means of them in it"
        return [("records without labels", f"{said}, and the operator asserts that they are public")]


def informed(request: Request, calibrated: Calibrated, known: FeatureSet, observer: Observer) -> Calibrated:
    """The same training with public records without labels. UserError: they cannot be public, or have other features,
    or the method has no use for them.
    """
    why = "Only dp-whitened leaves what tells whether they help."
    public.check_used(calibrated, "unlabelled", "unlabelled", why)
    public.check_other(request.features, known, "unlabelled")
    known.verify(SPLIT)
    n = known.split(SPLIT).n
    check_memory(n, known.dim, len(request.features.classes), "record", "unlabelled")
    for text in public.warnings_of(known):
        observer.warn(text)
    blocks = [np.empty((0, known.dim), np.float32)]
    for start, x, _ in known.stream(SPLIT)(ROWS):
        blocks.append(usable(x))
        observer.progress("Reading the records without labels", start + len(x), n)
    records = np.concatenate(blocks)
    if not len(records):
        raise damaged(f"{quoted(known.folder)} holds no finite features.", "Name another set.")
    manifest = known.manifest
    said = UnlabelledRecords(
        name=known.name, rows=len(records), fingerprint=manifest.fingerprint, backbone=manifest.backbone
    )
    options = replace(calibrated.options, unlabelled=Unlabelled(records=records))
    return replace(calibrated, options=options, parts={**calibrated.parts, "unlabelled": said})
