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
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Gram, Mean

CHAIN = (Clip(0.5),)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0, radius=2.0)


def test_a_form_has_a_place_for_each_value_that_answers_may_decide_and_nothing_else_is_open() -> None:
    made, clipped = form(GRADIENT), opened(GRADIENT, "clip")
    assert isinstance(made, Gradient)
    assert isinstance(clipped, Gradient)
    assert {field.name for field in fields(made) if getattr(made, field.name) == OPEN} == {
        *("theta", "clip", "radius", "constant"),
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


def outcomes(m: int, by_class: object, best: object) -> Outcomes:
    return Outcomes((), np.zeros((1, m)), np.zeros(m), best=best, by_class=by_class)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("m", "by_class", "best"),
    [(4, False, 1), (4, False, 2), (4, False, 3), (4, True, 1), (2, False, 1), (LONGEST // 2, True, 1)],
)
def test_outcomes_that_can_be_counted(m: int, by_class: bool, best: int) -> None:
    check(outcomes(m, by_class, best), Facts(n=9, m=m, d=1))


@pytest.mark.parametrize(
    ("m", "by_class", "best"),
    [
        *((4, False, 0), (4, False, 4), (4, True, 2), (2, False, 2), (LONGEST // 2 + 1, True, 1)),
        *((4, 1, 1), (4, 0, 1), (4, False, True), (4, False, 1.0), (4, None, 1)),
    ],
)
def test_outcomes_that_cannot_be_counted_are_refused(m: int, by_class: object, best: object) -> None:
    with pytest.raises(ValueError, match="cannot be counted so"):
        check(outcomes(m, by_class, best), Facts(n=9, m=m, d=1))


def test_a_piece_that_does_not_begin_at_the_first_class_must_have_an_end() -> None:
    facts, whole = Facts(n=9, m=6, d=3), ClassGrams(CHAIN)
    for piece in (whole, replace(whole, stop=6), replace(whole, start=2, stop=5), replace(whole, start=5, stop=6)):
        check(piece, facts)
    wrong: list[tuple[Any, Any]] = [(2, None), (2, 2), (-1, 3), (2, 7), (True, 5), (2, 5.0)]
    for start, stop in wrong:
        with pytest.raises(ValueError, match="there is no piece"):
            check(replace(whole, start=start, stop=stop), facts)


def test_a_query_of_a_class_of_ones_own_is_none() -> None:
    class Mine(Mean):
        pass

    with pytest.raises(ValueError, match="not a query of the core"):
        check(Mine(CHAIN), Facts(n=9, m=2, d=3))
