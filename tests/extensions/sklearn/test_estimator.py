"""The scikit-learn door: what its checks say, what a fit costs, and that no private array stays anywhere."""

import itertools
import pickle
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.utils.estimator_checks import check_estimator

import dpfc_cli as dpfc
from dpfc_cli import UserError, rounding
from dpfc_cli.extensions.sklearn import estimator
from dpfc_cli.extensions.sklearn.estimator import PrivateClassifier
from dpfc_cli.options import declared
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.curator import draw_noise
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.training.calibrate import HIDES
from dpfc_cli.training.observer import TrainingWarning
from dpfc_cli.training.request import Training
from tests import instead
from tests.cli.worlds import counted_up
from tests.support import blobs, feature_set, refuses

NAMES = np.array(["cold", "flu", "zoster"])
PAGE = Path(__file__).parents[3] / "docs/extensions/sklearn.md"
QUICK: dict[str, Any] = {"method": "dp-ls", "classes": NAMES.tolist()}
X, Y = blobs(240, 5, 3)
LABELS = NAMES[Y]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder, noise that is another one for each fit and the same for each run of a test, and no
    warnings of bad heads: the sets of scikit-learn's checks have 20 records.
    """
    monkeypatch.chdir(tmp_path)
    seeds = itertools.count()
    instead.bits(monkeypatch, lambda: SeededBits(next(seeds)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        yield


def files() -> list[str]:
    """Every file below the working folder."""
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


class Checked(PrivateClassifier):
    """The classifier for scikit-learn's checks, which state no classes: it takes those of y."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> "Checked":
        try:
            found = np.unique(np.asarray(y)).tolist()
        except TypeError:
            found = []
        known = all(isinstance(each, int | float | str) and each == each and each != np.inf for each in found)
        self.classes = found if len(found) > 1 and known else [0, 1]
        try:
            return super().fit(X, y, groups)
        finally:
            self.classes = None


