"""The declared points at which packages add to dpfc: entry points of Python packages, by group.

| group | name | value |
| --- | --- | --- |
| `dpfc.backbones` | a family; its models are NAME:MODEL | a `backbones.Family` |
| `dpfc.cards` | the key in the card of a head | a `records.card.Part`: what the extension writes there |
| `dpfc.commands` | the command | a function that `cli.app.command` registers |
| `dpfc.decoders` | any | an `images.kinds.Kind` of picture files |
| `dpfc.documents` | `document.ENDING` or `picture.ENDING` | what makes the contents of such a file, see below |
| `dpfc.methods` | the method | a `methods.method.Method` |
| `dpfc.engines` | a value of `--on` | a `training.summing.Engine` that is an `extraction.making.Engine`, too |
| `dpfc.hooks` | an option of trainings | a `training.request.Hook` with it; they act in the order of these names |
| `dpfc.predictions` | an option of predictions | a `prediction.request.Hook` with it |
| `dpfc.names` | a name of `import dpfc_cli` | what it stands for |
| `dpfc.places` | the scheme of a URL | a function of the URL: the place there, see `places` |
| `dpfc.sources` | a data set, or with a colon a format before a path | an `images.sets.DataSet` |

What writes a document is a function of a `show.document.Document`; what draws a picture, of a `report.picture.Picture`.
Both return bytes or text. A module that lacks something says so with a `UserError` while it is imported.

The extensions of dpfc (`dpfc_cli.extensions`) are added in the same way as the packages of others. They may have
groups of their own, which their pages describe.
"""

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dpfc_cli.errors import UserError, unsupported


@functools.cache
def installed() -> Any:
    """The entry points of all packages. To look through hundreds of them takes long, so it is done once."""
    return entry_points()


@functools.cache
def added(group: str) -> dict[str, EntryPoint]:
    """What was added to a group, by name. Nothing is imported."""
    return {each.name: each for each in installed().select(group=group)}


def package_of(entry: EntryPoint) -> str:
    """The package that has an entry point, with its version."""
    return "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def load(group: str, name: str, kind: type | tuple[type, ...] = object) -> Any:
    """What was added under a name.

    kind: what it must be. UserError: its package cannot be used. KeyError: nothing was added under that name.
    """
    entry = added(group)[name]
    try:
        found = entry.load()
        if not isinstance(found, kind):
            raise TypeError(f"{entry.value} is a {type(found).__name__}")
    except UserError:
        # It says what it lacks.
        raise
    except Exception as error:
        raise unsupported(
            f"'{name}' of {package_of(entry)} cannot be used: {type(error).__name__}: {error}.",
            "Mend the package, or remove it.",
            name=name,
        ) from error
    return found
