"""Who is told how a training goes, and who is asked before it is charged."""

from dpfc_cli.errors import UserError, warned
from dpfc_cli.progress import show

CHECKING = "Checking the features"
TRAINING, MATRICES, SOLVING = "Training", "Class matrices", "Solving"
"""The stages of a training, or what they begin with."""


class TrainingWarning(UserWarning):
    """Something that the user of a training should know before privacy is spent on it."""


class Observer:
    """Told how a training goes. This one issues Python warnings, and shows a bar in a terminal or a notebook."""

    def warn(self, text: str) -> None:
        """Told what will go badly."""
        warned(text, TrainingWarning)

    def say(self, text: str) -> None:
        """Told what is worth knowing."""

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Told how much of a stage is done."""
        show(stage, done, total)

    def confirm(self, charge: str, refused: UserError | None) -> bool:
        """Asked once, before the charge, which the text describes. refused: the same was charged before. False:
        nothing is charged.
        """
        return refused is None
