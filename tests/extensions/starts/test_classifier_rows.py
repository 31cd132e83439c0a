"""Which rows of a classifier a class gets: as a file says, by its name, or by WordNet; and nothing that is guessed."""

import json
import os
from pathlib import Path

import pytest

from dpfc_cli.extensions.starts.classifier_rows import (
    Chosen,
    Label,
    below,
    check_count,
    label_of,
    labelled,
    labels_in,
    stated,
)
from dpfc_cli.extensions.starts.wordnet import DATA, INDEX, WordNet
from tests.extensions.starts import nouns
from tests.support import refuses


@pytest.fixture
def at(tmp_path: Path) -> dict[str, int]:
    """The numbers of the synsets of a small WordNet in the folder `nouns`."""
    return nouns.write(tmp_path / "nouns")


def labels(*lines: str) -> tuple[Label, ...]:
    return tuple(map(label_of, lines))


# WordNet itself


def test_a_noun_has_its_meanings_in_the_order_of_the_index(tmp_path: Path, at: dict[str, int]) -> None:
    known = WordNet(tmp_path / "nouns")
    assert known.senses("Cat") == (at["cat"], at["guy"])
    assert known.senses("sweet pepper") == known.senses("SWEET_PEPPER") == (at["bell_pepper"],)
    assert known.senses("table") == ()
    assert known.words(at["dog"]) == ("dog", "Canis familiaris")


def test_below_a_meaning_are_its_kinds_at_all_depths_and_its_instances(tmp_path: Path, at: dict[str, int]) -> None:
    known = WordNet(tmp_path / "nouns")
    found = {name for name, number in at.items() if number in known.below(at["animal"])}
    assert found == {"animal", "feline", "cat", "tabby", "siamese", "lynx", "dog", "laika", "seal", "fur_seal"}
    assert known.below(at["wax"]) == {at["wax"]}
    # Words are counted in hexadecimal digits.
    assert known.below(at["car"]) == {at["car"], at["taxi"]}
    assert len(known.words(at["car"])) == 12


def test_kinds_that_go_in_a_circle_end(tmp_path: Path) -> None:
    at = nouns.write(tmp_path, {"a": ("a", ("b",), "~"), "b": ("b", ("a",), "~")})
    assert WordNet(tmp_path).below(at["a"]) == set(at.values())


def test_a_number_that_is_no_synsets_is_none(tmp_path: Path, at: dict[str, int]) -> None:
    known = WordNet(tmp_path / "nouns")
    assert all(known.has(number) for number in at.values())
    size = (tmp_path / "nouns" / DATA).stat().st_size
    assert [number for number in range(size + 50) if known.has(number)] == sorted(at.values())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (INDEX, "cat n x 1 ~ 1 1 00000001"),
        (INDEX, "cat n"),
        (INDEX, "cat n 9 1 ~ 1 1 00000001"),
        (INDEX, "cat n 0 1 ~ 1 1 00000001"),
        (INDEX, "cat n 1 1 ~ 1 1 -0000001"),
        (INDEX, "cat n 1 1 ~ 1 1 \xff"),
        (INDEX, "bad n 1 1 ~ 1 1 99999999"),
        (DATA, "{:08d} 05 n zz bad 0 000 | none"),
        (DATA, "{:08d} 05 n 01 bad 0"),
        (DATA, "{:08d} 05 n 01 bad 0 009 ~ 00000001 n 0000 | none"),
        (DATA, "{:08d} 05 n 01 bad 0 999999999999 | none"),
        (DATA, "{:08d} 05 n 01 bad 0 -01 | none"),
        (DATA, "{:08d} 05 n 01 bad 0 001 ~ 00000001 n 0000 | leads nowhere"),
    ],
)
def test_damaged_files_of_wordnet_are_refused(tmp_path: Path, at: dict[str, int], name: str, line: str) -> None:
    folder = tmp_path / "nouns"
    number = (folder / DATA).stat().st_size
    with (folder / name).open("ab") as file:
        file.write(line.format(number).encode("latin-1") + b"\n")
    if name == DATA:
        with (folder / INDEX).open("a") as file:
            file.write(f"bad n 1 1 ~ 1 1 {number:08d}  \n")
    with refuses("damaged", parameter="wordnet"):
        below(["bad"], labels("cat"), WordNet(folder))


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_a_folder_without_a_file_of_wordnet_is_named_and_a_pipe_is_not_opened(tmp_path: Path, name: str) -> None:
    nouns.write(tmp_path)
    (tmp_path / name).unlink()
    with refuses("missing", parameter="wordnet"):
        WordNet(tmp_path)
    os.mkfifo(tmp_path / name)
    with refuses("damaged", parameter="wordnet"):
        WordNet(tmp_path)


# From names to rows


