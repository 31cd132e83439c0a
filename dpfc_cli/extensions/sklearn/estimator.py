"""The scikit-learn door: a classifier whose `fit` is a private training, charged to a ledger.

scikit-learn is imported with this module, and with nothing else of dpfc.

**Where the records go.** `fit` goes the way of every training: records are imported into a feature set, the training
is charged to the ledger beside it, and then it runs. All of this lies in one folder, the *ledger folder*: for the time
of a fit the set, and for good the ledger and the heads. The folder of the set is for its owner alone, and so is the
ledger folder if it is made here. The estimator keeps the head and what is said of it, and no record.

A fit that was stopped stays charged, and the next fit is charged anew: each fit makes a set of its own.

**All fits with one ledger are added up**, whatever they were trained on: a cross-validation trains on parts of the same
records, and a scaled record is the same record. The sum is right for the same records and an upper bound for others.
Name another ledger for records of other people.
"""

import copy
import inspect
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from safetensors.numpy import save_file

from dpfc_cli.annotations.classes import MOST_ASSERTED, class_names, composed, stated
from dpfc_cli.annotations.groups import GROUPS, NO_PERSON, Keys, keys_in, keys_of
from dpfc_cli.errors import GUARDED, UserError, conflict, installing, parameter, quoted, unsupported, unwritable
from dpfc_cli.extraction.arrays import Records, Source, in_memory, make_of
from dpfc_cli.extraction.request import Making
from dpfc_cli.features.manifest import load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import locked
from dpfc_cli.folders import PARTIAL
from dpfc_cli.heads.head import as_probabilities
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.ledger.totals import Account
from dpfc_cli.options import Option, refuse_unknown, with_hooks
from dpfc_cli.privacy.accounting import default_delta
from dpfc_cli.records.statement import SEEDED
from dpfc_cli.show.document import Values
from dpfc_cli.training.calibrate import HIDES
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request, added_hooks
from dpfc_cli.training.run import Trained, run
from dpfc_cli.training.train import plan, train

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise unsupported(
        "PrivateClassifier needs scikit-learn (1.6 or later), which is not installed.",
        f"Install it: {installing('sklearn')}.",
        package="scikit-learn",
    ) from error

OPTIONS = {
    name: each
    for name, each in inspect.signature(train).parameters.items()
    if name not in ("features", "out", "epsilon", "non_private", "again", "observer")
}
"""The options of a training that are parameters here, too."""
LEDGER_FOLDER = "private-classifier"
"""The ledger folder, unless the user names one."""
NUMBERS = (int, float, np.integer, np.floating, np.bool_)
"""The types of labels that are numbers."""
SOURCE = "PrivateClassifier"
"""What the manifest of a set of ours says that it was imported from."""
COPIED = (
    "each fit of a cross-validation or grid search is charged to the ledger, up to PrivateClassifier(cap=…); only with "
    "refit=False does a grid search keep its scores where the last fit does not fit. A search's fits protect records, "
    "and persons with scikit-learn's enable_metadata_routing and set_fit_request(groups=True)."
)
"""Said before the fits of a search, which begins with copies."""


class InvalidInputError(UserError, ValueError):
    """Something that the user can correct, as the ValueError that scikit-learn expects."""


