"""What `verify` says of the rows of a ledger, where one value of them or of the card is another one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dpfc_cli.training import ledger
from dpfc_cli.training import verify as checks
from tests.training.handed import Made, handed_over, of_ledger, with_row


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return handed_over(tmp_path_factory.mktemp("shelf"))


# The row


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("at", "2020-01-02T03:04:05+00:00"), ("n", 121), ("split", "test"), ("method", "dp-fc")),
        *(("claim", "research"), ("epsilon", 1.1), ("delta", 1e-6), ("mu", 0.3), ("eta", 0.5)),
        *(("adjacency", "replace-one"), ("unit", "person"), ("records", "others"), ("persons", "0" * 64)),
    ],
)
def test_each_value_of_the_row_is_that_of_the_card(shelf: Made, name: str, other: Any) -> None:
    found = of_ledger(shelf.card(), shelf, with_row(shelf.rows, 1, **{name: other}))
    assert found["ledger"] == (
        f"contradicts: row 1 is of another training, or of another card: they differ in {name}"
    )  # fmt: skip


@pytest.mark.parametrize("name", ["kind", "shape", "sigma", "rate", "times"])
def test_the_releases_of_the_row_are_those_of_the_card(shelf: Made, name: str) -> None:
    plan = shelf.rows[0].plan
    plan[1][name] = 2
    for others in (plan, shelf.rows[0].plan[:-1], [*shelf.rows[0].plan, plan[0]]):
        found = of_ledger(shelf.card(), shelf, with_row(shelf.rows, 1, releases=json.dumps(others)))
        assert found["ledger"].endswith("they differ in releases")


def test_a_card_without_a_date_has_that_of_its_row(shelf: Made) -> None:
    card = shelf.card()
    del card["date"]
    assert of_ledger(card, shelf)["ledger"].startswith("ok")


def test_records_and_persons_are_compared_where_the_set_is_at_hand(shelf: Made) -> None:
    rows = with_row(shelf.rows, 1, records="others", persons="0" * 64)
    digest = shelf.rows[0].sha256
    assert digest is not None
    found = checks._of_ledger(shelf.card(), digest, rows, None)
    assert found[0].result == "ok"


def test_a_row_that_the_ledger_does_not_have_contradicts(shelf: Made) -> None:
    last = len(shelf.rows)
    assert of_ledger(shelf.card(last), shelf, number=last)["ledger"].startswith("ok")
    found = of_ledger(shelf.card(last), shelf, shelf.rows[:-1], number=last)
    assert found == {"ledger": f"contradicts: the card names row {last}, and the ledger has {last - 1}"}


def test_the_row_of_a_card_that_names_none_is_found_by_the_digest(shelf: Made) -> None:
    card = shelf.card(2)
    del card["ledger"]
    found = of_ledger(card, shelf, number=2)
    assert found["ledger"] == "ok: row 2 has the releases and the claim of the card"
    assert "other trainings in the ledger" not in found
    assert of_ledger(card, shelf, shelf.rows[:1], number=2) == {
        "ledger": "unknown: the card names no row, and no row has the digest of this file",
    }  # fmt: skip


def test_the_digest_of_the_row_is_that_of_the_file(shelf: Made) -> None:
    said = {
        "ok: row 1 names the digest of this file, written": shelf.rows,
        "contradicts: row 1 names another file (000000000000…), and this is": with_row(shelf.rows, 1, sha256="0" * 64),
        "unknown: row 1 names no file (state 'charged')": with_row(shelf.rows, 1, sha256=None, state="charged"),
        "contradicts: no head was written of this row": with_row(shelf.rows, 1, sha256=None, state="stopped"),
    }
    for expected, rows in said.items():
        assert of_ledger(shelf.card(), shelf, rows)["SHA-256"].startswith(expected)
    # The second row has the digest, and the first one another one or none.
    for sha256, state in (("0" * 64, "written"), (None, "charged")):
        rows = with_row(shelf.rows, 1, sha256=sha256, state=state)
        rows = with_row(rows, 2, sha256=shelf.rows[0].sha256)
        found = of_ledger(shelf.card(), shelf, rows)["SHA-256"]
        assert found.startswith("contradicts")
        assert "row 2 names it" in found


# A head that continues another one


def test_a_continued_head_has_the_releases_of_the_heads_that_it_started_from(shelf: Made) -> None:
    """Its row has its own releases alone. What the others cost stands in their rows. The card names one of them."""
    what, missing = "start in the ledger", "and the releases before its own are not in the ledger"
    assert what not in of_ledger(shelf.card(), shelf)
    for number in (2, 3):
        found = of_ledger(shelf.card(number), shelf, number=number)
        assert found[what] == f"ok: the releases before its own are in the ledger, up to row {number - 1}"
        for release in range(3 * (number - 1)):
            forged = shelf.card(number)
            forged["plan"][release]["sigma"] *= 2
            found = of_ledger(forged, shelf, number=number)
            assert found["ledger"].startswith("ok")
            assert found[what] == f"contradicts: row {number - 1} has the head that it started from, {missing}"


def test_each_row_counts_once_as_a_whole_and_others_may_lie_between(shelf: Made) -> None:
    a, b, c = shelf.rows[0].plan
    plans = [[a], [c], [a, b], [b, b], [c]]
    digests = [f"{number}" * 64 for number in range(1, 6)]
    rows = [
        replace(shelf.rows[0], releases=json.dumps(plan), sha256=digest)
        for plan, digest in zip(plans, digests, strict=True)
    ]

    def found(*releases: list[dict[str, Any]], last: int) -> str:
        said = [release for part in releases for release in part]
        card = {"plan": [*said, a], "public_head": {"releases": len(said), "sha256": digests[last - 1]}}
        return checks._of_start(card, rows).result

    assert found([a], last=1) == found([c], [b, b], last=4) == found([a], [a, b], [c], last=5) == "ok"
    for releases, last in (
        (([a], [a]), 1), (([a, b], [a, b]), 3), (([b], [b, b]), 4), (([b], [c]), 5), (([c], [a]), 1), (([b, a, b],), 3),
    ):  # fmt: skip
        assert found(*releases, last=last) == "contradicts"


def test_the_head_that_a_training_started_from_is_in_a_row_before(shelf: Made) -> None:
    for rows in (with_row(shelf.rows, 1, sha256="0" * 64), [shelf.rows[1], shelf.rows[1], shelf.rows[0]]):
        found = of_ledger(shelf.card(2), shelf, rows, number=2)
        assert found["start in the ledger"] == "contradicts: no row before has the head that it started from"


def test_the_claim_of_a_continued_head_is_not_that_of_its_row(shelf: Made) -> None:
    """Its row has what its own releases cost. Claim and δ are the same."""
    assert shelf.card(2)["epsilon"] > 2.1 > 2.0 == shelf.rows[1].epsilon
    for name, other in {"claim": "research", "delta": 1e-6}.items():
        found = of_ledger(shelf.card(2), shelf, with_row(shelf.rows, 2, **{name: other}), number=2)
        assert found["ledger"].endswith(f"differ in {name}")


# What the card says of other trainings


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("epsilon", 9.0), ("epsilon", None), ("private", 1), ("unprotected", 1), ("exact", False)),
        *(("unit", "person"), ("other_splits", 1)),
    ],
)
def test_what_a_card_says_of_other_trainings_is_what_the_ledger_had(shelf: Made, name: str, other: Any) -> None:
    card = shelf.card(3)
    card["ledger"][name] = other
    assert of_ledger(card, shelf, number=3)["other trainings in the ledger"] == (
        f"contradicts: the card says something else of rows 1 to 3: {name}"
    )


def test_totals_agree_within_the_precision_of_what_sampled_releases_cost(shelf: Made) -> None:
    for beyond, result in ((0.9e-5, "ok"), (1.2e-5, "contradicts"), (-1.2e-5, "contradicts")):
        card = shelf.card(3)
        card["ledger"]["epsilon"] *= 1 + beyond
        assert of_ledger(card, shelf, number=3)["other trainings in the ledger"].startswith(result)


def test_trainings_on_other_splits_are_counted_as_such(shelf: Made) -> None:
    rows = with_row(shelf.rows, 1, records="others", split="test")
    card = shelf.card(2)
    card["ledger"] |= {"epsilon": 2.0, "other_splits": 1}
    assert of_ledger(card, shelf, rows, number=2)["other trainings in the ledger"].startswith("ok")
    card["ledger"]["other_splits"] = 2
    assert of_ledger(card, shelf, rows, number=2)["other trainings in the ledger"].endswith("other_splits")
    # Cards of earlier versions counted some of these rows, and used another word for the rest.
    del card["ledger"]["other_splits"]
    for older in ({}, {"other_records": 1}):
        card["ledger"] |= older
        assert of_ledger(card, shelf, rows, number=2)["other trainings in the ledger"].startswith("unknown")
    for name, less in (("epsilon", 0.5), ("private", 1), ("unprotected", 5)):
        forged = {**card, "ledger": {**card["ledger"], name: less}}
        assert of_ledger(forged, shelf, rows, number=2)["other trainings in the ledger"].endswith(f": {name}")


def test_a_card_of_an_earlier_version_that_counted_more_rows_says_no_less_than_its_own_split_spent(shelf: Made) -> None:
    rows = with_row(shelf.rows, 1, records="others", split="test")
    card = shelf.card(2)
    true = ledger.standing(rows[:2], 2, card["delta"])["epsilon"]

    def said(stated: float | None, **more: Any) -> str:
        older = {**card, **more, "ledger": {**card["ledger"], "exact": False, "epsilon": stated}}
        return of_ledger(older, shelf, rows, number=2)["other trainings in the ledger"].partition(":")[0]

    least = true * (1 - 1e-5)
    assert [said(each) for each in (3 * true, true, least, None)] == ["unknown"] * 4
    assert [said(each) for each in (true / 2, true * (1 - 1.005e-5))] == ["contradicts"] * 2
    assert said(true, delta=None) == "contradicts"


def test_trainings_that_came_later_and_those_that_are_gone_are_told(shelf: Made) -> None:
    what = "other trainings in the ledger"
    assert of_ledger(shelf.card(), shelf)[what] == "ok: rows 1 to 1 are those that the card counts; 2 came later"
    assert of_ledger(shelf.card(), shelf, shelf.rows[:1])[what].endswith("card counts")
    for counted, rows in ((4, shelf.rows), (3, shelf.rows[:2]), (0, shelf.rows)):
        card = shelf.card()
        card["ledger"]["trainings"] = counted
        assert of_ledger(card, shelf, rows)[what] == (
            f"contradicts: the card counts {counted}, and the ledger has {len(rows)}"
        )


def test_a_total_that_is_an_upper_bound_is_called_one(shelf: Made) -> None:
    what, said = "other trainings in the ledger", "card counts; their total is an upper bound; 1 came later"
    rows = with_row(shelf.rows, 2, adjacency="replace-one")
    assert "upper bound" not in of_ledger(shelf.card(), shelf, rows)[what]
    card = shelf.card(2)
    assert of_ledger(card, shelf, rows, number=2)[what].endswith("of rows 1 to 2: exact")
    card["ledger"]["exact"] = False
    assert of_ledger(card, shelf, rows, number=2)[what].endswith(said)
