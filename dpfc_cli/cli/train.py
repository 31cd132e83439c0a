"""`dpfc train`: a feature set and a budget in, a head and a statement out."""

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import app, display, places, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.trained import show_head, show_plan, show_so_far
from dpfc_cli.folders import heads_folder
from dpfc_cli.training.observer import CHECKING, MATRICES, SOLVING, TUNING, Observer

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.methods.options import Option
    from dpfc_cli.processes import Processes

VALUES: dict[str, tuple[type, str]] = {
    "integer": (int, "N"),
    "number": (float, "NUMBER"),
    "fractions": (str, "FRACTIONS"),
    "choice": (str, "NAME"),
}
"""The type of an option's value on the command line, and what stands for it in the help."""
PRIVACY, METHOD, RUN = "Privacy", "Method", "The run"


def with_method_options(function: Callable[..., None]) -> Callable[..., None]:
    """The command with every option that a method declares, each once, in place of its `**options`.

    A line that names no command, or another one, does without them: importing the methods takes longer than all else
    that `dpfc --help` does.
    """
    declared: Any = function
    own = [each for each in inspect.signature(function).parameters.values() if each.kind != each.VAR_KEYWORD]
    added = [_parameter(name, options) for name, options in _options().items()] if app.named in (None, "train") else []
    declared.__signature__ = inspect.Signature([*own, *added])
    declared.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return function


def _options() -> "dict[str, dict[str, Option]]":
    """For each option that has a flag, its declaration in each method that has it."""
    from dpfc_cli.methods import METHODS

    found: dict[str, dict[str, Option]] = {}
    for method in METHODS.values():
        for name, option in method.declared.items():
            if not option.hidden:
                found.setdefault(name, {})[method.name] = option
    return found


def _parameter(name: str, options: "dict[str, Option]") -> inspect.Parameter:
    """One option of methods as a parameter of the command."""
    kind = next(iter(options.values())).kind
    more: dict[str, Any] = {"help": _said(options), "rich_help_panel": METHOD}
    flag = "--" + name.replace("_", "-")
    if kind == "switch":
        hint: Any = Annotated[bool, typer.Option(flag, **more)]
    else:
        value, metavar = VALUES[kind]
        hint = Annotated[value | None, typer.Option(flag, metavar=metavar, **more)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False if kind == "switch" else None, annotation=hint
    )


def _said(options: "dict[str, Option]") -> str:
    """The help of one option: what it is, then its default, method by method where they differ."""
    texts: dict[str, list[str]] = {}
    for method, option in options.items():
        texts.setdefault(option.help, []).append(method)
    defaults: dict[str, list[str]] = {}
    for method, option in options.items():
        choices = f" ({' or '.join(option.choices)})" if option.choices else ""
        defaults.setdefault(option.default + choices, []).append(method)
    parts = list(texts) if len(texts) == 1 else [f"{', '.join(m)}: {text}" for text, m in texts.items()]
    if len(defaults) == 1:
        parts.append(f"For {', '.join(options)}. Default: {next(iter(defaults))}.")
    else:
        each = [f"{text} ({', '.join(methods)})" for text, methods in defaults.items()]
        parts.append(f"Default: {'; '.join(each)}.")
    return " ".join(parts)


