"""`dpfc push`: a head on the Hugging Face hub."""

from typing import Annotated, Any

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import JSON
from dpfc_cli.extensions.publish.request import Pushing


@command(
    "push",
    Pushing,
    panel="For others",
    when_stopped="The page of the repository shows whether the head was sent: all files or none.",
)
def push(as_json: Annotated[bool, JSON] = False, **asked: Any) -> None:
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
    if as_json:
        display.as_json(
            {
                **{"repository": found.repository, "head": found.name, "commit": found.commit},
                **{"files": sizes, "removed": found.replaced, "sent": found.commit is not None},
            }
        )
        return
    rows = [(name, f"{size:,} bytes") for name, size in sizes.items()]
    rows += [(name, "removed: it belonged to an earlier head") for name in found.replaced]
    sent = "nothing was sent (--dry-run)" if found.commit is None else f"sent as commit {found.commit}"
    display.facts(f"Repository {found.repository}", [*rows, ("in all", sent), ("the head is", found.name)])
