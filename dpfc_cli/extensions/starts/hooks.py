"""What is public beside the records of a training, as hooks: `--public-features`, `--public-head` and
`--class-similarity`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli.options import METHOD, option
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Hook, Request

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.methods.public_head import PublicHead
    from dpfc_cli.records.card import Card
    from dpfc_cli.training.calibrate import Calibrated

REMARK = (
    "Some vectors may be wrong, and the training may not notice it. Score them class by class on public records before "
    "(zero-shot)."
)
"""Said of every start, at any noise: see `vectors.HIDDEN`."""


@dataclass(frozen=True, kw_only=True)
class Known(Hook):
    """The mean of public records."""

    public_features: "FeatureSet | None" = option(
        "Feature set of other pictures, which nobody needs to protect, from the same backbone. Their mean makes the "
        "released one more accurate, at no cost in privacy. This helps where epsilon is small and records and classes "
        "are few (dp-whitened).",
        METHOD,
        metavar="SET",
    )

    def choose(self, request: Request, calibrated: "Calibrated", observer: Observer) -> "Calibrated":
        from dpfc_cli.extensions.starts.means import inform
        from dpfc_cli.training import public

        assert self.public_features is not None
        why = "Only dp-whitened releases the mean that they improve."
        public.check_used(calibrated, "public_features", "public", why)
        public.check_other(request.features, self.public_features, "public_features")
        for text in public.warnings_of(self.public_features):
            observer.warn(text)
        stage = "Reading the public features"
        return inform(calibrated, self.public_features, lambda *far: observer.progress(stage, *far))


@dataclass(frozen=True, kw_only=True)
class Begun(Hook):
    """Public class vectors from which the training starts."""

    public_head: Path | str | None = option(
        "Public class vectors over the same features, as of 'dpfc zero-shot', or a head of public records. The "
        "training starts from them, at no cost in privacy. This helps where epsilon is small or classes have few "
        "records (dp-whitened).",
        METHOD,
        metavar="FILE",
    )

    def choose(self, request: Request, calibrated: "Calibrated", observer: Observer) -> "Calibrated":
        from dpfc_cli.extensions.starts.vectors import warnings_of

        known = self.vectors(calibrated, request.features.classes, request.features.dim, request.features)
        begun = replace(calibrated, options=replace(calibrated.options, public_head=known))
        for text in warnings_of(begun):
            observer.warn(text)
        observer.say(REMARK)
        return begun

    def vectors(
        self, calibrated: "Calibrated", classes: tuple[str, ...], dim: int, private: "FeatureSet | None" = None
    ) -> "PublicHead":
        """The class vectors in the file, for these classes. private: the private records, if they are at hand.

        UserError: see `vectors.vectors_for`; or the method has no use for a start: how far one is trusted is read off
        the first gradients, in a space where records are centred and white, and other methods have no such gradients.
        """
        from dpfc_cli.extensions.starts.vectors import vectors_for
        from dpfc_cli.training import public

        assert self.public_head is not None
        why = "Only dp-whitened can tell from its releases how good a start is."
        public.check_used(calibrated, "public_head", "public_head", why)
        return vectors_for(classes, dim, self.public_head, private)

    def ended(self, card: "Card", observer: Observer) -> None:
        start = card.public_head
        if start is not None and start.trusted is not None and round(100 * start.trusted) == 0:
            observer.warn(
                "the public start was trusted to 0 %, so the head has nothing of it. Its vectors are wrong, or of "
                "another backbone or order of classes."
            )


@dataclass(frozen=True, kw_only=True)
class Similar(Hook):
    """Public knowledge of which classes are alike."""

    class_similarity: Path | str | None = option(
        "Which classes are alike: a CSV file with the columns class and group, or vectors of the classes in any space, "
        "such as sentence embeddings of their names (.safetensors). The noisy weights of the classes are shrunk "
        "accordingly, at no cost in privacy. This helps where epsilon is small and classes are many (dp-whitened).",
        METHOD,
        metavar="FILE",
    )

    def choose(self, request: Request, calibrated: "Calibrated", observer: Observer) -> "Calibrated":
        from dpfc_cli.extensions.starts.similar import similarity_in
        from dpfc_cli.training import public

        assert self.class_similarity is not None
        why = "Only dp-whitened shrinks by it."
        public.check_used(calibrated, "class_similarity", "similarity", why)
        found, said = similarity_in(Path(self.class_similarity), request.features.classes)
        options = replace(calibrated.options, similarity=found)
        return replace(calibrated, options=options, parts={**calibrated.parts, "class_similarity": said})
