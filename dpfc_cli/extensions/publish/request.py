"""What is wanted of a report, and of sending a head."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dpfc_cli.heads.signature import LEDGER, NOT_BEFORE
from dpfc_cli.options import HEAD, Options, option, progress_option, said
from dpfc_cli.progress import Progress

SIGNER = "Whose signature HEAD.sig is. It is checked."
Kind = Literal["shared", "auditor", "internal"]
RELEASED = "What 'dpfc evaluate HEAD --epsilon E --json' wrote: noisy figures, which may be shown to anyone."


@dataclass(frozen=True, kw_only=True)
class Reporting(Options):
    """A report as it is asked for."""

    head: Path | str = field(kw_only=False, metadata=said(HEAD, argument=True))
    out: Path | str | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "The file to write: .html, .md (a model card), .pdf, or .yaml (a draft for the registry of deployments). "
            "Default: HEAD-KIND.html here.",
            metavar="FILE",
        ),
    )
    kind: Kind = option(
        "Who may read it. shared: whoever gets the head. auditor: also has the ledger: all trainings, who did them and "
        "why, and the cap. internal: for the holder of the records alone, with exact figures on the test split, too.",
        default="shared",
    )
    features: Path | str | None = option(
        "Not for shared: the feature set, by path or name. Default: that of the training.",
        metavar="SET",
        urls=True,
    )
    ledger: Path | str | None = option(f"Not for shared: {LEDGER[0].lower()}{LEDGER[1:]}", metavar="FILE")
    not_before: str | None = option(f"Not for shared: {NOT_BEFORE[0].lower()}{NOT_BEFORE[1:]}", metavar="DATE")
    audit: Path | str | None = option("What 'dpfc audit --json' printed of this method.", metavar="FILE")
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
