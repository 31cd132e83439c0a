"""What a plan fixes of a query, and in which pieces it is made."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN, check, form, opened, packed, pieces, unpacked
from dpfc_cli.privacy.lattice import LONGEST
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Gram, Hessians, Mean, Query
from dpfc_cli.privacy.standings import Standings

CHAIN = (Clip(0.5),)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0, radius=2.0)


def test_a_form_has_a_place_for_each_value_that_answers_may_decide_and_nothing_else_is_open() -> None:
    made, clipped = form(GRADIENT), opened(GRADIENT, "clip")
    assert isinstance(made, Gradient)
    assert isinstance(clipped, Gradient)
    assert {field.name for field in fields(made) if getattr(made, field.name) == OPEN} == {
        *("theta", "clip", "radius", "constant")
    }
    assert made.chain == clipped.chain == (Clip(OPEN),)
    assert (clipped.clip, clipped.radius, made.loss) == (OPEN, 2.0, GRADIENT.loss)
    assert clipped.theta is GRADIENT.theta
    assert form(Mean(CHAIN)) == Mean((Clip(OPEN),))


@pytest.mark.parametrize(("query", "name", "none"), [(Gram(CHAIN, 0.2), "constant", 0.0), (GRADIENT, "radius", None)])
def test_that_there_is_no_such_number_is_part_of_the_form(
    query: Gram | Gradient, name: str, none: float | None
) -> None:
    """It decides the shape, or what is done to a record. No answer does."""
    assert form(replace(query, **{name: 1.0})) == form(query) == form(replace(query, **{name: 3}))  # type: ignore[arg-type]
    assert form(replace(query, **{name: none})) != form(query)  # type: ignore[arg-type]
    assert getattr(form(replace(query, **{name: none})), name) == none  # type: ignore[arg-type]


def test_a_piece_has_64_mib_at_most_or_one_matrix() -> None:
    whole = ClassGrams(CHAIN)

    def spans(count: int, side: int) -> list[tuple[int, int | None]]:
        made = pieces(whole, (count, side, side))
        assert all(isinstance(piece, ClassGrams) and piece.chain == CHAIN for piece in made)
        return [(piece.start, piece.stop) for piece in made if isinstance(piece, ClassGrams)]

    # One of 32 MiB, and one of 72 MB.
    assert spans(5, 2048) == [(0, 2), (2, 4), (4, 5)]
    assert spans(3, 3000) == [(0, 1), (1, 2), (2, 3)]
    assert spans(2, 2048) == spans(128, 256) == [(0, None)]
    assert spans(129, 256) == [(0, 128), (128, 129)]
    piece = replace(whole, start=2, stop=5)
    assert pieces(piece, (3, 9000, 9000)) == [piece]
    assert pieces(Gram(CHAIN), (9000, 9000)) == [Gram(CHAIN)]


def test_of_symmetric_matrices_the_upper_triangles_are_kept() -> None:
    stack = np.random.default_rng(0).normal(size=(3, 4, 4))
    stack = stack + stack.transpose(0, 2, 1)
    assert packed(stack).shape == (3, 10)
    assert np.array_equal(unpacked(packed(stack), 4), stack)


# Which objects are queries

FACTS = Facts(n=9, m=4, d=2)
SOUND = Gradient(CHAIN, np.zeros((3, 4)), clip=1.0, constant=1.0, radius=1.0)


def refused(query: Query, facts: Facts = FACTS) -> bool:
    try:
        check(query, facts)
    except ValueError:
        return True
    return False


class Zero:
    """It claims to equal 0."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class Smuggler(np.ndarray):
    """It looks like an array, but it has code of its own."""


