"""`dpfc report`: one file on a head that can be read, printed and filed. `dpfc push`: a head on the hub."""

from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import NEWEST, head_or_newest
from dpfc_cli.extensions.publish.request import Pushing, Reporting
from dpfc_cli.options import Value


@command("report", Reporting, panel="For others", when_stopped="No report was written.")
def report(head: Annotated[Path | None, NEWEST] = None, **asked: Value) -> None:
    """Write a report on a head: a verdict, what is not covered and who must act, the guarantee as a curve, evidence.

    To read it takes no network and no script. It prints on A4. The same files give the same report, to the last byte.
    What only auditors, or the holder of the records, may read is in other kinds of it (--kind), which say so.
    """
    from dpfc_cli.extensions.publish.contents import WHOM
    from dpfc_cli.extensions.publish.write import write_report
    from dpfc_cli.files import sha256_of

    path = write_report(head_or_newest(head), **asked)
    digest = sha256_of(path)
    values = {"report": str(path), "kind": asked["kind"], "sha256": digest}
    rows = [("kind", WHOM[asked["kind"]]), ("SHA-256 of this report", digest)]
    display.facts(f"Report {path}", rows, values)


@command(
    "push",
    Pushing,
    panel="For others",
    when_stopped="The page of the repository shows whether the head was sent: all files or none.",
)
def push(**asked: Value) -> None:
    """Send a head to the Hugging Face hub, with a model card.

    It sends the head, its signature HEAD.sig if there is one, and README.md: the report for whoever gets the head
    ('dpfc report --out FILE.md'), as a model card. Nothing else leaves this machine. Log in before: hf auth login.
    A signature is checked before anything is sent: a head that is signed needs --public-key.

    The head can then be named hf:OWNER/NAME wherever a head is named, or hf:OWNER/NAME@REVISION.
    """
    from dpfc_cli.extensions.publish.push import push as send
    from dpfc_cli.heads.head import Head

    if Head.load(asked["head"]).card.claim != "private":
        display.warn("this head has no guarantee: it may tell about the records that it was trained on.")
    found = send(**asked)
    sizes = {name: len(data) for name, data in found.files.items()}
    values = {
        **{"repository": found.repository, "head": found.name, "commit": found.commit},
        **{"files": sizes, "removed": found.replaced, "sent": found.commit is not None},
    }
    rows = [(name, f"{size:,} bytes") for name, size in sizes.items()]
    rows += [(name, "removed: it belonged to an earlier head") for name in found.replaced]
    sent = "nothing was sent (--dry-run)" if found.commit is None else f"sent as commit {found.commit}"
    display.facts(f"Repository {found.repository}", [*rows, ("in all", sent), ("the head is", found.name)], values)
