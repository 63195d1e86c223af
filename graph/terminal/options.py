"""The options of the command line, and the order in which its words are read. Pure.

Those that set a field of `AgentContext` are made from the fields; see `mendgraph.graph.configuration.context.Setting`.
"""

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.presets import HOSTED
from mendgraph.graph.terminal.output import LONGEST_LINE
from mendgraph.graph.terminal.process_end import MEANINGS
from mendgraph.nodes.language.display import one_line

if TYPE_CHECKING:
    from pydantic import ValidationError

MIN_CALLS_PER_SESSION = 100
"""A higher --max-calls raises the session's limit as well. Source: spec 1 section 4."""

_OF_FIELDS = {name: re.split("[ ,/]", setting.option)[0] for name, setting in SETTINGS.items() if setting.option}
"""The options that set a field, by the field's name."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_settings(command: _Function) -> _Function:
    """Replace the `**settings` of a command with an option for each field of `AgentContext` that has one."""
    signature = inspect.signature(command)
    parameters = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    new_signature = signature.replace(parameters=[*parameters, *map(_parameter, _OF_FIELDS)])
    command.__signature__ = new_signature  # type: ignore[attr-defined]  # where inspect looks first

    return command


def _parameter(name: str) -> inspect.Parameter:
    """Return the option for a field; `settings_of` checks its bounds."""
    field = AgentContext.model_fields[name]
    setting = SETTINGS[name]
    names, _, metavar = setting.option.partition(" ")
    kind: Any = field.annotation
    if setting.choices:
        kind = Literal[setting.choices]

    about = field.description or ""
    if get_origin(kind) is tuple:
        kind = list[str]
        about = f"{about.replace('allowed_hosts', '--allow-host')} May be repeated."
    elif isinstance(field.default, bool):
        about += f" Default: {('off', 'on')[field.default]}."
    elif field.default not in {None, ""}:
        about += f" Default: {field.default}."

    option = typer.Option(*names.split(","), metavar=metavar or None, help=about, rich_help_panel=setting.panel)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that options of the command line set; the others keep the defaults of `AgentContext`.

    Raises:
        typer.BadParameter: a value is not valid for a run; the error names the option.
    """
    settings = {name: value for name, value in options.items() if value not in (None, [])}
    for name, value in settings.items():
        if isinstance(value, list):
            settings[name] = tuple(value)

    if settings:
        from mendgraph.graph.configuration.loading import value_problems

        for path, problem in value_problems(settings):
            message = problem.removeprefix(path[0]).lstrip(": ")
            raise typer.BadParameter(_with_value(message, settings[path[0]]), param_hint=f"'{_OF_FIELDS[path[0]]}'")

    if settings.get("fallback_models"):
        from mendgraph.nodes.call_model.endpoint import models_in_order

        models = models_in_order(settings.get("model"), settings.get("base_url"), settings["fallback_models"])
        if isinstance(models, str):
            raise typer.BadParameter(models, param_hint="'--fallback'")

    if (calls := settings.get("max_calls_per_turn")) is not None:
        settings["max_calls_per_session"] = max(calls, MIN_CALLS_PER_SESSION)

    return settings


def _with_value(problem: str, value: object) -> str:
    """Return the problem with the value that breaks a bound; any other value may be a secret."""
    if problem.startswith("must be "):
        return f"{value!r} {problem}"

    return problem