def test_a_value_that_makes_no_sense_or_may_bring_code_along_is_refused() -> None:
    one_bad = np.zeros((3, 4))
    one_bad[2, 1] = np.inf
    number, text, steps = (type("Own", (kind,), {}) for kind in (float, str, tuple))
    wrong: dict[str, tuple[Any, ...]] = {
        "clip": (0.0, -1.0, np.inf, np.nan, number(1.0)),
        "radius": (0.0, -1.0, np.inf, np.nan, "1"),
        "constant": (-1.0, np.inf, np.nan, Zero(), number(1.0)),
        "offset": (1e7, -np.inf, np.nan, Zero(), number(1.0), "1"),
        "loss": ("other", None, text("sigmoid")),
        "theta": (one_bad, np.zeros((2, 4)), np.zeros((3, 4), np.float32), np.zeros((3, 4)).view(Smuggler)),
        "chain": (steps(CHAIN), (Clip(number(1.0)),), (Clip(-1.0),), (max,)),
    }
    for query in (SOUND, replace(SOUND, radius=None)):
        assert not refused(query)
    for name, values in wrong.items():
        for value in values:
            assert refused(replace(SOUND, **{name: value})), (name, value)


def test_neither_a_class_nor_an_attribute_of_ones_own_hides_what_a_class_proves() -> None:
    class Mine(Mean):
        pass

    assert refused(Mine(CHAIN))
    for name in ("replace_one", "symmetric", "kind", "scale", "shape", "factors", "numbers"):
        query = replace(SOUND)
        object.__setattr__(query, name, getattr(query, name))
        assert refused(query), name


def test_blocks_and_pieces_are_of_classes_that_there_are() -> None:
    spans: list[tuple[Any, Any]] = [(-1, 2), (1, 1), (2, 1), (0, 5), (0.0, 3), (0, 3.0), (False, 3), (True, 3)]
    spans += [(0, True), (0, "2"), (np.int64(0), np.int64(3)), (0, 0)]
    hessians, grams = Hessians(CHAIN, np.zeros((2, 4)), 0, 4), ClassGrams(CHAIN)
    for start, stop in ((0, 4), (2, 3), (3, 4)):
        for query in (hessians, grams):
            assert not refused(replace(query, start=start, stop=stop))
    for start, stop in spans:
        for query in (hessians, grams):
            assert refused(replace(query, start=start, stop=stop)), (start, stop)
    # The whole has no end. A piece that does not begin at the first class must have one.
    assert not refused(grams)
    assert refused(replace(grams, start=1))


def test_outcomes_can_be_counted_of_as_many_classes_as_there_are() -> None:
    def outcomes(m: int, by_class: object, best: object) -> bool:
        query = Outcomes((), np.zeros((1, m)), np.zeros(m), best=best, by_class=by_class)  # type: ignore[arg-type]
        return not refused(query, Facts(n=9, m=m, d=1))

    sound: list[tuple[int, object, object]] = [(4, False, 1), (4, False, 2), (4, False, 3), (4, True, 1), (2, False, 1)]
    wrong: list[tuple[int, object, object]] = [(4, False, 0), (4, False, 4), (4, True, 2), (2, False, 2), (4, 1, 1)]
    wrong += [(4, 0, 1), (4, False, True), (4, False, 1.0), (4, None, 1), (LONGEST // 2 + 1, True, 1)]
    for given in (*sound, (LONGEST // 2, True, 1)):
        assert outcomes(*given), given
    for given in wrong:
        assert not outcomes(*given), given
    for m, groups in ((6, 2), (6, 3), (6, 4), (6, 0), (6, -1), (6, 2.0), (6, True)):
        query = Outcomes((), np.zeros((1, 6 // max(int(groups), 1))), np.zeros(6 // max(int(groups), 1)), groups=groups)  # type: ignore[arg-type]
        assert refused(query, Facts(n=9, m=m, d=1)) == ((m, groups) not in {(6, 2), (6, 3)} or type(groups) is not int)
    # 2 · 16 · 2¹² numbers are as many as a factor may have.
    for m, depth in ((16, 10), (64, 10), (128, 9), (2, 1), (65, 10), (3, 11), (3, 0), (3, True), (3, 2.0)):
        standing = Standings((), np.zeros((1, m)), np.zeros(m), depth)  # type: ignore[arg-type]
        assert refused(standing, Facts(n=9, m=m, d=1)) == (
            (m, depth) not in {(16, 10), (64, 10), (128, 9), (2, 1)} or depth is True
        )
