"""The nouns of WordNet, from the files of its database (the manual page wndb(5WN) describes them).

A *synset* is a set of words with one meaning. Its number is the place of its line in `data.noun`, in bytes. So a number
belongs to one version of WordNet only: the ids of ImageNet (`n02084071`) are those of version 3.0.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from dpfc_cli.annotations.classes import plain
from dpfc_cli.errors import parameter
from dpfc_cli.files import bytes_in
from dpfc_cli.reading import readable

INDEX, DATA = "index.noun", "data.noun"
_BELOW = (b"~", b"~i")
"""The pointers to a synset's kinds and to its instances."""


class WordNet:
    """The nouns of one version of WordNet, from a folder with `index.noun` and `data.noun`. UserError: a file is
    missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._senses: dict[str, tuple[int, ...]] = {}
        with _reading(folder / DATA):
            self._data = bytes_in(folder / DATA)
        with _reading(folder / INDEX):
            for line in bytes_in(folder / INDEX).decode("latin-1").split("\n"):
                # The licence is indented.
                if line.strip() and not line.startswith(" "):
                    fields = line.split()
                    count = int(fields[2])
                    senses = tuple(map(int, fields[-count:]))
                    if not 0 < count <= len(fields) - 6 or min(senses) < 0:
                        raise ValueError("the synsets of a word are not counted")
                    name = plain(fields[0])
                    self._senses[name] = (*self._senses.get(name, ()), *senses)

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
        with _reading(self.folder / DATA):
            fields = self._line(synset)
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


def _reading(path: Path) -> AbstractContextManager[None]:
    """UserError where a file is missing or damaged."""
    remedy = (
        f"Name a folder with {INDEX} and {DATA}: {parameter('wordnet')}. On Debian and Ubuntu it is "
        "/usr/share/wordnet, of the package wordnet-base."
    )
    return readable(path, "the nouns of WordNet", remedy)
