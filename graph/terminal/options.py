"""The options of the command line, and the order in which its words are read. Pure.

Those that set a field of `AgentContext` are made from the fields; see `mendgraph.graph.configuration.context.Setting`.
"""

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_origin

import annotated_types
import typer
from typer.core import TyperGroup

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.settings import MOST
from mendgraph.graph.terminal.process_end import MEANINGS

MIN_CALLS_PER_SESSION = 100
"""A higher --max-calls raises the session's limit as well. Source: spec 1 section 4."""

_OF_FIELDS = {name: re.split("[ ,/]", setting.option)[0] for name, setting in SETTINGS.items() if setting.option}
"""The options that set a field, by the field's name."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_settings(command: _Function) -> _Function:
    """Give a command, in place of its `**settings`, an option for each field of `AgentContext` that has one."""
    signature = inspect.signature(command)
    parameters = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    new_signature = signature.replace(parameters=[*parameters, *map(_parameter, _OF_FIELDS)])
    command.__signature__ = new_signature  # type: ignore[attr-defined]  # where inspect looks first

    return command


def _parameter(name: str) -> inspect.Parameter:
    field = AgentContext.model_fields[name]
    setting = SETTINGS[name]
    names, _, metavar = setting.option.partition(" ")
    kind: Any = field.annotation
    if setting.choices:
        kind = Literal[setting.choices]

    repeated = get_origin(kind) is tuple
    bounds: dict[str, Any] = {}
    about = field.description or ""

    for item in field.metadata:
        if isinstance(item, annotated_types.Ge):
            bounds["min"] = item.ge
        if isinstance(item, annotated_types.Le) and item.le != MOST:
            bounds["max"] = item.le

    if repeated:
        about = f"Once for each: {about[:1].lower()}{about[1:]}".replace("allowed_hosts", "--allow-host")
    elif field.default not in {None, ""}:
        if not isinstance(field.default, bool):
            default = field.default
        elif field.default:
            default = "on"
        else:
            default = "off"

        about += f" Default: {default}."

    option = typer.Option(*names.split(","), metavar=metavar or None, help=about, **bounds)
    annotation: Any = kind | None
    if repeated:
        annotation = list[str] | None

    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that options of the command line set; the others keep the defaults of `AgentContext`.

    Raises typer.BadParameter, which names the option, where a run can have no such value.
    """
    settings: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, list) and value:
            settings[name] = tuple(value)
        elif value is not None and value != []:
            settings[name] = value

    if settings:
        from mendgraph.graph.configuration.loading import value_problems

        for path, problem in value_problems(settings):
            message = problem.removeprefix(path[0]).lstrip(": ")
            raise typer.BadParameter(message, param_hint=f"'{_OF_FIELDS[path[0]]}'")

    if settings.get("fallback_models"):
        from mendgraph.nodes.call_model.endpoint import models_in_order

        models = models_in_order(settings.get("model"), settings.get("base_url"), settings["fallback_models"])
        if isinstance(models, str):
            raise typer.BadParameter(models, param_hint="'--fallback'")

    if (calls := settings.get("max_calls_per_turn")) is not None:
        settings["max_calls_per_session"] = max(calls, MIN_CALLS_PER_SESSION)

    return settings