@command("train", when_stopped="Nothing was charged, and no head was written.")
@with_method_options
def train(
    features: Annotated[
        str | None,
        typer.Option(metavar="SET", help="Feature set, by path or name. Default: the newest one."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File of the head. Default: a name of its own in the folder for heads.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="ε to spend: the smaller, the more private.", rich_help_panel=PRIVACY)
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ. Default: min(1e-5, 1/n).", rich_help_panel=PRIVACY)] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "--sigma",
            help="Instead of ε: the standard deviation of the noise, divided by the most that one record (or "
            "person) can change a release, if all releases had the same. 'dpfc budget --sigma' says what that is as ε.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    non_private: Annotated[
        bool,
        typer.Option("--non-private", help="Train without noise, for comparison: ε = ∞.", rich_help_panel=PRIVACY),
    ] = False,
    adjacency: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the guarantee hides. zero-out: whether one record (or person) was used or counted as null. "
            "replace-one: which of two was used; this takes more noise. Their number is public in both. Default: "
            "zero-out.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    allow_large_delta: Annotated[
        bool,
        typer.Option(
            "--allow-large-delta", help="Accept a δ above 1/n, which is refused otherwise.", rich_help_panel=PRIVACY
        ),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="‹methods›. auto is dp-whitened for records with one label, and dp-fc for records with several.",
            rich_help_panel=METHOD,
        ),
    ] = "auto",
    public_features: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help="Feature set of other pictures, which nobody needs to protect, from the same backbone. Their mean "
            "makes the released one more accurate, at no cost in privacy. This helps where epsilon is small and "
            "records and classes are few (dp-whitened).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    public_head: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Public class vectors over the same features: .npz, .safetensors or .npy, or a head of public "
            "records. The training starts from them, at no cost in privacy. This helps where epsilon is small or "
            "classes have few records (dp-whitened). A private head of the same records continues its training: the "
            "new head then claims what both cost.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    tune_on: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help="Such a feature set with labels. Options are chosen by private trainings on it, at no cost in "
            "privacy.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Refuse a training that needs more, such as 8GB. Default: the free memory.",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Reproducible noise, for research. The head then claims no guarantee.", rich_help_panel=RUN),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Whose training it is, for the ledger. Default: your account.", rich_help_panel=RUN),
    ] = None,
    purpose: Annotated[
        str | None, typer.Option(help="What the training is for, for the ledger.", rich_help_panel=RUN)
    ] = None,
    infer_classes: Annotated[
        bool,
        typer.Option(
            "--infer-classes",
            help="Train privately although nobody stated the classes. Their names, which follow from the records, are "
            "then in the head. Better: repeat extract or import with --classes.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Do everything but the training: show plan, guarantee and cost, charge nothing.",
            rich_help_panel=RUN,
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before the charge.", rich_help_panel=RUN)
    ] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="This process is one of several that train together, as srun, mpirun, a Kubernetes JobSet or "
            "JAX_COORDINATOR_ADDRESS has set them up. Each reads its part of the records. Their network must be "
            "private.",
            rich_help_panel=RUN,
        ),
    ] = False,
    full: Full = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=RUN)] = False,
    **options: Any,
) -> None:
    """Train a classifier on a feature set with differential privacy, and charge it to the set's ledger.

    State the privacy once, as --epsilon, --noise-multiplier or --non-private. A charge cannot be taken back.
    """
    from dpfc_cli.training.distributed import Leader, serve
    from dpfc_cli.training.request import requested
    from dpfc_cli.training.run import stands
    from dpfc_cli.training.train import finish, plan

    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if "budget_split" in given:
        given["budget_split"] = _fractions(given["budget_split"])
    found, others = places.feature_set(features)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(_processes(distributed))
        if processes is not None and processes.number:
            serve(processes, found)
            return
        observer = _Observer(stack, found, others, asks=not (yes or dry_run))
        request = requested(
            found,
            heads_folder(),
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            non_private=non_private,
            delta=delta,
            allow_large_delta=allow_large_delta,
            seed=seed,
            adjacency=adjacency,
            options=given,
            method=method,
            public_features=_named(public_features),
            public_head=public_head,
            tune_on=_named(tune_on),
            out=out,
            memory=None if memory is None else _bytes(memory),
            by=by,
            purpose=purpose,
            infer_classes=infer_classes,
            leader=None if processes is None else Leader(processes),
        )
        if others:
            display.say(f"Features: {found.folder} (the newest of {others + 1} sets; --features names another)")
        checked = plan(request, observer)
        if not dry_run:
            show_so_far(checked)
            stop.stands = "'dpfc budget' says whether the training is charged."
            trained = finish(checked, observer)
            stop.stands = stands(trained.charged, trained.path)
        if request.leader is not None:
            request.leader.end()
    if dry_run:
        show_plan(checked, as_json, full)
    else:
        show_head(trained, as_json, full, out is not None, features)


@contextlib.contextmanager
def _processes(distributed: bool) -> Iterator["Processes | None"]:
    """The processes of the training, or None if this one trains alone. They are left in any case."""
    from dpfc_cli.errors import UserError, parameter
    from dpfc_cli.processes import joined, started_with_others

    if not distributed:
        others = started_with_others()
        if others is not None:
            raise UserError(
                f"{others} says that this process is one of several. Each would train, and charge, by itself.",
                f"Let them train together with {parameter('distributed')}, or start one process.",
                code="conflict",
            )
        yield None
        return
    stop.at_once = True
    processes = joined()
    try:
        yield processes
    except BaseException:
        with contextlib.suppress(KeyboardInterrupt):
            processes.leave(together=False)
        raise
    # Ctrl-C ends the waiting for others. It takes nothing back.
    with contextlib.suppress(KeyboardInterrupt):
        processes.leave(together=True)


class _Observer(Observer):
    """Shows on stderr what a training says, and asks before the charge where the set was chosen for the user."""

    def __init__(self, stack: contextlib.ExitStack, found: "FeatureSet", others: int, asks: bool) -> None:
        self._stack, self._found, self._others, self._asks = stack, found, others, asks
        self._advance: display.Stages | None = None

    def warn(self, text: str) -> None:
        display.warn(text)

    def say(self, text: str) -> None:
        display.say(text)

    def progress(self, stage: str, done: int, total: int | None) -> None:
        if self._advance is None:
            self._advance = self._stack.enter_context(display.stages(stage, _unit_of))
        self._advance(stage, done, total)

    def confirm(self, charge: str) -> bool:
        """Ask on a terminal, if there are several sets and none was named."""
        stop.check()
        if not (self._asks and self._others and sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        self._stack.close()
        self._advance = None
        question = f"Charge {charge}, the newest of {self._others + 1} sets?"
        return display.confirmed(question)


def _unit_of(stage: str) -> str:
    """What a stage counts."""
    if stage == CHECKING:
        return "files"
    if stage in (MATRICES, SOLVING):
        return "classes"
    return "trainings" if stage.startswith(TUNING) else "records"


def _named(name: str | None) -> "FeatureSet | None":
    return None if name is None else places.feature_set(name)[0]


def _fractions(text: str) -> tuple[float, ...]:
    from dpfc_cli.errors import UserError, parameter

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"{parameter('budget_split')} '{text}' is not a list of numbers.",
            "Write it like 0.15,0.85.",
            parameter="budget_split",
        ) from None


UNITS = {
    **{"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
}


def _bytes(text: str) -> float:
    from dpfc_cli.errors import UserError, parameter

    match = re.fullmatch(r"([0-9.]+) *([A-Za-z]+)", text.strip())
    try:
        if match:
            return float(match[1]) * UNITS[match[2].upper()]
    except (ValueError, KeyError):
        pass
    raise UserError(
        f"{parameter('memory')} '{text}' is not a size.", "Write it like 8GB or 512MiB.", parameter="memory"
    )
