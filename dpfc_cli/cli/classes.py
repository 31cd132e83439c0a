"""`--classes`: how many there are, or what they are called."""

from pathlib import Path

from dpfc_cli.errors import UserError


def class_names(given: str | None) -> tuple[str, ...] | None:
    """The names that '10', 'cat,dog' or a file with a name a line give. UserError for fewer than two different ones."""
    if given is None:
        return None
    if given.isdecimal():
        if len(given) > 7:
            raise UserError(f"--classes {given} is more than a label can count.", "Give the number of classes.")
        names = tuple(str(j) for j in range(int(given)))
    elif Path(given).is_file():
        try:
            lines = Path(given).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"'{given}' cannot be read as a list of names.", "Give UTF-8 text, a name a line."
            ) from error
        names = tuple(line.strip() for line in lines if line.strip())
    elif "," not in given and given.strip():
        raise UserError(
            f"There is no file '{given}', and one name is no list of classes.",
            "Give a number, names separated by commas, or a file of names.",
        )
    else:
        names = tuple(name.strip() for name in given.split(","))
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"--classes '{given}' does not give two or more different names.",
            "Give a number, names, or a file of names.",
        )
    return names
