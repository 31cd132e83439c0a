"""What stands for private records, or is used beside them, because nobody needs to protect it."""

from dpfc_cli.errors import conflict, parameter, quoted
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import check_public


def check_other(private: FeatureSet, public: FeatureSet, option: str) -> None:
    """UserError unless the set can be public (`check_public`) and has the same features. option: its parameter."""
    check_public(public, option, private=private)
    mine, other = recipe(private.manifest), recipe(public.manifest)
    names = differing(private, public)
    differ = [f"{name} ({other.get(name)}, not {mine.get(name)})" for name in names]
    if differ:
        raise conflict(
            f"{quoted(public.folder)} has features of another backbone than '{private.folder}'. They differ in "
            f"{', '.join(differ)}.",
            f"Extract the public pictures with the same {parameter('model')} and options as the private ones.",
        )


def warnings_of(public: FeatureSet) -> list[str]:
    """What cannot be refused, because only the operator can know it."""
    if public.manifest.backbone.get("name") != "imported":
        return []
    return [
        f"'{public.folder}' was imported. dpfc cannot know that its features come from the private ones' backbone, nor "
        "that none of its records is a private one: you assert both."
    ]


def differing(one: FeatureSet, other: FeatureSet) -> list[str]:
    mine, theirs = recipe(one.manifest), recipe(other.manifest)
    return [name for name in mine | theirs if mine.get(name) != theirs.get(name)]


def recipe(manifest: Manifest) -> dict[str, object]:
    return {**manifest.backbone, "dimensions": manifest.dim}