def merged(below: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `settings` of the command line over those `below`: a session may call as often as one turn.

    What the files deny stays denied.
    """
    from mendgraph.graph.configuration.loading import overlay

    session = "max_calls_per_session"
    turn = "max_calls_per_turn"

    if session in below and turn in settings:
        return {**overlay(below, settings), session: max(below[session], settings[turn])}

    return overlay(below, settings)


Root: TypeAlias = Annotated[Path, typer.Option(exists=True, file_okay=False, metavar="DIR", help="Folder to work in.")]
WorkspaceConfig: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--workspace-config/--no-workspace-config",
        help="Read the folder's own .mendgraph.toml (default: yes).",
        show_default=False,
    ),
]
Durability: TypeAlias = Annotated[
    Literal["sync", "async", "exit"] | None,
    typer.Option(
        help="When a step is on the disk: before the next one begins, so that a kill loses nothing (sync, the default);"
        " while the next one runs (async: a kill may lose the last step); when the turn ends (exit: it loses the turn)."
        " Changes of files are always recorded before they happen."
    ),
]
Debug: TypeAlias = Annotated[
    bool,
    typer.Option("--debug", help="Calls, results, refused paths (JSON lines) and the log's path on standard error."),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, and nothing else there.")
]
JsonLines: TypeAlias = Annotated[
    bool,
    typer.Option("--json-lines", help="Each event as a JSON object on a line, as it happens; the last has the result."),
]
Task: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="TASK", help="What to do; `-` reads it from the input.")
]
_A_RUN = "The run, by its id or the beginning of it."


def _run(default: str = "") -> Any:
    about = f"{_A_RUN} {default}".rstrip()
    return typer.Argument(metavar="RUN", help=about, show_default=False)


Run: TypeAlias = Annotated[str, _run()]
NewestRun: TypeAlias = Annotated[str, _run("Default: the newest one.")]
RunToResume: TypeAlias = Annotated[str, _run("Default: the newest one that can go on.")]
RunToTalkOf: TypeAlias = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help=f"Go on with this run. {_A_RUN}")
]
FromStep: TypeAlias = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Take back this step and those after it (default: all).", show_default=False),
]
AtStep: TypeAlias = Annotated[
    int, typer.Option("--at", min=0, metavar="STEP", help="The new run begins after this step; see `runs show`.")
]
SkipChanged: TypeAlias = Annotated[
    bool,
    typer.Option("--skip-changed", help="Leave files that were changed since as they are, and restore the others."),
]
Patch: TypeAlias = Annotated[
    bool, typer.Option("--patch", help="Show what was taken back of it, for `apply`, or else what it has changed.")
]
Keep: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="Keep the newest N runs.")]
OlderThan: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=36_500, metavar="DAYS", help="Remove only runs that were last at work so long ago."),
]
Unfinished: TypeAlias = Annotated[
    bool, typer.Option("--unfinished", help="Remove runs as well that can go on; without it they are kept.")
]
Days: TypeAlias = Annotated[
    int, typer.Option(min=1, max=36_500, metavar="N", help="How many days back, today included; two months are kept.")
]
Forget: TypeAlias = Annotated[bool, typer.Option("--forget", help="Stop trusting it.")]
Note: TypeAlias = Annotated[str, typer.Argument(metavar="[ID]", help="The note.", show_default=False)]
PermissionIds: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The permissions.", show_default=False)
]
AllPermissions: TypeAlias = Annotated[bool, typer.Option("--all", help="All permissions.")]
Everything: TypeAlias = Annotated[bool, typer.Option("--all", help="All notes.")]
TestFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the test (default: tests).", show_default=False),
]
TestName: TypeAlias = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of test and cassette (default: run_ID).", show_default=False)
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Write over files that are there.")]


Unattended: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--unattended",
        help="Work on a branch of its own, without questions, with larger limits; changes have to be checked.",
    ),
]
Commit: TypeAlias = Annotated[
    bool, typer.Option("--commit", help="With --unattended: commit to the branch what has finished and was checked.")
]
PrBody: TypeAlias = Annotated[
    str,
    typer.Option(
        "--pr-body",
        metavar="FILE",
        help="With --unattended: write what was done as the text of a pull request; `-` is standard output.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Options:
    """The options of a run. `settings` are the fields of `AgentContext` that were given.

    `as_json` is an object for programs in place of words; with `json_lines` it is the last of many lines.
    `workspace_file` says whether the folder's own settings are read. `given` are the names of those options that a new
    run is begun with. `run_id` is a run to take up, None for a new one. `unattended` is what an unattended run wants:
    a `commit`, and where the `report` goes; None for a run that a person watches.
    """

    root: Path
    as_json: bool
    debug: bool
    settings: Mapping[str, Any]
    durability: Literal["sync", "async", "exit"] = "sync"
    given: tuple[str, ...] = ()
    run_id: str | None = None
    json_lines: bool = False
    workspace_file: bool = True
    unattended: Mapping[str, Any] | None = None


def options_without_a_task(context: typer.Context) -> Options:
    """The options of a command that begins no run: those of a run would have no effect, so they are refused."""
    chosen = options_without_events(context)
    if chosen.given:
        context.fail(f"{chosen.given[0]} is for what works on a task (run, chat, resume)")

    return chosen


def options_without_events(context: typer.Context) -> Options:
    """The options of a command that works on no task, and so tells no events."""
    chosen: Options = context.obj
    if chosen.json_lines:
        context.fail("--json-lines is for what works on a task (run, chat, resume); use --json here")

    return chosen


def at_terminal() -> bool:
    """Whether a person types the input and reads the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


_ANSWERED_AT_ONCE = frozenset({"-h", "--help", "--version"})
"""Options that need no task."""

_TASK_COMMAND = "run"
"""The command that is meant where none is named. Its words are a task, so all options belong to the program."""


class TaskGroup(TyperGroup):
    """A group whose options may stand anywhere, and whose first words are a task unless they name a command."""

    def format_epilog(self, _: Any, formatter: Any) -> None:
        """What the exit codes mean."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hand the words on in the order that the parser expects."""
        general = {}
        for param in self.params:
            for name in (*param.opts, *param.secondary_opts):  # a switch's second name, such as --no-evidence
                general[name] = not getattr(param, "is_flag", True)

        ordered = in_order(args, set(self.commands), general)

        if ordered[-1:] == [_TASK_COMMAND] != args[-1:] and (ctx.resilient_parsing or at_terminal()):
            # Options alone: a person means a chat, and shell completion offers commands as well.
            ordered.pop()
            if not ctx.resilient_parsing:
                ordered.append("chat")

        if "--" in ordered and not ctx.resilient_parsing and {"--", _TASK_COMMAND}.isdisjoint(args):
            words = ordered[ordered.index("--") + 1 :]
            # Other scripts than ours write a whole sentence without a space.
            if all(word.isascii() and word.split() == [word] != ["-"] for word in words):
                from mendgraph.nodes.language.names import closest_names

                near = " or ".join(closest_names(words[0], self.commands, 2))
                meant = "."
                if near:
                    meant = f"; did you mean {near}?"

                task = shlex.quote(" ".join(words))
                ctx.fail(f"{words[0]!r} is no command{meant} As a task it is: mendgraph run -- {task}")

        return super().parse_args(ctx, ordered)


def in_order(arguments: Sequence[str], commands: Collection[str], general: Mapping[str, bool]) -> list[str]:
    """The general options, then the command (`run` where the first word is none), then all other words.

    `general` are the options that stand before a command, each with whether it takes the next argument as its value;
    where that is missing the line ends with the option, which the parser then names. A command's own options stay with
    it. The words of a task, and those after `--`, are no options whatever they are.
    """
    options: list[str] = []
    words: list[str] = []
    literal: list[str] = []
    remaining = iter(arguments)

    for argument in remaining:
        is_command = words[:1] != [_TASK_COMMAND] and not set(words[:1]).isdisjoint(commands)

        if argument == "--":
            literal = [*remaining]
        elif (
            argument == "-"
            or not argument.startswith("-")
            or (is_command and argument.partition("=")[0] not in general)
        ):
            words.append(argument)
        else:
            options.append(argument)

            if general.get(argument, False):
                value = [*islice(remaining, 1)]
                if not value:
                    return options

                options += value

    if not words and not literal and (not options or _ANSWERED_AT_ONCE & set(options)):
        return options

    first = _TASK_COMMAND
    if words and words[0] in commands:
        first = words.pop(0)

    if first == _TASK_COMMAND:
        literal = [*words, *literal]
        words = []

    if literal:
        literal.insert(0, "--")

    return [*options, first, *words, *literal]
