"""What is wanted of a report, and of sending a head."""

from dataclasses import dataclass, field
from pathlib import Path

from dpfc_cli.heads.signature import LEDGER
from dpfc_cli.options import HEAD, Options, option, progress_option, said
from dpfc_cli.progress import Progress

SIGNER = "Whose signature HEAD.sig is. It is checked."
RELEASED = "What 'dpfc evaluate HEAD --epsilon E --json' wrote: noisy figures, which may be shown to anyone."


@dataclass(frozen=True, kw_only=True)
class Reporting(Options):
    """A report as it is asked for."""

    head: Path | str = field(kw_only=False, metadata=said(HEAD, argument=True))
    out: Path | str | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "The file to write: .html, .md (a model card) or .pdf. Default: HEAD-report.html here, or "
            "HEAD-internal.html.",
            metavar="FILE",
        ),
    )
    internal: bool = option(
        "Add what is for the holder of the records only: the ledger with all trainings, who did them and why, the cap, "
        "and exact figures on the test split. Default: what may be shown to whoever gets the head.",
        default=False,
    )
    features: Path | str | None = option(
        "With ‹internal›: the feature set, by path or name. Default: the one that the head was trained on.",
        metavar="SET",
    )
    ledger: Path | str | None = option(f"With ‹internal›: {LEDGER[0].lower()}{LEDGER[1:]}", metavar="FILE")
    evaluation: Path | str | None = option(RELEASED, metavar="FILE")
    public_key: Path | str | None = option(SIGNER, metavar="FILE")
    progress: Progress | None = progress_option("records")


@dataclass(frozen=True, kw_only=True)
class Pushing(Options):
    """A head that is to be sent."""

    head: Path | str = field(kw_only=False, metadata=said("The head's file.", argument=True))
    repository: str = field(
        kw_only=False, metadata=said("The repository: hf:OWNER/NAME. A new one is made private.", argument=True)
    )
    license: str | None = option("The licence for the model card, as the hub calls it: apache-2.0.", metavar="NAME")
    evaluation: Path | str | None = option(RELEASED, metavar="FILE")
    public_key: Path | str | None = option(SIGNER, metavar="FILE")
    dry_run: bool = option("Show what would be sent, and send nothing.", default=False)
