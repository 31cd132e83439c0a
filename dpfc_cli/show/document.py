"""A document as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpfc_cli.errors import printable
from dpfc_cli.rounding import rounded_up
from dpfc_cli.structs import Json


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a section. full: it is left out of a short rendering."""

    full: bool = False


@dataclass(frozen=True)
class Words(Block):
    """A paragraph. strong: what must not be overlooked."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Points(Block):
    """A list."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Rows(Block):
    """Names with what is said of them."""

    rows: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True)
class Table(Block):
    """The first `left` columns are text, the others numbers. few: a short rendering has so many rows, and leaves out
    the columns `more`. Cells without text are places to write in.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    title: str = ""
    few: int | None = None
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Code(Block):
    """Lines of a program."""

    text: str


@dataclass(frozen=True)
class Curve(Block):
    """A line from (0, …) to (1, …) over the diagonal. Both axes are fractions, and shown in percent. marked: a point of
    the line, and what is said of it. axes: what they are. said: what stands for it where nothing can be drawn.
    """

    points: Sequence[tuple[float, float]]
    marked: tuple[float, float, str]
    axes: tuple[str, str]
    title: str
    said: str


@dataclass(frozen=True)
class Section:
    """A part of a document. full: see `Block`. internal: it says more of the records than the guarantee covers."""

    title: str
    blocks: Sequence[Block]
    full: bool = False
    internal: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    """What is said. values: the same for programs, as JSON has it. kind, notice: who may read it, in a few words and in
    sentences. header: what hubs of models read of a model card.
    """

    title: str
    sections: Sequence[Section]
    values: Mapping[str, Json] = field(default_factory=dict)
    kind: str = ""
    notice: str = ""
    header: Mapping[str, Json] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return any(section.internal for section in self.sections)

    @property
    def facts(self) -> dict[str, str]:
        blocks = [block for section in self.sections for block in section.blocks]
        return {name: said for block in blocks if isinstance(block, Rows) for name, said in block.rows}

    @property
    def short(self) -> "Document":
        """Without the parts that are marked `full`, and the first rows of tables that say so."""
        sections = [
            replace(each, blocks=[_short(block) for block in each.blocks if not block.full])
            for each in self.sections
            if not each.full
        ]
        return replace(self, sections=sections)


def _short(block: Block) -> Block:
    if not isinstance(block, Table) or not (block.more or len(block.rows) > (block.few or len(block.rows))):
        return block
    kept = [i for i, name in enumerate(block.columns) if name not in block.more]
    rows = [[row[i] for i in kept] for row in block.rows[: block.few]]
    fewer = f" ({block.few} of {len(block.rows):,})" if len(rows) < len(block.rows) else ""
    columns, left = [block.columns[i] for i in kept], sum(i < block.left for i in kept)
    return replace(block, columns=columns, rows=rows, left=left, title=block.title + fewer, few=None, more=())


def page(title: str, *blocks: Block, values: Mapping[str, Json] | None = None) -> Document:
    return Document(title=title, sections=[Section("", list(blocks))], values=values or {})


def shortened(name: str, longest: int = 40) -> str:
    """A name with its middle left out where it is too long (characters). Names that differ at an end stay different."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def told_apart(names: Sequence[str], longest: int) -> list[str]:
    """Names, shortened. Where two would then be the same, all have their place in front: 1, 2, 3 and so on."""
    short = [shortened(name, longest) for name in names]
    if len(set(short)) == len(set(names)):
        return short
    digits = len(str(len(names)))
    return [f"{i} {shortened(name, longest - digits - 1)}" for i, name in enumerate(names, 1)]


class Told:
    """What Python shows in one line, and a notebook as a table."""

    def told(self) -> Mapping[str, str]:
        """What is said of it, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'; '.join(f'{name} {said}' for name, said in self.told().items())}>"

    def _repr_html_(self) -> str:
        import html

        left = 'style="text-align: left; vertical-align: top"'
        shown = ((html.escape(printable(name)), html.escape(printable(said))) for name, said in self.told().items())
        rows = (f"<tr><th {left}>{name}</th><td {left}>{said}</td></tr>" for name, said in shown)
        return f"<table>{''.join(rows)}</table>"


class Values(dict[str, Json], Told):
    """Values by name. A notebook shows them as a table."""

    def told(self) -> dict[str, str]:
        # Floats are ε, δ and μ.
        return {name: rounded_up(value, 6) if isinstance(value, float) else str(value) for name, value in self.items()}
