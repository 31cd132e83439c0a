"""The nouns of WordNet, from the files of its database (the manual page wndb(5WN) describes them).

A *synset* is a set of words with one meaning. Its number is the place of its line in `data.noun`, in bytes. So a number
belongs to one version of WordNet only: the ids of ImageNet (`n02084071`) are those of version 3.0.
"""

from pathlib import Path

from dpfc_cli.errors import UserError, damaged, parameter, quoted
from dpfc_cli.files import bytes_in
from dpfc_cli.sources.classes import plain

INDEX, DATA = "index.noun", "data.noun"
_BELOW = (b"~", b"~i")
"""The pointers to a synset's kinds and to its instances."""
_BROKEN = (ValueError, IndexError)


class WordNet:
    """The nouns of one version of WordNet.

    Args:
        folder: a folder with `index.noun` and `data.noun`.

    Raises:
        UserError: a file is missing or damaged.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = _bytes_of(folder, DATA)
        self._senses: dict[str, tuple[int, ...]] = {}
        index = _bytes_of(folder, INDEX).decode("latin-1").split("\n")
        try:
            for line in index:
                # The licence is indented.
                if line.strip() and not line.startswith(" "):
                    fields = line.split()
                    count = int(fields[2])
                    senses = tuple(map(int, fields[-count:]))
                    if not 0 < count <= len(fields) - 6 or min(senses) < 0:
                        raise ValueError("the synsets of a word are not counted")
                    name = plain(fields[0])
                    self._senses[name] = (*self._senses.get(name, ()), *senses)
        except _BROKEN as error:
            raise _damaged(folder / INDEX) from error

    def senses(self, name: str) -> tuple[int, ...]:
        """The synsets of a noun, the usual meaning first. Empty: it is no noun of WordNet."""
        return self._senses.get(plain(name), ())

    def has(self, synset: int) -> bool:
        """Whether there is a synset of this number."""
        return self._line(synset) is not None

    def words(self, synset: int) -> tuple[str, ...]:
        return self._parsed(synset)[0]

    def below(self, synset: int) -> set[int]:
        """A synset with all its kinds, their kinds and so on, and their instances."""
        found, waiting = {synset}, [synset]
        while waiting:
            new = self._parsed(waiting.pop())[1] - found
            found |= new
            waiting += new
        return found

    def _line(self, synset: int) -> list[bytes] | None:
        line = self._data[synset : self._data.find(b"\n", synset)] if synset < len(self._data) else b""
        return line.split() if line.startswith(b"%08d " % synset) else None

    def _parsed(self, synset: int) -> tuple[tuple[str, ...], set[int]]:
        """The words of a synset, and the synsets right below it."""
        fields = self._line(synset)
        try:
            if fields is None:
                raise ValueError("a pointer leads nowhere")
            words = int(fields[3], 16)
            pointers = 4 + 2 * words
            count = int(fields[pointers])
            if pointers + 4 * count >= len(fields) or count < 0:
                raise ValueError("it has fewer pointers than it says")
            parts = [fields[pointers + 1 + 4 * i : pointers + 5 + 4 * i] for i in range(count)]
            said = tuple(fields[4 + 2 * i].decode("latin-1").replace("_", " ") for i in range(words))
            return said, {int(at) for symbol, at, kind, _ in parts if symbol in _BELOW and kind == b"n"}
        except _BROKEN as error:
            raise _damaged(self.folder / DATA) from error


def _bytes_of(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        return bytes_in(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{quoted(path)} cannot be read: {getattr(error, 'strerror', None) or error}.",
            f"Name a folder with {INDEX} and {DATA}. On Debian and Ubuntu it is /usr/share/wordnet, of the package "
            "wordnet-base.",
            code="missing" if isinstance(error, FileNotFoundError) else "unreadable",
            parameter="wordnet",
        ) from error


def _damaged(path: Path) -> UserError:
    return damaged(
        f"{quoted(path)} is not a file of WordNet's database, or it is damaged.",
        f"Name another folder: {parameter('wordnet')}.",
    )
