"""What stands for private records, or is used beside them, because nobody needs to protect it."""

from dpfc_cli.errors import conflict, parameter, quoted
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import check_public
from dpfc_cli.records.card import Part
from dpfc_cli.structs import Count, Values
from dpfc_cli.training.calibrate import Calibrated


class PublicSet(Part):
    """What a card says of a set of public records. rows: how many there are."""

    name: str
    rows: Count
    fingerprint: str
    backbone: Values


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


def check_used(calibrated: Calibrated, name: str, option: str, why: str) -> None:
    """UserError where the method has no use for something public, or has no noise. name: the parameter that names it.
    option: its name among the method's public options. why: why other methods have no use for it.
    """
    if option not in calibrated.method.public:
        one = "Leave it out, or use dp-whitened."
        many = "Leave it out: dp-whitened is for records with one label."
        raise conflict(
            f"{parameter(name)} is no option of {calibrated.method.name}. {why}",
            one if calibrated.facts.k == 1 else many,
        )
    if calibrated.mechanism is None:
        raise conflict(f"{parameter(name)} has no effect with {parameter('non_private')}.", "Leave it out.")


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
