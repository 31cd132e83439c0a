"""The small faults that mutation testing plants, one by one: other comparisons, constants and orders, and statements
left out.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_OTHER_NAMES = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any",
                "maximum": "minimum", "minimum": "maximum", "zeros": "ones", "ones": "zeros"}  # fmt: skip
_UNWRAPPED = {
    "rint", "sqrt", "isqrt", "abs", "exp", "log", "ceil", "floor", "into_ball", "clip", "nan_to_num", "sorted",
}  # fmt: skip
_DELETED = (ast.Raise, ast.Assert, ast.AugAssign, ast.Break, ast.Continue, ast.Delete)
_SKIPPED = {"annotation", "returns", "bases", "type_comment", "ctx", "type", "exc", "cause", "msg"}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _with(node: Any, **changed: Any) -> Any:
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **changed}), node)


def _but(items: list[Any], index: int, *new: Any) -> list[Any]:
    return [*items[:index], *new, *items[index + 1 :]]


def _faulty(node: Any, parent: ast.AST, place: str) -> Iterator[Any]:
    """What may stand in place of a node."""
    if place in ("test", "ifs") and not isinstance(node, ast.Constant):
        yield from (ast.Constant(True), ast.Constant(False))
    match node:
        case ast.Compare(ops=ops, comparators=compared):
            for i, op in enumerate(ops):
                yield from (_with(node, ops=_but(ops, i, new())) for new in _COMPARISONS[type(op)])
            for i, value in enumerate(compared):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield _with(node, comparators=_but(compared, i, ast.Constant(value.value + "X")))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(op)]())
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for i in range(len(values)):
                rest = _but(values, i)
                yield _with(node, values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(operand=operand) if not (isinstance(parent, ast.keyword) and parent.arg == "axis"):
            # Blocks have two axes: the last one is the second.
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield from (ast.Constant(1.01 * value), ast.Constant(2 * value)) if value else (ast.Constant(1.0),)
        case ast.Call(func=func, args=args, keywords=keywords):
            if (name := _name(func)) in _OTHER_NAMES:
                other = {"id": _OTHER_NAMES[name]} if isinstance(func, ast.Name) else {"attr": _OTHER_NAMES[name]}
                yield _with(node, func=_with(func, **other))
            if name in _UNWRAPPED and args:
                yield args[0]
            for i in range(len(keywords)):
                yield _with(node, keywords=_but(keywords, i))
            if name not in ("min", "max"):
                for i in range(len(args) - 1):
                    yield _with(node, args=[*args[:i], args[i + 1], args[i], *args[i + 2 :]])
        case ast.Slice(lower=lower, upper=upper):
            yield from [_with(node, lower=None)] * (lower is not None) + [_with(node, upper=None)] * (upper is not None)
        case ast.Return(value=value) if value is not None and not isinstance(parent, ast.Lambda):
            yield _with(node, value=ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.stmt() if isinstance(node, _DELETED):
            yield ast.Pass()
        case ast.FunctionDef() | ast.ClassDef():
            for i in range(len(node.decorator_list)):
                yield _with(node, decorator_list=_but(node.decorator_list, i))


def _left_alone(node: ast.AST) -> bool:
    """Texts, messages of errors, and what only types need."""
    match node:
        case ast.JoinedStr():
            return True
        case ast.Call(func=func):
            return _name(func).endswith("Error") or _name(func) == "TypeVar"
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.ClassDef(bases=bases):
            return any(_name(base) == "Protocol" for base in bases)
    return False


def _shown(statement: ast.AST) -> str:
    """A statement in one line; of one with a body only its head."""
    if isinstance(statement, ast.Try):
        return "try:"
    if isinstance(statement, ast.ExceptHandler):
        return f"except {ast.unparse(statement.type)}:" if statement.type else "except:"
    if hasattr(statement, "body"):
        statement = _with(statement, body=[ast.Pass()], **({"orelse": []} if hasattr(statement, "orelse") else {}))
    return " ".join(line.strip() for line in ast.unparse(statement).removesuffix("pass").splitlines()).strip() or "pass"


@dataclass(frozen=True)
class Mutant:
    """One fault.

    function: where it is; "" outside functions. line: of its statement. reach: the first and the last line of what it
    may change. before, after: the statement without the fault and with it.
    """

    module: str
    function: str
    line: int
    reach: tuple[int, int]
    before: str
    after: str

    @property
    def name(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.before, self.after


def planted(module: str, source: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Each mutant of a module, with its tree. The tree is one object: the fault is taken out before the next one."""
    tree, seen = ast.parse(source), set()

    def visit(node: ast.AST, about: Any, scope: Any, function: str) -> Iterator[Mutant]:
        """about: the innermost statement. scope: the innermost function, class or module."""
        for place, value in ast.iter_fields(node):
            for i, child in enumerate(value if isinstance(value, list) else [value]):
                if place in _SKIPPED or not isinstance(child, ast.AST) or _left_alone(child):
                    continue
                whole = isinstance(child, ast.stmt | ast.ExceptHandler)
                about, within, inside = child if whole else about, scope, function
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    within, inside = child, f"{function}.{child.name}".removeprefix(".")
                # What runs at import may change anything.
                reach = (0, 10**6)
                if isinstance(within, ast.FunctionDef):
                    body = getattr(about, "body", None) if about is not within else None
                    reach = about.lineno, max(about.lineno, body[0].lineno - 1) if body else about.end_lineno
                before = _shown(about) if about else ""
                for new in _faulty(child, node, place):
                    ast.fix_missing_locations(ast.copy_location(new, child))
                    setattr(node, place, _but(value, i, new) if isinstance(value, list) else new)
                    made = Mutant(module, inside, about.lineno, reach, before, _shown(new if whole else about))
                    if made.after != before and made not in seen:
                        seen.add(made)
                        yield made
                    setattr(node, place, value)
                yield from visit(child, about, within, inside)

    for made in visit(tree, None, tree, ""):
        yield made, tree


def source_of(module: str) -> str:
    return (ROOT / "dpfc_cli" / module).read_text()


def import_name(module: str) -> str:
    return f"dpfc_cli.{module.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