def test_a_label_is_names_between_commas_after_an_id_or_alone() -> None:
    assert label_of("tench, Tinca tinca ") == Label(names=("tench", "Tinca tinca"), synset=None)
    assert label_of("n01440764") == Label(names=(), synset=1440764)
    assert label_of("n01440764 tench, Tinca tinca") == Label(names=("tench", "Tinca tinca"), synset=1440764)
    assert label_of("n0144076 x").synset is None


def test_each_line_is_a_row_also_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\r\n\nfire\u2028truck\n", "utf-8")
    found = labels_in(tmp_path / "labels.txt")
    assert [each.names for each in found] == [("cat",), (), ("fire\u2028truck",)]


def test_rows_with_the_name_of_a_class_are_its_rows_and_several_meanings_are_told() -> None:
    found = labelled(
        ["Fire Truck", "crane", "deer", "cat"], labels("fire-truck", "crane, bird", "crane, machine", "cat, Cat")
    )
    assert found.rows == {"Fire Truck": [0], "crane": [1, 2], "deer": [], "cat": [3]}
    assert found.several == {"crane": ["crane, bird", "crane, machine"]}


def test_a_class_may_be_called_as_the_whole_line_or_by_its_id(tmp_path: Path, at: dict[str, int]) -> None:
    """Sets with the pictures of ImageNet call their classes so."""
    lines = labels("tench, Tinca tinca", "n01443537 goldfish, Carassius auratus", "n01484850", "")
    names = ["tench, Tinca tinca", "n01443537", "Goldfish, carassius_auratus", "n01484850", "n01494475", "_"]
    assert list(labelled(names, lines).rows.values()) == [[0], [1], [1], [2], [], []]
    rows = labels(*(f"n{at[name]:08d}" for name in ("tabby", "lynx", "laika")))
    feline, animal, none = f"n{at['feline']:08d}", f"n{at['animal']:08d}", "n99999999"
    found = below([feline, animal, none], rows, WordNet(tmp_path / "nouns"))
    assert found.rows == {feline: [0, 1], animal: [0, 1, 2], none: []}


def test_a_class_has_the_rows_below_every_meaning_of_its_name(tmp_path: Path, at: dict[str, int]) -> None:
    rows = [f"n{at[name]:08d}" for name in ("tabby", "lynx", "laika", "fur_seal", "wax", "siamese")]
    found = below(["cat", "dog", "seal", "animal", "deer", "guy"], labels(*rows), WordNet(tmp_path / "nouns"))
    assert found.rows == {"cat": [0, 5], "dog": [2], "seal": [3, 4], "animal": [0, 1, 2, 3, 5], "deer": [], "guy": []}
    # The guy has no row, so the cat is no matter of doubt.
    assert found.several == {"seal": ["seal (1)", "stamp, seal (1)"]}
    assert found.unplaced == 0


def test_a_row_without_an_id_has_the_one_meaning_of_all_its_names(tmp_path: Path, at: dict[str, int]) -> None:
    """'seal' alone has two meanings, 'seal, stamp' has one, and nobody knows a gizmo."""
    found = below(
        ["animal", "stamp", "seal", "gizmo"],
        labels("tabby", "seal, stamp", "seal", "gizmo", ""),
        WordNet(tmp_path / "nouns"),
    )
    assert found.rows == {"animal": [0], "stamp": [1], "seal": [1, 2], "gizmo": [3]}
    assert found.unplaced == 3


def test_ids_of_another_version_of_wordnet_are_refused(tmp_path: Path, at: dict[str, int]) -> None:
    rows = labels(*(f"n{number:08d}" for number in at.values()))
    nouns.write(tmp_path / "other", ahead="  3 Later.  \n")
    with refuses("conflict", parameter="wordnet"):
        below(["cat"], rows, WordNet(tmp_path / "other"))


# Files that say it


def said(tmp_path: Path, content: object, names: list[str]) -> Chosen:
    path = tmp_path / "rows.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found = stated(path, names)
    check_count(path, found, 10)
    return found


def test_a_file_says_which_rows_a_class_has(tmp_path: Path) -> None:
    found = said(tmp_path, {"CAT": [9, 0, 9], "deer": [], "other": [1]}, ["cat", "deer", "dog"])
    assert found.rows == {"cat": [0, 9], "deer": [], "dog": []}


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        "{",
        {"cat": 1},
        {"cat": [10]},
        {"cat": [-1]},
        {"cat": [True]},
        {"cat": [1.0]},
        {"other": ["1"]},
        {"Cat": [1], "CAT": [2]},
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, content: object) -> None:
    with refuses("bad-value", parameter="rows"):
        said(tmp_path, content, ["cat"])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refuses("missing", parameter="rows"):
        stated(tmp_path / "rows.json", ["cat"])
    with refuses("missing", parameter="labels"):
        labels_in(tmp_path / "labels.txt")
    (tmp_path / "labels.txt").write_bytes(b"\xff")
    with refuses("damaged", parameter="labels"):
        labels_in(tmp_path / "labels.txt")
