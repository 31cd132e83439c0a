"""A small WordNet, in the files of the real one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

NOUNS: dict[str, tuple[str, Sequence[str], str]] = {
    # A synset: its words; the synsets right below it; and whether these are kinds (~) or instances (~i).
    "animal": ("animal beast", ("feline", "dog", "seal"), "~"),
    "feline": ("feline", ("cat", "lynx"), "~"),
    "cat": ("cat true_cat", ("tabby", "siamese"), "~"),
    "tabby": ("tabby", (), "~"),
    "siamese": ("Siamese_cat", (), "~"),
    "lynx": ("lynx", (), "~"),
    "dog": ("dog Canis_familiaris", ("laika",), "~i"),
    "laika": ("Laika", (), "~"),
    "seal": ("seal", ("fur_seal",), "~"),
    "fur_seal": ("fur_seal", (), "~"),
    "stamp": ("stamp seal", ("wax",), "~"),
    "wax": ("wax", (), "~"),
    "guy": ("guy cat", (), "~"),
    "car": ("car auto automobile machine motorcar ride wheels motor heap wreck coupe sedan", ("taxi",), "~"),
    "taxi": ("taxi", (), "~"),
    "bell_pepper": ("bell_pepper sweet-pepper", (), "~"),
}
LICENCE = "  1 This is a small WordNet.  \n  2 It has a licence.  \n"


def write(folder: Path, nouns: Mapping[str, tuple[str, Sequence[str], str]] = NOUNS, ahead: str = "") -> dict[str, int]:
    """Write `index.noun` and `data.noun`. ahead: more of the licence, which moves all synsets.

    Returns:
        The number of each synset.

    """

    def line(name: str, at: Mapping[str, int]) -> str:
        words, below, kind = nouns[name]
        said = " ".join(f"{word} 0" for word in words.split())
        # A pointer of another kind (a part of it) leads to no kinds.
        others = f"%p {at.get('wax', 0):08d} n 0000 "
        pointers = others + "".join(f"{kind} {at.get(each, 0):08d} n 0000 " for each in below)
        count = f"{len(words.split()):02x} {said} {1 + len(below):03d}"
        return f'{at.get(name, 0):08d} 05 n {count} {pointers}| a meaning; "an example"  \n'

    place, at = len(LICENCE + ahead), {}
    for name in nouns:
        at[name] = place
        place += len(line(name, {}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.noun").write_text(LICENCE + ahead + "".join(line(name, at) for name in nouns))
    senses: dict[str, list[int]] = {}
    for name, (words, _, _) in nouns.items():
        for word in words.lower().split():
            senses.setdefault(word, []).append(at[name])
    index = [
        f"{word} n {len(found)} 2 %p ~ {len(found)} 1 {' '.join(f'{each:08d}' for each in found)}  \n"
        for word, found in sorted(senses.items())
    ]
    (folder / "index.noun").write_text(LICENCE + "".join(index))
    return at
