"""Saying that sets share records: a row of the ledger, for what digests cannot tell (`sharing`)."""

from collections.abc import Sequence
from datetime import UTC, datetime

from dpfc_cli.errors import UserError, parameter, printable
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.training.account import account_of
from dpfc_cli.training.ledger import Overlap, keep_overlap, ledger_path, real, records_of
from dpfc_cli.training.signing import account_name, noted


def share_records(features: FeatureSet, others: Sequence[FeatureSet], *, by: str | None = None) -> None:
    """Say that other sets share records with a set. From then on their trainings and caps count for one another.

    It is kept in the ledger of the set and cannot be taken back: whoever leaves it out later must not pass a cap. dpfc
    sees by itself where files of pictures are the same. Say it for sets of earlier versions, for pictures that were
    encoded anew, and for features that come from elsewhere.

    Args:
        features: a set; see `dpfc_cli.open_features`.
        others: sets that have some of the same records, or of the same persons. They must lie in the same folder, or be
            links in it, so that their ledgers are found.
        by: who says so. Default: the name of the account that runs the program.

    Raises:
        UserError: it is the set itself, or its ledger would not be found; or the ledger cannot be written.

    Examples:
        dpfc.share_records(dpfc.open_features("digits-scattering"), [dpfc.open_features("digits-of-last-year")])

    """
    for other in others:
        _tell(features, other, noted("by", by) or account_name())


def _tell(features: FeatureSet, other: FeatureSet, who: str) -> None:
    path, theirs = ledger_path(features.folder), real(ledger_path(other.folder))
    if theirs == real(path):
        raise UserError(
            f"{parameter('also')} names {features.name} itself.",
            "Name another set that shares records with it.",
            code="conflict",
            parameter="also",
        )
    account = account_of(path, features.folder)
    if theirs.parent not in account.folders:
        raise UserError(
            f"The ledger of {other.name} lies in '{theirs.parent}', where it is not looked for.",
            f"Make a link to the set beside {features.name}, so that it is found from there each time.",
            code="missing",
            parameter="also",
            path=str(theirs.parent),
        )
    records = records_of(features.manifest), records_of(other.manifest)
    # Sets of one source are linked in any case.
    if len({*records}) == 1 or any({each.records, each.other} == {*records} for each in account.overlaps):
        return
    at = datetime.now(UTC).isoformat(timespec="seconds")
    keep_overlap(path, Overlap(at=at, records=records[0], other=records[1], name=printable(other.name), who=who))