class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier that is trained with differential privacy.

        model = PrivateClassifier(epsilon=1.0, classes=["flu", "cold"]).fit(X, y)
        model.predict(X_new)
        model.privacy_["spent"]  # ε of all fits with this ledger

    Every call of `fit` spends privacy, also those of a cross-validation or a grid search. From the second fit on a
    `TrainingWarning` says how much is spent together, and a cap limits it. A step of a pipeline before it that learns
    from X, such as `StandardScaler`, is not covered by ε: leave it out, or fit it on public records before. The default
    method scales by itself, with noise.

    Args:
        epsilon: ε of one fit, 1e-4 to 100. None: `noise_multiplier` says it.
        classes: the labels that may occur, or their number m for the labels 0 … m − 1. They are public, so they
            are not taken from y. None: refused.
        ledger: the folder of the ledger. None: `private-classifier` in the working folder.
        cap: ε that all fits with this ledger together never pass, at `delta`. A fit writes it into the ledger before it
            is charged, and it holds for every fit after it. Another value replaces it, with a warning.
        options: those of `dpfc_cli.train`, each as a parameter of its own, such as `delta`, `seed`, `method` and
            `steps`. `public_head` may also be an array with a row for each class, in the order of `classes`.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: the number of features.
        feature_names_in_: their names, if X has names that are all texts.
        head_: the head, a `dpfc_cli.Head`. Its classes have the order of `classes`. They are numbers where the labels
            were not asserted.
        privacy_: ε, δ and μ of the fit, the unit, and what all fits with this ledger have spent together for one
            `spent_unit`: a record, if they do not all protect the same persons. `unprotected`: how many of the
            `charges` had no guarantee. They are in no sum. None: this fit has no guarantee.
        statement_: what is claimed of the head, as `dpfc statement` says it.

    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        *,
        classes: Sequence[object] | int | str | None = None,
        ledger: str | Path | None = None,
        cap: float | None = None,
        **options: object,
    ) -> None:
        refuse_unknown("PrivateClassifier", options, inspect.signature(PrivateClassifier).parameters)
        self.epsilon = epsilon
        self.classes = classes
        self.ledger = ledger
        self.cap = cap
        for name, each in OPTIONS.items():
            setattr(self, name, options.get(name, each.default))

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted. Searches and cross-validations make one for each of their fits."""
        if self.seed is None:
            _Observer().warn(COPIED)
        found: Self = super().__sklearn_clone__()
        return found

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on private records, and charge it to the ledger.

        Args:
            X: n × d, finite numbers: features of a backbone that knows nothing of these records.
            y: n labels.
            groups: n keys that say which person each record is of. Then persons are protected. None: records are, also
                in a search whose splitter alone gets groups.

        Returns:
            This estimator.

        Raises:
            ValueError: X or y cannot be trained on.
            UserError: something else must be corrected, or a cap does not allow the fit. Nothing was charged, unless
                the head could be written nowhere.

        """
        classes = self._asserted()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            what = f"State the privacy once: as {parameter('epsilon')} or as {parameter('noise_multiplier')}."
            raise conflict(what, f"To begin with: {parameter('epsilon')} 1. For a noise multiplier: None.")
        # This one stays as it is until the fit has ended.
        fitted = copy.copy(self)
        x, given = _checked(fitted, X, y, ensure_min_samples=2)
        check_classification_targets(given)
        labels = _labelled(given, classes)
        order = np.argsort(classes)
        names = stated(class_names(list(map(str, classes.tolist()))))
        keys = None if groups is None else _persons(np.asarray(groups), len(x))
        with _set_of(in_memory(x, labels, keys), names, _ledger_folder(self.ledger)) as features:
            trained = self._trained(features)
        fitted.classes_, fitted._order = classes[order], order
        fitted.head_ = trained.head
        fitted.privacy_ = _privacy(trained)
        fitted.statement_ = trained.head.statement()
        self.__dict__ = fitted.__dict__
        return self

    def _asserted(self) -> np.ndarray:
        """The classes that are stated, (m,): different texts, or different numbers. UserError where nobody says which,
        or they are something else.
        """
        if self.classes is None or isinstance(self.classes, str):
            raise conflict(
                f"{parameter('classes')} does not list the labels that may occur. Those that do occur follow from the "
                "private records, and no noise hides them.",
                "List all labels that may occur.",
            )
        if isinstance(self.classes, int | np.integer) and 1 < self.classes <= MOST_ASSERTED:
            return np.arange(self.classes)
        given = np.asarray(self.classes, object)
        each = given.tolist() if given.ndim == 1 else []
        # NaN is in no range.
        numbers = all(isinstance(label, NUMBERS) and -(2**63) <= label < 2**63 for label in each)
        if numbers or all(isinstance(label, str) and label for label in each):
            classes = np.array(each)
            if len({composed(str(label)) for label in classes.tolist()}) == len(each) > 1:
                return classes
        raise InvalidInputError(
            f"{parameter('classes')} must be two or more different labels, all texts or all numbers, or their number.",
            "List all labels that may occur. A number m stands for the labels 0 … m − 1.",
        )

    def _trained(self, features: FeatureSet) -> Trained:
        observer, given = _Observer(), {name: getattr(self, name) for name in OPTIONS}
        if isinstance(vectors := given.get("public_head"), np.ndarray):
            given["public_head"] = features.folder / "public_head.safetensors"
            save_file({"vectors": vectors}, given["public_head"], {"classes": json.dumps(features.classes)})
        request = Request(
            features,
            folder=features.folder.parent,
            epsilon=self.epsilon,
            keep=False,
            again=True,
            **with_hooks(given, added_hooks()),
        )
        if self.cap is not None:
            _set_cap(request, self.cap, observer)
        checked = plan(request, observer)
        after = checked.after
        if len(after.charges) > 1:
            spent = after.summed(checked.charge.delta or default_delta(checked.calibrated.facts.n))
            observer.warn(f"this is charge {len(after.charges)} with this ledger. Spent by all together: {spent}.")
        return run(checked, observer)

    @property
    def account(self) -> Account:
        """What all fits with this ledger have spent by now, and its caps, as `dpfc_cli.spent` says it of a set."""
        return read(ledger_path(Path(self.ledger or LEDGER_FOLDER, "-"))).account_of("-")

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """The scores of records: n × m, or n for two classes, where a positive one stands for the second class."""
        scores = self._scores(X)
        return np.asarray(scores[:, 1] - scores[:, 0]) if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The label with the best score for each record."""
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The softmax of the scores, n × m. It is not calibrated."""
        return np.asarray(as_probabilities(self._scores(X), several=False))

    def _scores(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(self.head_.scores(_checked(self, X, reset=False))[:, self._order])


# scikit-learn takes the names of the parameters from here.
_stated = inspect.signature(PrivateClassifier.__init__)
PrivateClassifier.__init__.__signature__ = _stated.replace(  # type: ignore[attr-defined]
    parameters=[*list(_stated.parameters.values())[:-1], *OPTIONS.values()]
)


class _Observer(Observer):
    """Says once a process what noise hides, that copies are charged, and what a seed is: a search makes many fits."""

    hidden: ClassVar[set[str]] = set()

    def warn(self, text: str) -> None:
        if text not in self.hidden:
            super().warn(text)
        if text.startswith((HIDES, COPIED, SEEDED)):
            self.hidden.add(text)


def _checked(of: PrivateClassifier, *given: ArrayLike, **how: object) -> Any:
    """X, or X and y, as scikit-learn checks them. Its messages end with values: after a colon, or in further lines."""
    try:
        # What float32 cannot hold is infinite, and refused.
        with np.errstate(over="ignore", invalid="ignore"):
            return validate_data(of, *given, dtype=np.float32, **how)
    except ValueError as error:
        text = str(error)
        if text.startswith("The feature names"):
            raise
        said = text.partition("\n")[0].partition(":")[0].rstrip(".")
    remedy = "Give X as n × d finite numbers, and y as n labels. Reshape your data if it has one dimension."
    raise InvalidInputError(f"{said}.", remedy)


def _labelled(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The number of the class of each record."""
    kind, other = ("texts" if isinstance(each[0], str) else "numbers" for each in (classes, y))
    if kind != other:
        raise InvalidInputError(
            f"The labels in y are {other}, and {parameter('classes')} are {kind}.",
            f"List all labels that may occur as {other}.",
        )
    order = np.argsort(classes)
    labels = order[np.minimum(np.searchsorted(classes, y, sorter=order), len(classes) - 1)]
    if (classes[labels] != y).any():
        raise InvalidInputError(
            f"Some labels in y are not among {parameter('classes')}. {GUARDED}",
            "Name all labels that may occur.",
            code="bad-record",
        )
    return labels


def _set_cap(request: Request, cap: float, observer: Observer) -> None:
    """Set the cap of a ledger, unless it has this one. UserError where it makes no sense, or more is spent already."""
    features, delta = request.features, request.delta
    unit = "record" if features.split(SPLIT).groups is None else "person"
    held = next((each for each in read(ledger_path(features.folder)).caps if each.unit == unit), None)
    if held is not None and held.epsilon == cap and delta in (None, held.delta):
        return
    if request.epsilon is not None and Option("", kind="number").taken("cap", cap) < request.epsilon:
        what = f"No fit fits: {parameter('cap')} {cap:g} is below {parameter('epsilon')} {request.epsilon:g} of one."
        raise conflict(what, "Give a larger cap, or spend less.")
    caps.set_cap(features, cap, delta=delta, note="PrivateClassifier")
    if held is not None:
        observer.warn(
            f"the cap of this ledger is epsilon = {cap:g} now, and was {caps.said(held)}. What is guaranteed is the "
            "largest that might have been set."
        )


def _ledger_folder(given: str | Path | None) -> Path:
    folder = Path(LEDGER_FOLDER if given is None else given)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(
            f"The ledger cannot be kept in {quoted(folder)}: {error.strerror or error}.",
            f"Name another folder: {parameter('ledger')}.",
        ) from error
    return folder


@contextmanager
def _set_of(records: Records, classes: tuple[str, ...], folder: Path) -> Iterator[FeatureSet]:
    """A feature set of records, for as long as the block runs. Other fits with this ledger wait.

    A set that a killed fit has left is removed first.
    """
    name = folder.resolve().name
    place = folder / name
    descriptor = locked(folder, wait=True)
    try:
        # Somebody else's records are not removed.
        if place.exists() and load(place).source["identity"].get("imported") != SOURCE:
            raise UserError(
                f"{quoted(place)} is a feature set of its own.",
                f"Name another folder for the ledger: {parameter('ledger')}.",
                code="exists",
            )
        try:
            _remove(place)
            source = Source(path=Path(SOURCE), classes=classes, k=1, person={"by": "column", "column": GROUPS})
            features, _ = make_of({SPLIT: records}, source, place, Making())
            yield features
        finally:
            _remove(place)
    finally:
        os.close(descriptor)


def _remove(place: Path) -> None:
    """Remove a set of ours."""
    for each in (place, place.with_name(place.name + PARTIAL)):
        with suppress(FileNotFoundError):
            shutil.rmtree(each)


def _persons(groups: np.ndarray, n: int) -> Keys:
    """Which person each of n records belongs to. What is no text and no integer, and what is missing, is refused."""
    if groups.shape != (n,):
        what = f"{parameter('groups')} does not have a key for each record: its shape is {groups.shape}, not ({n},)."
        raise InvalidInputError(what, "Give n keys, one for each row of X.")
    if groups.dtype.kind in "iuS":
        return keys_in(groups, "groups", "groups")
    return keys_of(groups.tolist(), "groups", lambda i: f"record {i}", f"NaN names nobody. {NO_PERSON}")


def _privacy(trained: Trained) -> Values:
    card, spent = trained.head.card, trained.spent
    claimed = trained.checked.calibrated.claimed
    found = Values(claim=card.claim, unit=card.unit, adjacency=card.adjacency)
    found |= {name: getattr(claimed, name, None) for name in ("epsilon", "delta", "mu")}
    found |= {
        "spent": None if claimed is None else spent.epsilon(claimed.delta),
        "spent_unit": spent.unit,
        "charges": len(spent.charges),
        "unprotected": spent.unprotected,
        "classes": card.facts.origin,
        "ledger": str(spent.ledger),
    }
    return found
