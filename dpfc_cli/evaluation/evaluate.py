"""How good a head is on a feature set, with what stands in the way of believing the figures.

`evaluate` is what `dpfc evaluate` calls with one head, `evaluate_privately` with --epsilon, and `compare` with several
heads. They refuse heads and features that do not fit together, and warn where the figures mean less than they seem to,
or must not be published.

Of a split of the training's name there is no more than the accuracy: no confusions, no calibration and no differences
between heads. Its records may be those that were to be protected.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dpfc_cli.errors import UserError, conflict, parameter
from dpfc_cli.evaluation.exact import Comparison, Evaluation, figures
from dpfc_cli.evaluation.request import PrivateScoring, Scoring
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, check_heads, made_otherwise, misfit, of_training
from dpfc_cli.options import takes
from dpfc_cli.progress import Progress, show
from dpfc_cli.training.summing import Summing, summing_on

if TYPE_CHECKING:
    from dpfc_cli.evaluation.private import PrivateEvaluation, Ready

Wanted = TypeVar("Wanted", bound=Scoring)


@takes(Scoring)
def evaluate(wanted: Scoring) -> Evaluation:
    """Score a head on a labelled split.

    The figures come from the raw records, without noise: they are no part of the head's guarantee.

    Returns:
        The figures, and warnings about them.

    Raises:
        UserError: the head and the features do not fit together; the set has no such split,
            or a damaged one; or no record of it has a label.

    Examples:
        >>> found = evaluate(Head.load("heads/eps1.safetensors"), open_features("digits-scattering"))
        >>> print(f"{found.top1:.0%}, between {found.interval[0]:.0%} and {found.interval[1]:.0%}")

    """
    wanted, warnings, private_split = _checked(wanted, noisy=False)

    def of(features: FeatureSet, detailed: bool) -> Evaluation:
        given = (wanted.head,), features, wanted.split, private_split, wanted.progress, detailed, wanted.threshold
        return figures(*given)[0][0]

    found, parts, features = of(wanted.features, not private_split), dict[str, Evaluation](), wanted.features
    column, known = wanted.subgroups, features.manifest.subgroups or {}
    if column is not None:
        for value in known[column]:
            # Of some there may be no labelled record.
            with suppress(UserError):
                parts[value] = of(features.of_subgroups(column, value), False)
    return replace(found, warnings=warnings, subgroups=None if column is None else parts)


@takes(PrivateScoring)
def evaluate_privately(wanted: PrivateScoring) -> "PrivateEvaluation":
    """Score a head on a labelled split that is private, too.

    The figures are noisy, and they protect the records of the split. They are charged to the ledger of the set.

    Returns:
        The figures, and warnings about them.

    Raises:
        UserError: as for `evaluate`; or a value is out of range, a cap does not allow it, the ledger cannot be written,
            or the head was trained on these records without a guarantee. Nothing was charged then, unless a note says
            so.

    Examples:
        >>> evaluate_privately(head, features, epsilon=1.0).top1

    """
    from dpfc_cli.evaluation import private
    from dpfc_cli.training.observer import Observer

    with summing_on(wanted.on) as summing:
        return private.release(prepared(wanted, Observer().warn, summing), wanted.progress)


def prepared(wanted: PrivateScoring, warn: Callable[[str], None], summing: Summing) -> "Ready":
    """A private evaluation that is not charged yet. UserError: as for `evaluate_privately`. warn: told what to know
    before the charge. summing: who sums the records.
    """
    from dpfc_cli.evaluation import private

    wanted, warnings, _ = _checked(wanted, noisy=True)
    return private.prepare(wanted, warn, warnings, summing)


def _checked(wanted: Wanted, noisy: bool) -> tuple[Wanted, tuple[str, ...], bool]:
    """The same with the classes of the head; warnings; and whether the split has the name of the one that the head was
    trained on.
    """
    head, split = wanted.head, wanted.split
    check_heads(head)
    features = _fitted((head,), wanted.features, split)
    if wanted.subgroups is not None:
        features.of_subgroups(wanted.subgroups)
    private_split = _private(head, split)
    warnings = _warnings(head, features, split, private_split, noisy=noisy)
    if not noisy:
        features.verify(split)
    return replace(wanted, features=features), warnings, private_split


def compare(
    heads: Sequence[Head],
    features: FeatureSet,
    split: str = "test",
    *,
    threshold: float | None = None,
    progress: Progress | None = show,
) -> Comparison:
    """Score several heads on the same labelled records, and say by how much each is better than the first.

    The figures come from the raw records, without noise: see `evaluate`. The first head is the one to compare with. If
    it were the best of them, chosen by these figures, the intervals would mean less.

    Args:
        heads: two or more, as `Head.load` or a training gives them.
        features: a feature set of the same backbone and classes.
        split: which of its splits.
        threshold: as for `evaluate`.
        progress: told the stage, the records scored so far, and how many there are.

    Returns:
        The figures of each head, and the differences to the first one with paired intervals (`statistics`).

    Raises:
        UserError: as for `evaluate`; there are fewer than two heads; or one was trained on a split of this name.

    Examples:
        >>> found = compare([Head.load("heads/eps1.safetensors"), Head.load("heads/eps8.safetensors")], features)
        >>> print(f"{found.differences[0].gain:+.1%}")

    """
    heads = tuple(heads)
    check_heads(*heads)
    if len(heads) < 2:
        raise UserError("There are not two heads to compare.", "Give two or more.", parameter="heads")
    threshold = Scoring(heads[0], features, split, threshold=threshold).threshold
    features = _fitted(heads, features, split)
    trained = next((head for head in heads if _private(head, split)), None)
    if trained is not None:
        raise UserError(
            f"{_named(trained, heads)} was trained on a split of this name, '{split}'. Differences between heads say "
            "more of its single records than an accuracy does.",
            "Compare on another split, such as test.",
            code="private-records",
            parameter="split",
        )
    warnings = [_warnings(head, features, split, False, noisy=False) for head in heads]
    features.verify(split)
    found, differences = figures(heads, features, split, False, progress, detailed=True, threshold=threshold)
    evaluations = tuple(replace(each, warnings=said) for each, said in zip(found, warnings, strict=True))
    return Comparison(evaluations=evaluations, differences=differences)


def _fitted(heads: Sequence[Head], features: FeatureSet, split: str) -> FeatureSet:
    """The set with the classes of the heads, which it need not all have.

    UserError unless the set has the split, and each head is one of such features. Its `heads` are all that are not.
    """
    features.split(split)
    classes = heads[0].classes
    if features.classes != classes and set(features.classes) <= set(classes):
        features = features.with_classes(classes)
    wrong = [(head, why) for head in heads if (why := misfit(head, features)) is not None]
    if not wrong:
        return features
    what = wrong[0][1]
    if len(heads) > 1:
        first = f"{_named(wrong[0][0], heads)}: {what[0].lower()}{what[1:]}"
        what = f"{len(wrong)} of {len(heads)} heads do not fit '{features.folder}'. The first is {first}"
    raise conflict(
        what,
        f"Evaluate on features of the same backbone, with classes that the head has: {parameter('features')}.",
        heads=[_named(head, heads) for head, _ in wrong],
    )


def _named(head: Head, heads: Sequence[Head]) -> str:
    place = next(i for i, each in enumerate(heads, 1) if each is head)
    return f"head {place}" if head.path is None else f"'{head.path}'"


def _private(head: Head, split: str) -> bool:
    """Whether a split has the name of the one that the head was trained on."""
    return split == head.card.features.split


def _warnings(head: Head, features: FeatureSet, split: str, private_split: bool, noisy: bool) -> tuple[str, ...]:
    found = [*made_otherwise(head, features, "the figures")]
    if private_split:
        meaning = (
            "the figures say how well it fits them, not how good it is on others."
            if noisy
            else "these figures are not differentially private. Do not publish them."
        )
        found.append(f"the head was trained on a split of this name, '{split}'. If these are its records, {meaning}")
    elif features.manifest.hold_out and not of_training(head, features):
        found.append(
            f"this {split} split was held out from training pictures, and the head was trained on another set. If that "
            "set was made from the same pictures, the head has seen some of these."
        )
    return tuple(found)
