"""What is refused before an extraction reads a byte, and what follows from its options alone."""

import re
import shlex
from pathlib import Path

from dpfc_cli import backbones, images
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import RESERVED
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import check_name


def geometry_of(source: str, model: str, preprocess: str | None, image_size: int | None) -> images.Geometry | None:
    """How pictures of many sizes are resized and cropped; None if they are not."""
    if image_size is None:
        return None if images.small(source) else backbones.geometry_of(model, preprocess)
    if images.small(source):
        raise UserError(
            f"The pictures of '{source}' all have one size already.",
            f"Leave out {parameter('image_size')}: it is for pictures of many sizes. The model resizes these itself.",
            code="conflict",
            parameter="image_size",
        )
    own = backbones.geometry_of(model, preprocess)
    if own is not None:
        raise UserError(
            f"'{model}' looks at squares of {own.crop} pixels.",
            f"Leave out {parameter('image_size')}: it is for models that take any size. Or choose another "
            f"{parameter('preprocess')}.",
            code="conflict",
            parameter="image_size",
        )
    return images.Geometry(resize=image_size, crop=image_size)


def named_after(source: str) -> str:
    """The data set's name. If the source is a format and a path, the name of the folder or file."""
    kind, colon, path = source.partition(":")
    if not colon:
        return kind
    place = Path(path).expanduser()
    # A pattern takes its name from the folder, as in an import.
    place = place if place.exists() else place.parent
    name = place.resolve().stem if place.is_file() else place.resolve().name
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or kind


def default_name(
    after: str, model: str, pool: str | None, preprocess: str | None, hold_out: float | None, limit: int | None
) -> str:
    """A set's default name: its data set, its model, and what is not the default."""
    parts = [after, model]
    parts += [pool] if pool is not None else []
    parts += [preprocess] if preprocess is not None else []
    parts += [f"holdout{hold_out:g}"] if hold_out is not None else []
    parts += [f"limit{limit}"] if limit is not None else []
    return "-".join(parts)


def population_of(given: str | None, catalogued: str | None) -> str | None:
    """The population of a set that is to be made. catalogued: the name of the public data set that it is made of.

    Raises:
        UserError: the name cannot be that of a population, or the data set has one of its own.

    """
    check_name(given)
    if given is not None and catalogued is not None:
        raise _of_another(f"{catalogued} is a public data set with a population of its own.", "Leave it out.")
    return given if catalogued is None else RESERVED + catalogued


def check_population(features: FeatureSet, population: str | None) -> None:
    """UserError where a finished set is said to be of another population than before."""
    known = read(ledger_path(features.folder))
    said = {known.named(each.population) for each in known.sets.get(features.manifest.id, [])}
    if population is not None and population not in said:
        line = shlex.join(["dpfc", "budget", "--features", str(features.folder), "--population", population])
        what = f"{features.name} is complete, and is not said to be of the population '{population}'."
        raise _of_another(what, f"To say so: {line}")


def _of_another(what: str, remedy: str) -> UserError:
    return UserError(what, remedy, code="conflict", parameter="population")
