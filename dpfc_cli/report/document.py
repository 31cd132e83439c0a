"""A report as plain values. Nothing in it is escaped: whatever writes it down does that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfc_cli.figures.canvas import Panel


@dataclass(frozen=True)
class Words:
    """A paragraph. strong: what must not be overlooked."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Points:
    """A list."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """Names with what is said of them."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Grid:
    """A table. The first `left` columns are text, the others numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    title: str = ""


@dataclass(frozen=True)
class Code:
    """Lines of a program."""

    text: str


@dataclass(frozen=True)
class Figure:
    """A drawing. Where none can be, `said` stands for it."""

    panel: "Panel"
    title: str
    said: str


@dataclass(frozen=True)
class SignOff:
    """Places for names, dates and signatures of people in these roles."""

    roles: tuple[str, ...]


Block = Words | Points | Facts | Grid | Code | Figure | SignOff


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report. internal: it says more of the records than the guarantee covers."""

    title: str
    blocks: tuple[Block, ...]
    internal: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report. kind: who may read it, in a few words. notice: the same in sentences. header: what hubs of models
    read of a model card; empty in an internal report. sections: some of them are internal in an internal report.
    """

    title: str
    kind: str
    notice: str
    header: Mapping[str, Any]
    sections: tuple[Section, ...]

    @property
    def internal(self) -> bool:
        """Whether it is for the holder of the records only."""
        return any(section.internal for section in self.sections)