@pytest.mark.long
def test_scikit_learns_checks_pass_except_those_that_the_table_names() -> None:
    table = dict(re.findall(r"^\| `(check_\w+)` \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE))
    assert table
    results = check_estimator(
        Checked(epsilon=100.0, method="dp-sgd", steps=1, learning_rate=1.0),
        expected_failed_checks=table,
        on_skip=None,
        on_fail=None,
        # Each check begins a ledger. To read one of a hundred fits takes longer than a fit.
        callback=lambda **said: shutil.rmtree("private-classifier", ignore_errors=True),
    )
    of = {
        status: {each["check_name"] for each in results if each["status"] == status}
        for status in ("passed", "failed", "xfail", "skipped")
    }
    assert of["failed"] == set()
    # None is excused that would pass.
    assert of["xfail"] == set(table)
    assert of["skipped"] <= {"check_array_api_input", "check_classifier_data_not_an_array"}
    assert len(of["passed"]) > 40


def test_all_fits_with_one_ledger_are_added_up_and_another_ledger_begins_anew() -> None:
    first, again = (PrivateClassifier(epsilon=1.0, **QUICK).fit(X, LABELS) for _ in range(2))
    mu = mu_for(1.0, 1e-5)
    assert (first.privacy_["epsilon"], first.privacy_["delta"]) == (1.0, 1e-5)
    assert first.privacy_["spent"] == pytest.approx(1.0)
    assert again.privacy_["spent"] == pytest.approx(epsilon_for(mu * 2**0.5, 1e-5), rel=1e-6)
    # Scaled records, and a part of them, may be the same people.
    third = PrivateClassifier(epsilon=1.0, **QUICK).fit(X[:99] * 2, LABELS[:99])
    assert third.privacy_["spent"] == pytest.approx(epsilon_for(mu * 3**0.5, 1e-5), rel=1e-6)
    assert third.privacy_["charges"] == 3
    assert third.account.epsilon(1e-5) == third.privacy_["spent"]
    assert PrivateClassifier(ledger="others/mine").account.charges == ()
    other = PrivateClassifier(epsilon=1.0, ledger="others/mine", **QUICK).fit(X, LABELS)
    assert (other.privacy_["charges"], other.privacy_["ledger"]) == (
        1,
        str(Path("others/mine/ledger.sqlite").resolve()),
    )


def test_a_grid_search_over_options_is_warned_of_with_what_it_spends_together(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator._Observer.hidden.clear()
    model = PrivateClassifier(epsilon=0.5, classes=NAMES.tolist(), method="dp-fc", steps=2, cap=9.0)
    search = GridSearchCV(model, {"steps": [1, 2], "gradient_clip": [0.5]}, cv=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TrainingWarning)
        search.fit(X, LABELS)
    assert estimator.COPIED in str(said[0].message), "before the first fit"
    spent = search.best_estimator_.privacy_["spent"]
    # Two settings on two parts, and the best on all.
    again = [str(each.message) for each in said if "Spent by all together" in str(each.message)]
    assert len(again) == 4
    assert "charge 5 " in again[-1]
    assert f"epsilon = {rounding.epsilon(spent)} at delta = 1e-05" in again[-1]
    # A fit without a guarantee is counted, and said beside the sum.
    open_ = clone(model).set_params(ledger="open", seed=1, cap=None).fit(X, LABELS)
    assert open_.privacy_["unprotected"] == 1
    with pytest.warns(TrainingWarning, match="charge 2 "):
        private = clone(open_).set_params(seed=None).fit(X, LABELS)
    assert (private.privacy_["charges"], private.privacy_["unprotected"]) == (2, 1)
    with pytest.warns(TrainingWarning, match="charge 3 "):
        open_.fit(X, LABELS)
    capped = clone(model).set_params(cap=0.6, ledger="capped")
    with refuses("over-cap"):
        capped.fit(X, LABELS).fit(X, LABELS)


def test_the_options_of_a_training_are_parameters() -> None:
    model = clone(PrivateClassifier(classes=2, steps=20))
    assert set(declared(Training)) - set(model.get_params()) == {
        *("features", "out", "non_private", "again", "observer")
    }
    with pytest.raises(TypeError, match=r"PrivateClassifier.*stepz.*'steps'"):
        PrivateClassifier(stepz=20)
    with pytest.raises(TypeError, match="'seed'"):
        PrivateClassifier(random_state=20)
    with refuses("conflict", parameter="steps"):
        PrivateClassifier(steps=20, **QUICK).fit(X, LABELS)
    # What an error names can be given.
    with refuses("bad-value", parameter="delta"):
        PrivateClassifier(delta=0.1, **QUICK).fit(X, LABELS)
    large = PrivateClassifier(delta=0.1, allow_large_delta=True, **QUICK).fit(X, LABELS)
    assert large.privacy_["delta"] == 0.1


def test_a_fit_is_a_training_like_any_other() -> None:
    model = PrivateClassifier(epsilon=8.0, purpose="figure 1", **QUICK).fit(X, LABELS)
    assert model.score(X, LABELS) > 0.9
    assert model.classes_.tolist() == list(model.head_.classes) == NAMES.tolist()
    assert model.predict(X).tolist() == model.head_.predict(X)
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :3])
    assert model.n_features_in_ == X.shape[1]
    head = dpfc.Head.load(str(model.head_.path))
    assert dict(model.statement_) == head.statement()
    checked = dpfc.verify(str(head.path), ledger=model.privacy_["ledger"])
    assert checked.contradictions == []
    # The set is gone, and nobody signed.
    assert {each.what for each in checked.findings if each.result != "ok"} == {"feature set", "signature"}


def test_labels_that_nobody_stated_are_not_published() -> None:
    for classes in (None, "flu", ["cold"]):
        with pytest.raises(UserError) as refused:
            PrivateClassifier(method="dp-ls", classes=classes).fit(X, LABELS)
        assert refused.value.fields["parameter"] == "classes"
        # In a log a label would be published, too.
        assert not any(name in str(refused.value) for name in NAMES)
    assert files() == []


def test_a_label_that_was_not_asserted_is_refused_before_the_charge() -> None:
    with refuses("bad-record", parameter="classes") as refused:
        PrivateClassifier(classes=["cold", "flu"]).fit(X, LABELS)
    assert "do not publish it" in str(refused.value)
    assert "zoster" not in str(refused.value)
    assert files() == []


def test_classes_that_are_no_two_different_labels_are_refused_before_all_else() -> None:
    counts: list[Any] = [1, -3, True, 10.0, np.nan, 10**9]
    numbers: list[Any] = [[0.0, 1.0, np.nan], [0, 1, 2, 1], [0, 2**70], [[0, 1], [2, 3]], [1j, 2]]
    texts: list[Any] = [
        ["a", None],
        ["a", 1],
        ["a", ""],
        ["a", "b", "a"],
        ["\u00e9", "e\u0301"],
        ["cold"],
        [b"a", b"b"],
    ]
    for given in [*counts, *numbers, *texts, [], {"a", "b"}, np.array("ab")]:
        with refuses("bad-value", parameter="classes") as refused:
            PrivateClassifier(method="dp-ls", classes=given).fit(X[0], LABELS)
        assert isinstance(refused.value, ValueError), given
    assert files() == []
    good: list[Any] = [np.int64(3), range(3), np.array([2, 0, 1], np.float32)]
    for given in good:
        assert PrivateClassifier(method="dp-ls", classes=given).fit(X, Y).classes_.tolist() == [0, 1, 2]
    # Also of classes that no label has.
    assert PrivateClassifier(method="dp-ls", classes=5).fit(X, Y).predict_proba(X).shape == (240, 5)
    objects: Any = NAMES.astype(object)
    of_objects = PrivateClassifier(method="dp-ls", classes=objects).fit(X, LABELS.astype(object))
    assert of_objects.classes_.tolist() == NAMES.tolist()
    assert PrivateClassifier(method="dp-ls", classes=[False, True]).fit(X, Y > 0).predict(X).dtype == bool
    # Numbers are named, and are no places.
    signs = np.where(Y > 0, 1, -1)
    assert (
        PrivateClassifier(epsilon=100, method="dp-ls", classes=[1, -1]).fit(X, signs).predict(X) == signs
    ).mean() > 0.9


def test_the_privacy_is_stated_once_in_words_that_are_parameters_here() -> None:
    for given in ({"epsilon": None}, {"noise_multiplier": 5.0}):
        with refuses("conflict") as refused:
            PrivateClassifier(**given, **QUICK).fit(X, LABELS)
        assert "non_private" not in str(refused.value)


def kept(value: Any, seen: set[int] | None = None) -> Iterator[np.ndarray]:
    """Every array that can be reached from a value."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield value
    inside = list(value.values()) if isinstance(value, dict) else list(getattr(value, "__dict__", {}).values())
    inside += list(value) if isinstance(value, list | tuple | set) else []
    for each in inside:
        yield from kept(each, seen)


def leaks(model: PrivateClassifier, x: np.ndarray) -> list[str]:
    """Where records are in a fitted estimator."""
    found = [f"attribute {each.shape}" for each in kept(model) if len(x) in each.shape]
    pickled = pickle.dumps(model)
    for dtype in ("<f4", "<f8"):
        found += ["pickle"] * any(row.astype(dtype).tobytes() in pickled for row in x)
    said = repr(model) + model._repr_html_() + model.privacy_._repr_html_() + model.statement_._repr_html_()
    # Numbers of a record, as a repr shows them.
    return found + ["repr"] * any(f"{abs(value):.4f}" in said for value in x.ravel())


def test_no_private_array_is_in_an_attribute_a_pickle_or_a_repr() -> None:
    model = PrivateClassifier(**QUICK).fit(X, LABELS, groups=np.arange(240) // 2)
    assert leaks(model, X) == []
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()
    assert again.privacy_ == model.privacy_
    # What the search would find.
    for name, fault in (("seen_", X), ("labels_", Y), ("memo_", {"x": [X[:2]]})):
        setattr(model, name, fault)
        assert leaks(model, X), name
        delattr(model, name)
    model.statement_["best"] = str(X[3])
    assert leaks(model, np.round(X, 4)) == ["repr"] or leaks(model, X) == ["repr"]


def test_no_record_stays_on_disk_and_a_fit_that_was_stopped_stays_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PrivateClassifier(**QUICK)
    for stop in (KeyboardInterrupt, MemoryError):

        def stopped(*_: Any, how: type[BaseException] = stop) -> None:
            raise how

        with monkeypatch.context() as patched:
            instead.draw_noise(patched, stopped)
            with pytest.raises(stop) as end:
                model.fit(X, LABELS)
        assert "ε = 1 was charged" in end.value.__notes__[0]
        assert "resumes" not in end.value.__notes__[0]
        assert not hasattr(model, "head_")
        assert files() == ["private-classifier/ledger.sqlite"]
    assert model.fit(X, LABELS).privacy_["charges"] == 3
    assert {path.suffix for path in Path("private-classifier").iterdir()} == {".sqlite", ".safetensors"}
    assert Path("private-classifier").stat().st_mode & 0o777 == 0o700


def test_what_a_killed_fit_left_is_removed_and_another_set_is_not() -> None:
    source = Path("PrivateClassifier")
    source.mkdir()
    for name, array in (("train_x", X), ("train_y", Y)):
        np.save(source / name, array)
    left = Path("private-classifier/private-classifier")
    feature_set(source, left, classes=3)
    left.with_name("private-classifier.partial").mkdir()
    PrivateClassifier(**QUICK).fit(X, LABELS)
    assert [path.name for path in Path("private-classifier").iterdir() if path.is_dir()] == []
    np.savez("mine.npz", train_x=X, train_y=Y)
    feature_set("mine.npz", Path("study/study"), classes=3)
    before = files()
    with refuses("exists", parameter="ledger"):
        PrivateClassifier(ledger="study", **QUICK).fit(X, LABELS)
    assert files() == before


def test_records_are_for_their_owner_alone_in_a_ledger_folder_that_others_may_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("open").mkdir(mode=0o755)
    modes: list[int] = []

    def seen(*given: Any) -> np.ndarray:
        modes.append(Path("open/open").stat().st_mode & 0o777)
        return draw_noise(*given)

    instead.draw_noise(monkeypatch, seen)
    PrivateClassifier(ledger="open", **QUICK).fit(X, LABELS)
    assert set(modes) == {0o700}


def test_fits_at_the_same_time_wait_for_one_another() -> None:
    models = [PrivateClassifier(**QUICK) for _ in range(3)]
    threads = [threading.Thread(target=model.fit, args=(X, LABELS)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(model.privacy_["charges"] for model in models) == [1, 2, 3]


def test_persons_are_protected_where_groups_say_whose_records_are_whose() -> None:
    """Keys that look alike are one person."""
    groups = np.array([str(i // 3) if i % 3 else i // 3 for i in range(240)], dtype=object)
    model = PrivateClassifier(**QUICK).fit(X, LABELS, groups=groups)
    assert model.head_.card.facts.n == 80
    assert (model.privacy_["unit"], model.privacy_["spent_unit"]) == ("person", "person")
    assert "one person of 80" in model.statement_["protects"]
    with sklearn.config_context(enable_metadata_routing=True):
        asking = PrivateClassifier(**QUICK).set_fit_request(groups=True)
        search = GridSearchCV(asking, {"epsilon": [1.0]}, cv=GroupKFold(2)).fit(X, LABELS, groups=groups.astype(int))
    assert search.best_estimator_.privacy_["unit"] == "person"
    # Records without a person would be protected together, and each of them also as the person that they are.
    for wrong in (None, np.nan, " "):
        groups[0] = wrong
        with refuses("bad-record", match="1 record of 'groups'"):
            PrivateClassifier(**QUICK).fit(X, LABELS, groups=groups)
    for none in (np.full(240, np.nan), np.full(240, " "), np.ones(240, bool)):
        with refuses("bad-record", match="NaN"):
            PrivateClassifier(**QUICK).fit(X, LABELS, groups=none)
    shapes: list[Any] = [np.arange(200), np.arange(480).reshape(240, 2), 7]
    for shape in shapes:
        with refuses("bad-value", parameter="groups") as refused:
            PrivateClassifier(**QUICK).fit(X, LABELS, groups=shape)
        assert isinstance(refused.value, ValueError)


def test_a_cap_holds_for_all_fits_until_another_one_takes_its_place() -> None:
    PrivateClassifier(cap=1.2, **QUICK).fit(X, LABELS)
    for other in (PrivateClassifier(**QUICK), PrivateClassifier(cap=1.2, **QUICK)):
        with refuses("over-cap"):
            other.fit(X[:150], LABELS[:150])
    # The same ε at a smaller δ is a stricter cap.
    for cap, delta in ((0.9, None), (1.2, 1e-9)):
        with refuses("over-cap"):
            PrivateClassifier(cap=cap, epsilon=0.1, delta=delta, **QUICK).fit(X, LABELS)
    assert PrivateClassifier(epsilon=0.3, **QUICK).fit(X, LABELS).privacy_["charges"] == 2
    with pytest.warns(TrainingWarning, match=r"epsilon = 5 now, and was epsilon = 1\.2"):
        assert PrivateClassifier(cap=5.0, **QUICK).fit(X, LABELS).privacy_["charges"] == 3


def test_a_refused_fit_keeps_nothing_and_its_cap_can_be_replaced() -> None:
    # No fit fits under the first: it is not written.
    for cap, held, more in ((0.5, 0, {}), (3.0, 1, {"steps": 9}), (3.0, 1, {"seed": 1})):
        model = PrivateClassifier(cap=cap, **QUICK).set_params(**more)
        with pytest.raises(UserError) as refused:
            model.fit(X, LABELS)
        # What it names can be given.
        assert {*re.findall("[a-z]+_[a-z]+", str(refused.value))} <= {*model.get_params()}
        assert files() == ["private-classifier/ledger.sqlite"]
        assert len(model.account.caps) == held
    assert PrivateClassifier(cap=1.2, **QUICK).fit(X, LABELS).privacy_["charges"] == 1
    assert len(files()) == 2


def test_rows_of_a_public_head_have_the_order_of_the_classes_as_they_were_stated() -> None:
    order = [2, 0, 1]
    vectors = np.stack([X[number == Y].mean(axis=0) for number in order])
    given: dict[str, Any] = {"epsilon": 0.5, "classes": NAMES[order].tolist()}
    model = PrivateClassifier(public_head=vectors, **given).fit(X, LABELS)
    assert model.head_.card.public_head.trusted > 0.5
    assert model.classes_.tolist() == NAMES.tolist()
    assert model.score(X, LABELS) > 0.9
    assert (model.predict(X) == model.head_.predict(X)).all()
    with refuses("conflict", parameter="public_head"):
        PrivateClassifier(public_head=vectors[:2], **given).fit(X, LABELS)


def test_what_noise_hides_is_said_once_a_process_in_whatever_many_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PrivateClassifier(epsilon=0.011, **QUICK)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TrainingWarning)
        for _ in range(2):
            model.fit(X, LABELS)
    assert sum(HIDES in str(each.message) for each in said) == 1


def test_labels_of_another_type_than_the_classes_are_named_as_that() -> None:
    for classes, labels in ((["0", "1", "2"], Y), ([0, 1, 2], Y.astype(str))):
        with pytest.raises(ValueError, match=r"labels in y are \w+, and classes are \w+"):
            PrivateClassifier(classes=classes).fit(X, labels)


def test_what_is_refused_shows_no_value_of_a_record() -> None:
    model = PrivateClassifier(**QUICK).fit(X, LABELS)
    named = X.astype(object)
    named[7, 2] = "Anna Schmidt"
    calls: list[Callable[[], object]] = [
        partial(model.fit, wrong, LABELS) for wrong in (named, X[:, 0], X + 0.731j, 1e41 * X.astype(float))
    ]
    calls += [partial(model.predict, wrong) for wrong in (named, X[0], X + 0.731j)]
    for call in calls:
        with pytest.raises(ValueError, match=r"could not|Expected|Complex|too large") as error:
            call()
        assert error.value.__cause__ is error.value.__context__ is None
        assert not re.search(r"Anna|\[|\d\.\d", str(error.value)), error.value


def test_a_refused_fit_leaves_the_classifier_as_it_was() -> None:
    model = PrivateClassifier(**QUICK)
    for _ in range(2):
        with refuses("bad-value"):
            model.fit(X[:, :3], LABELS, groups=np.arange(200))
        if not vars(model).get("head_"):
            with pytest.raises(NotFittedError):
                model.predict(X)
            model.fit(X, LABELS)
        assert model.score(X, LABELS) > 0.9


def test_seeded_noise_repeats_and_claims_nothing() -> None:
    first, again = (PrivateClassifier(seed=3, **QUICK).fit(X, LABELS) for _ in range(2))
    assert (first.decision_function(X) == again.decision_function(X)).all()
    assert first.privacy_["claim"] == "research"
    assert first.privacy_.keys() == PrivateClassifier(ledger="other", **QUICK).fit(X, LABELS).privacy_.keys()
    assert first.privacy_["epsilon"] is first.privacy_["spent"] is None


def test_a_notebook_shows_names_as_text() -> None:
    strange = np.array(["<b>flu", "cold", "zoster"])
    model = PrivateClassifier(method="dp-ls", ledger="<i>", classes=strange.tolist()).fit(X, strange[Y])
    shown = model.privacy_._repr_html_() + model.statement_._repr_html_()
    assert shown.count("<table>") == 2
    assert re.search(r"<th [^>]*>spent</th><td [^>]*>1</td>", shown)
    assert "&lt;i&gt;" in shown
    assert "<i>" not in shown


def worlds() -> dict[str, np.ndarray]:
    """Other records that somebody trained on before, in worlds where more and more of ours are among them."""
    alone, one = np.random.default_rng(7).normal(size=(2, len(X), 5)).astype(np.float32), X.copy()
    shared, but_one = alone[0].copy(), X.copy()
    shared[17], but_one[17] = one[3], alone[1][17]
    return {"none": alone[0], "one": shared, "all but one": but_one, "all": one}


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Where noise, ids and dates are the same each time, these by a count, and nothing of a fit before is there."""

    @contextmanager
    def each() -> Iterator[None]:
        seeds = itertools.count()
        with monkeypatch.context() as patched:
            counted_up(patched, 0)
            instead.bits(patched, lambda: SeededBits(next(seeds)))
            yield
        shutil.rmtree("private-classifier")

    return each


def shown(model: PrivateClassifier) -> tuple[object, ...]:
    """All that can be seen of a fit."""
    said = repr(model.privacy_) + model.privacy_._repr_html_() + repr(model.statement_)
    return said, pickle.dumps(model), Path(str(model.head_.path)).read_bytes(), files()


def test_what_a_fit_says_depends_on_no_record_but_through_what_is_released(
    fixed: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of records and the classes are public. Here the sums are always zero, and the rest must be the same:
    for one label alone, for each class as the rarest one, for equal records, and whosever the records are.
    """
    real = sums.exact_sum
    instead.exact_sum(monkeypatch, lambda *given: np.zeros_like(real(*given)))
    number = np.arange(len(X))
    rarest = [np.where(number == 5, NAMES[j], NAMES[j - 1 - number % 2]) for j in range(3)]
    told = [(np.ones_like(X), np.full(len(X), NAMES[2])), *((X, labels) for labels in rarest)]
    persons = [number // 2, np.maximum(number - 120, 0), *[np.minimum(number, 119)] * 2]
    for groups in ([None] * 4, persons):
        said = []
        for (x, labels), each in zip(told, groups, strict=True):
            with fixed():
                said.append(shown(PrivateClassifier(**QUICK).fit(x, labels, groups=each)))
        assert said == said[:1] * 4


@pytest.mark.parametrize("cap", [None, 1.2])
def test_what_a_fit_says_depends_on_no_other_records_with_the_same_ledger(
    cap: float | None, fixed: Callable[[], AbstractContextManager[None]]
) -> None:
    """Whether somebody is in both would be a fact about a record, without noise."""
    said: dict[str, Any] = {}
    for name, others in worlds().items():
        with fixed():
            PrivateClassifier(cap=cap, **QUICK).fit(others, LABELS)
            model = PrivateClassifier(**QUICK)
            if cap is None:
                said[name] = shown(model.fit(X, LABELS))
            else:
                with pytest.raises(UserError) as refused:
                    model.fit(X, LABELS)
                said[name] = (str(refused.value), refused.value.fields)
    assert len(said) == 4
    for name, found in said.items():
        assert found == said["none"], name


def test_scikit_learn_is_imported_for_the_estimator_alone_and_said_where_it_is_missing() -> None:
    program = (
        "import sys, dpfc_cli; dpfc_cli.train; assert not [m for m in sys.modules if m.startswith('sklearn')]\n"
        "sys.modules['sklearn'] = sys.modules['sklearn.base'] = None\n"
        "try: dpfc_cli.PrivateClassifier\n"
        "except dpfc_cli.UserError as error: print(error.code, error)"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.startswith("unsupported PrivateClassifier needs scikit-learn")
    assert "[sklearn]" in shown
