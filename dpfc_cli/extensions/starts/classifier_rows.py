"""Which rows of a classifier belong to which class. A class without a row is left without one: nothing is guessed.

There are three ways: a file says it; the class has the name of a row; or WordNet has the row's meaning below a meaning
of the class's name.

A name may have several meanings with rows, and WordNet does not say which one is meant. The rows of all of them are
taken, and those who use them are told (`Chosen.several`). The other choice is the most usual of these meanings. With
the 1,000 rows of ImageNet it is as good (CIFAR-10: 75.6 % against 75.1 %, CIFAR-100: 43.6 % against 43.4 %). With
21,843 rows it takes the turtle for a turtleneck, the seal for sealing wax and the shrew for a person.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from dpfc_cli.annotations.classes import by_name
from dpfc_cli.errors import conflict, parameter, quoted
from dpfc_cli.extensions.starts.wordnet import WordNet
from dpfc_cli.files import json_in
from dpfc_cli.reading import lines_in, readable

_LABEL = re.compile(r"n(?P<synset>\d{8})(?:\s+(?P<names>.*))?")


@dataclass(frozen=True, kw_only=True)
class Label:
    """What a row of a classifier stands for. synset: its number in WordNet, if the label says it."""

    names: tuple[str, ...]
    synset: int | None

    @property
    def called(self) -> tuple[str, ...]:
        """What a class may be called that has this row: one of the names, all of them, or the id."""
        id = () if self.synset is None else (f"n{self.synset:08d}",)
        return (*filter(None, (*self.names, ", ".join(self.names))), *id)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The rows of each class; none for a class that has none. several: for each class with rows of several meanings:
    these meanings. unplaced: how many rows WordNet has no place for, or several.
    """

    rows: dict[str, list[int]]
    several: dict[str, list[str]] = field(default_factory=dict)
    unplaced: int = 0


def labels_in(path: Path) -> tuple[Label, ...]:
    """What the rows of a classifier stand for, from a file with a line for each row: a name, or several between commas.
    A WordNet id (`n02084071`) may stand before them, or alone. Raises UserError if the file cannot be read.
    """
    return tuple(map(label_of, lines_in(path, "labels")))


def label_of(text: str) -> Label:
    """The label that a line states."""
    found = _LABEL.fullmatch(text.strip())
    names = text if found is None else found["names"] or ""
    synset = None if found is None else int(found["synset"])
    return Label(names=tuple(filter(None, (name.strip() for name in names.split(",")))), synset=synset)


def stated(path: Path, names: Sequence[str]) -> Chosen:
    """The rows that a JSON file states for each class, as {class: [row, …]}. Rows are counted from 0. Classes that are
    not asked for are passed over. Raises UserError if the file cannot be read, or states something else.
    """
    with _stating(path):
        found = json_in(path)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        for name, rows in found.items():
            if not isinstance(rows, list) or not all(type(row) is int and row >= 0 for row in rows):
                raise ValueError(f"what '{name}' has is no list of rows")
        listed = list(found)
        chosen = by_name(names, ((name, number) for number, name in enumerate(listed)))
        for name, numbers in chosen.items():
            if len(numbers) > 1:
                raise ValueError(f"{' and '.join(repr(listed[number]) for number in numbers)} could both be {name!r}")
    rows = {name: sorted(set(found[listed[number]])) for name, numbers in chosen.items() for number in numbers}
    return Chosen(rows={name: rows.get(name, []) for name in names})


def check_count(path: Path, chosen: Chosen, count: int) -> None:
    """UserError where a file states a row that a classifier of `count` rows does not have."""
    with _stating(path):
        for name, rows in chosen.rows.items():
            if rows and rows[-1] >= count:
                raise ValueError(f"'{name}' has the row {rows[-1]}, and the classifier has those from 0 to {count - 1}")


def _stating(path: Path) -> AbstractContextManager[None]:
    remedy = f'Give {parameter("rows")} JSON such as {{"cat": [281, 282], "dog": [151]}}, with rows counted from 0.'
    return readable(path, "the rows of the classes", remedy, wrong="bad-value")


def labelled(names: Sequence[str], labels: Sequence[Label]) -> Chosen:
    """The rows that are called as the class. If there are several, each is a meaning of its own."""
    rows = by_name(names, ((name, row) for row, label in enumerate(labels) for name in label.called))
    several = {name: [", ".join(labels[row].names) for row in found] for name, found in rows.items() if len(found) > 1}
    return Chosen(rows=rows, several=several)


def below(names: Sequence[str], labels: Sequence[Label], wordnet: WordNet) -> Chosen:
    """The rows whose meaning lies below a meaning of the class's name. names: of the classes, or ids. labels: of the
    rows. A row without an id has the meaning that has all its names, if there is one such meaning. Otherwise it belongs
    to the classes of its names alone. UserError: the ids of the labels are those of another version of WordNet.
    """
    foreign = next((each.synset for each in labels if each.synset is not None and not wordnet.has(each.synset)), None)
    if foreign is not None:
        raise conflict(
            f"The labels have the id n{foreign:08d}, which the WordNet in {quoted(wordnet.folder)} does not have: it "
            "is another version.",
            f"Name the version that the ids come from: {parameter('wordnet')}. Those of ImageNet are of version 3.0.",
        )
    placed: dict[int, list[int]] = {}
    lost = []
    for row, label in enumerate(labels):
        synset = label.synset if label.synset is not None else _meant(label, wordnet)
        if synset is None:
            lost.append(row)
        else:
            placed.setdefault(synset, []).append(row)
    by_label = by_name(names, ((name, row) for row in lost for name in labels[row].names))
    rows, several = {}, {}
    for name in names:
        id = label_of(name).synset
        senses = wordnet.senses(name) if id is None else filter(wordnet.has, (id,))
        by_sense = {
            sense: sorted(row for synset in wordnet.below(sense) & placed.keys() for row in placed[synset])
            for sense in senses
        }
        hit = {sense: found for sense, found in by_sense.items() if found}
        rows[name] = sorted({row for found in (*hit.values(), by_label[name]) for row in found})
        if len(hit) > 1:
            several[name] = [f"{', '.join(wordnet.words(sense))} ({len(found)})" for sense, found in hit.items()]
    return Chosen(rows=rows, several=several, unplaced=len(lost))


def _meant(label: Label, wordnet: WordNet) -> int | None:
    """The one meaning that all names of a label have; None if there is none, or several."""
    senses = [set(wordnet.senses(name)) for name in label.names]
    common = set.intersection(*senses) if senses else set()
    return common.pop() if len(common) == 1 else None