def merged(below: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `settings` of the command line over those `below`: a session may call as often as one turn.

    What the files deny stays denied.
    """
    from mendgraph.graph.configuration.loading import overlay

    values = overlay(below, settings)
    session = "max_calls_per_session"
    if session in below and "max_calls_per_turn" in settings:
        values = {**values, session: max(below[session], settings["max_calls_per_turn"])}

    return values


Root: TypeAlias = Annotated[Path, typer.Option(exists=True, file_okay=False, metavar="DIR", help="Folder to work in.")]
WorkspaceConfig: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--workspace-config/--no-workspace-config",
        help="Read the folder's .mendgraph.toml (default: yes).",
        show_default=False,
    ),
]
Durability: TypeAlias = Annotated[
    Literal["sync", "async", "exit"] | None,
    typer.Option(
        rich_help_panel="Storage",
        help="When a step is written to disk. sync (the default): before the next one; a kill loses nothing. async:"
        " while the next one runs; a kill may lose the last step. exit: when the turn ends; a kill loses the turn. File"
        " changes are always recorded first.",
    ),
]
ContinueLast: TypeAlias = Annotated[
    bool, typer.Option("--continue", "-c", help="Continue the last chat or task of this folder.")
]
Debug: TypeAlias = Annotated[
    bool,
    typer.Option("--debug", help="Write events (JSON lines) and the path of the log to standard error."),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Write one JSON object to standard output, and nothing else.")
]
JsonLines: TypeAlias = Annotated[
    bool,
    typer.Option("--json-lines", help="Write each event as a line of JSON; the last line has the result."),
]
Task: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="TASK", help="What to do; `-` reads standard input.")
]
Images: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--image",
        exists=True,
        dir_okay=False,
        rich_help_panel="Model",
        metavar="FILE",
        help="Show the model this image with the task (PNG, JPEG, GIF, WebP); may be repeated.",
        show_default=False,
    ),
]
_A_RUN = "Id of the run, or its first characters."


def _run(default: str = "") -> Any:
    about = f"{_A_RUN} {default}".rstrip()
    return typer.Argument(metavar="RUN", help=about, show_default=False)


Run: TypeAlias = Annotated[str, _run()]
NewestRun: TypeAlias = Annotated[str, _run("Default: the newest one.")]
RunToResume: TypeAlias = Annotated[str, _run("Default: the newest one that can continue.")]
RunToChatWith: TypeAlias = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help=f"Continue this run. {_A_RUN}")
]
FromStep: TypeAlias = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Undo this step and later ones (default: all).", show_default=False),
]
AtStep: TypeAlias = Annotated[
    int, typer.Option("--at", min=0, metavar="STEP", help="Start after this step; see `runs show`.")
]
SkipChanged: TypeAlias = Annotated[
    bool,
    typer.Option("--skip-changed", help="Skip files that have changed since, and restore the others."),
]
Patch: TypeAlias = Annotated[bool, typer.Option("--patch", help="Show the changes, like `mendgraph diff`.")]
Keep: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="Keep the newest N runs.")]
OlderThan: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=36_500, metavar="DAYS", help="Delete only runs that last worked so long ago."),
]
Unfinished: TypeAlias = Annotated[bool, typer.Option("--unfinished", help="Also delete runs that can continue.")]
Days: TypeAlias = Annotated[
    int, typer.Option(min=1, max=36_500, metavar="N", help="Number of days, including today; two months are stored.")
]
Forget: TypeAlias = Annotated[bool, typer.Option("--forget", help="Stop trusting the files.")]
Note: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the note.", show_default=False)]
PermissionIds: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Ids of the permissions.", show_default=False)
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
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


Unattended: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--unattended",
        rich_help_panel="Unattended runs",
        help="Work on a new branch, without questions, with larger limits. Changes must be checked.",
    ),
]
Commit: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--commit",
        rich_help_panel="Unattended runs",
        help="With --unattended: commit finished and checked changes to the branch.",
    ),
]
PrBody: TypeAlias = Annotated[
    str,
    typer.Option(
        "--pr-body",
        rich_help_panel="Unattended runs",
        metavar="FILE",
        help="With --unattended: write the text of a pull request; `-` is standard output.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Options:
    """The options of a command line. `settings` are the fields of `AgentContext` that it sets.

    `as_json`: objects for programs in place of text; with `json_lines` also a line for each event. `run_options` are
    the names of the given options that only a run has. `run_id` is the run to continue, None for a new one.
    `workspace_file`: the folder's own settings are read. `unattended`: the `commit` and `report` options.
    `images` are files for the model. `continue_last`: continue the newest run of the folder.
    """

    root: Path
    as_json: bool
    debug: bool
    settings: Mapping[str, Any]
    durability: Literal["sync", "async", "exit"] = "sync"
    run_options: tuple[str, ...] = ()
    run_id: str | None = None
    json_lines: bool = False
    workspace_file: bool = True
    unattended: Mapping[str, Any] | None = None
    images: tuple[Path, ...] = ()
    continue_last: bool = False


def options_without_a_task(context: typer.Context) -> Options:
    """Return the options of a command that starts no run; refuse options of a run, which would have no effect."""
    chosen = options_without_events(context)
    if chosen.run_options:
        context.fail(f"{chosen.run_options[0]} is an option of run, chat and resume")

    return chosen


def options_without_events(context: typer.Context) -> Options:
    """Return the options of a command that has no events."""
    chosen: Options = context.obj
    if chosen.json_lines:
        context.fail("--json-lines is an option of run, chat and resume; use --json here")

    return chosen


def at_terminal() -> bool:
    """Return whether a person types the input and reads the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


_HELP = frozenset({"-h", "--help"})
_NEED_NO_TASK = _HELP | {"--version"}
"""Options without a task."""

_TASK_COMMAND = "run"
"""The default command. Its words are a task, so all options belong to the program."""


class TaskGroup(TyperGroup):
    """A group whose options may stand anywhere, and whose first words are a task unless they name a command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options that are not for a run alone."""
        self.format_commands(ctx, formatter)
        _write_options(ctx, formatter, [param for param in self.params if not getattr(param, "rich_help_panel", None)])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass the words to the parser in the order that it expects."""
        if args[:1] == [_TASK_COMMAND] and "--" not in args and not _HELP.isdisjoint(args[-1:]):
            return super().parse_args(ctx, [_TASK_COMMAND, args[-1]])

        takes_value = {}
        for param in self.params:
            for name in (*param.opts, *param.secondary_opts):  # a switch's second name, such as --no-evidence
                takes_value[name] = not getattr(param, "is_flag", True)

        ordered = in_order(args, set(self.commands), takes_value)

        if ordered[-1:] == [_TASK_COMMAND] != args[-1:] and (ctx.resilient_parsing or at_terminal()):
            ordered.pop()  # options alone: a person means a chat, and shell completion offers commands as well
            if not ctx.resilient_parsing:
                ordered.append("chat")

        if "--" in ordered and not ctx.resilient_parsing and {"--", _TASK_COMMAND}.isdisjoint(args):
            self._refuse_unknown_command(ctx, ordered)

        return super().parse_args(ctx, ordered)

    def _refuse_unknown_command(self, context: Any, ordered: Sequence[str]) -> None:
        """Refuse words that look like a mistyped command; other scripts than ours write a sentence without a space."""
        start = ordered.index("--") + 1
        words = ordered[start:]
        if words[0].startswith("/") or not all(word.isascii() and word.split() == [word] != ["-"] for word in words):
            return

        from mendgraph.nodes.language.names import closest_names

        remedy = "."
        if near := closest_names(words[0], self.commands, 2):
            remedy = f"; did you mean {' or '.join(near)}?"

        as_task = shlex.join(["mendgraph", *ordered[:start], " ".join(words)])
        context.fail(f"{words[0]!r} is not a command{remedy} To use it as a task, type `{as_task}`")


class Command(TyperCommand):
    """A command whose help names its arguments as the usage line does: `RUN` is required, `[RUN]` is not."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line; typer writes a required argument as `{RUN}`."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        _write_options(ctx, formatter, self.get_params(ctx))


class CommandGroup(typer.Typer):
    """Commands of this program, below one word. With `invoke_without_command` the word is a command as well."""

    def __init__(self, *, invoke_without_command: bool = False, **options: Any) -> None:
        options.setdefault("subcommand_metavar", "[COMMAND]" if invoke_without_command else "COMMAND")
        super().__init__(invoke_without_command=invoke_without_command, rich_markup_mode=None, **options)

    def command(self, *names: Any, **options: Any) -> Callable[[_Function], _Function]:
        """Register the decorated function as a command."""
        return super().command(*names, **{"cls": Command, **options})


class TaskCommand(Command):
    """The command for one task, whose help lists all options of a run in groups, and the exit codes."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the whole program."""
        _write_options(ctx, formatter, [*self.params, *ctx.parent.command.params])

    def format_epilog(self, _: Any, formatter: Any) -> None:
        """Write the meanings of the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


def usage_problem(error: typer.TyperException) -> str:
    """Return what is wrong in the command line, and the command whose help explains it."""
    if isinstance(error, typer.BadParameter) and error.__cause__ is not None:
        from mendgraph.graph.configuration.settings import value_words

        cause = cast("ValidationError", error.__cause__)
        [detail, *_] = cause.errors()
        error.message = _with_value(value_words(detail), detail["input"])

    command = "mendgraph"
    if context := getattr(error, "ctx", None):
        command = context.command_path
    if command == "mendgraph":
        command = "mendgraph run"

    message = one_line(error.format_message().replace("Value error, ", ""), LONGEST_LINE).rstrip(".")
    return f"{message} (see `{command} --help`)"


_HOSTED_LIMITS = (
    f"With a hosted model, the defaults are {HOSTED['max_calls_per_turn']} calls,"
    f" {HOSTED['max_input_tokens_per_session']:,} input tokens and {HOSTED['max_output_tokens_per_session']:,} output"
    " tokens."
)


def _write_options(context: Any, formatter: Any, params: Iterable[Any]) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        record = param.get_help_record(context)
        panel = param.rich_help_panel or "Options"
        if param.param_type_name == "argument":
            record = (param.metavar, param.help)
            panel = "Arguments"
        if record is not None:
            panels.setdefault(panel, []).append(record)

    for panel, records in panels.items():
        with formatter.section(panel):
            if panel == "Limits":
                formatter.write_text(_HOSTED_LIMITS)

            formatter.write_dl(records)


def in_order(arguments: Sequence[str], commands: Collection[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Return the program's options, then the command (`run` if the first word is none), then all other words.

    `takes_value` says of each option of the program whether the next argument is its value; if that is missing the line
    ends with the option, which the parser then names. A command's own options stay with it. The words of a task, and
    those after `--`, are never options.
    """
    options: list[str] = []
    words: list[str] = []
    literal: list[str] = []
    remaining = iter(arguments)

    for argument in remaining:
        is_word = argument == "-" or not argument.startswith("-")
        in_command = words[:1] != [_TASK_COMMAND] and not set(words[:1]).isdisjoint(commands)

        if argument == "--":
            literal = [*remaining]
        elif is_word or (in_command and argument.partition("=")[0] not in takes_value):
            words.append(argument)
        else:
            options.append(argument)
            if takes_value.get(argument, False):
                value = next(remaining, None)
                if value is None:
                    return options

                options.append(value)

    if not words and not literal and (not options or _NEED_NO_TASK & set(options)):
        return options

    command = _TASK_COMMAND
    if words and words[0] in commands:
        command = words.pop(0)

    if command == _TASK_COMMAND:
        literal = [*words, *literal]
        words = []

    if literal:
        literal.insert(0, "--")

    return [*options, command, *words, *literal]
