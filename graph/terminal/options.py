"""The options of the command line: their names, bounds and help, and what they mean to a run. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer
from typer.core import TyperGroup

MIN_CALLS_PER_SESSION = 100
"""A higher --max-calls raises the session's limit as well. Source: spec 1 section 4."""

KEPT_DAYS = 62
"""For how long the spending book remembers a call."""

LEAST_COST_USD = 0.0001
"""No model answers for less."""


def unreachable_host(private: Sequence[str], hosts: Sequence[str]) -> str | None:
    """The first of the private hosts that none of the allowed hosts covers, so that it would never be asked."""
    from nodes.execute_tools.environment.url_rules import HostPattern, parse_host_entry

    def meets(one: HostPattern, other: HostPattern) -> bool:
        same = one.has_host(sample(other)) or other.has_host(sample(one))
        return same and (not one.port or other.has_port(one.port))

    def sample(pattern: HostPattern) -> str:
        return f"any.{pattern.host}" if pattern.subdomains else pattern.host

    allowed = [each for each in map(parse_host_entry, hosts) if each]
    for entry in private:
        pattern = parse_host_entry(entry)
        if pattern and not any(meets(pattern, each) for each in allowed):
            return entry
    return None


def fallback_problem(model: str | None, base_url: str | None, fallbacks: Sequence[str]) -> str | None:
    """What is wrong with the fallback models, None where nothing is."""
    from nodes.call_model.fallbacks import FallbackProblem, models_in_order

    found = models_in_order(model, base_url, fallbacks)
    return found.message if isinstance(found, FallbackProblem) else None


def _account(name: str | None) -> str | None:
    from nodes.call_model.limits import account_problem

    if name is not None and (problem := account_problem(name)) is not None:
        raise typer.BadParameter(problem)
    return name


def _hosts(entries: list[str] | None) -> list[str] | None:
    return _judged(entries, "hosts")


def _private_hosts(entries: list[str] | None) -> list[str] | None:
    return _judged(entries, "allow_private")


def _effort(word: str | None) -> str | None:
    if word is not None and not re.fullmatch("[a-z]{1,20}", word):
        raise typer.BadParameter("it is one word of small letters, such as low, medium or high")
    return word


def _judged(entries: list[str] | None, field: Literal["hosts", "allow_private"]) -> list[str] | None:
    if entries:
        from nodes.execute_tools.environment.url_rules import NetworkRules, rule_problems

        chosen = tuple(entries)
        rules = NetworkRules(hosts=chosen) if field == "hosts" else NetworkRules(allow_private=chosen)
        for problem in rule_problems(rules):
            raise typer.BadParameter(problem)
    return entries


Root: TypeAlias = Annotated[Path, typer.Option(exists=True, file_okay=False, metavar="DIR", help="Folder to work in.")]
Mode: TypeAlias = Annotated[
    Literal["read-only", "ask", "auto"] | None,
    typer.Option(help="No changes; changes that you approve; or changes inside the rules (the default)."),
]
Model: TypeAlias = Annotated[str | None, typer.Option(metavar="NAME", help="Model; `local` is the embedded one.")]
BaseUrl: TypeAlias = Annotated[str | None, typer.Option(metavar="URL", help="OpenAI-compatible endpoint.")]
Protocol: TypeAlias = Annotated[
    Literal["text", "native", "auto"] | None, typer.Option(help="How tool calls travel (default: auto).")
]
MaxCalls: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=1000, metavar="N", help="Model calls in one turn (default: 10).")
]
MaxSteps: TypeAlias = Annotated[int | None, typer.Option(min=1, metavar="N", help="Rounds of tool calls in one turn.")]
MaxSeconds: TypeAlias = Annotated[
    float | None, typer.Option(min=0.1, metavar="S", help="Seconds in model calls and tools in one turn.")
]
MaxCostUsd: TypeAlias = Annotated[
    float | None,
    typer.Option(min=LEAST_COST_USD, metavar="USD", help="Cost of one session; the model needs a known price."),
]
MaxCostUsdPerDay: TypeAlias = Annotated[
    float | None,
    typer.Option(min=LEAST_COST_USD, metavar="USD", help="Cost of one day (UTC), all your runs together."),
]
Account: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--account",
        metavar="NAME",
        callback=_account,
        help="Whose spending it is, for limits over many runs: a project, a batch.",
    ),
]
MaxCostUsdPerAccount: TypeAlias = Annotated[
    float | None, typer.Option(min=LEAST_COST_USD, metavar="USD", help="Cost of all runs of the account, ever.")
]
MaxTokensPerAccount: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, max=2**53, metavar="N", help="Tokens of all runs of the account, in and out, ever."),
]
MaxTokensPerDay: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, max=2**53, metavar="N", help="Tokens of one day (UTC), in and out, all your runs together."),
]
WrapUp: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--wrap-up/--no-wrap-up",
        help="Keep one call for a large model's account of what is done and left when a limit ends it (default: do).",
    ),
]
Fallback: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--fallback",
        metavar="MODEL",
        help="A model to ask where the one before fails: a name, `local` or 'name @ https://host/v1'; may be repeated.",
    ),
]
WindowTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1_024, max=2**53, metavar="N", help="The model's window, in and out (default: by its name)."),
]
Temperature: TypeAlias = Annotated[
    float | None, typer.Option(min=0, max=2, metavar="T", help="Sampling temperature (default: the model's own).")
]
ReasoningEffort: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="EFFORT",
        callback=_effort,
        help="How long a reasoning model thinks, such as low or high.",
    ),
]
Seed: TypeAlias = Annotated[int | None, typer.Option(min=0, max=2**31 - 1, metavar="N", help="Sampling seed.")]
Role: TypeAlias = Annotated[
    Literal["reader", "editor", "operator"] | None,
    typer.Option(metavar="ROLE", help="Tools it may use: reader, editor or operator (default: all)."),
]
AllowProgram: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--allow-program", metavar="NAME", help="A program that it may run, sandboxed; may be repeated."),
]
AllowHost: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="HOST", callback=_hosts, help="A host that it may read from; may be repeated."
    ),
]
AllowPrivateHost: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-private-host",
        metavar="HOST",
        callback=_private_hosts,
        help="An allowed host that may have a private address; may be repeated.",
    ),
]
Check: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--check",
        metavar="COMMAND",
        help="A command that must succeed before it is finished, such as 'pytest -q'; sandboxed; may be repeated.",
    ),
]
Evidence: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--evidence/--no-evidence", help="Run the examples of code and task, sandboxed, to judge edits (default: do)."
    ),
]
ProjectNotes: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--project-notes/--no-project-notes", help="Tell a large model what AGENTS.md or CLAUDE.md says (default: do)."
    ),
]
WorkspaceConfig: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--workspace-config/--no-workspace-config",
        help="Heed the folder's own .mendgraph.toml (default: do).",
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
Run: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help=_A_RUN)]
RunToResume: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help=f"{_A_RUN} Default: the newest one that can go on.", show_default=False)
]
RunToTalkOf: TypeAlias = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Go on with this run, by its id or the beginning of it.")
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
Keep: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="Keep the newest N runs.")]
OlderThan: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=36_500, metavar="DAYS", help="Remove only runs that were last at work so long ago."),
]
Unfinished: TypeAlias = Annotated[
    bool, typer.Option("--unfinished", help="Remove runs as well that can go on; without it they are kept.")
]
Days: TypeAlias = Annotated[
    int, typer.Option(min=1, max=KEPT_DAYS, metavar="N", help="How many days back, today included.")
]
AccountShown: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--account", metavar="NAME", callback=_account, help="Only what counts for this account.", show_default=False
    ),
]
Accounts: TypeAlias = Annotated[
    bool, typer.Option("--accounts", help="A line for each account, with all that it has ever used.")
]
Forget: TypeAlias = Annotated[bool, typer.Option("--forget", help="Trust it no more.")]
SettingsFile: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="FILE", help="The file (default: yours and the folder's).", show_default=False)
]
Port: TypeAlias = Annotated[
    int, typer.Option(min=0, max=65_535, metavar="N", help="Port on 127.0.0.1; 0 takes a free one.")
]
TestFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the test (default: tests).", show_default=False),
]
TestName: TypeAlias = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of test and cassette (default: run_ID).", show_default=False)
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Write over files that are there.")]
CassetteFolder: TypeAlias = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of the cassettes.")]
CassettePath: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="The cassette, a YAML file.")]


@dataclass(frozen=True)
class Options:
    """The options of a run. `settings` are the fields of `AgentContext` that were given.

    `as_json` is an object for programs in place of words; with `json_lines` it is the last of many lines.

    `workspace_file` says whether the folder's own settings are read.

    `given` are the names of those options that a new run is begun with. `run_id` is a run to take up, None for a new
    one.
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


_OTHER_NAMES = {
    "fallback": "fallback_models",
    "allow_program": "allowed_programs",
    "allow_host": "allowed_hosts",
    "allow_private_host": "allowed_private_hosts",
    "check": "checks",
}
"""Options that have another name than their field of `AgentContext`."""

_NO_FIELDS = frozenset(
    {"context", "root", "max_calls", "workspace_config", "durability", "debug", "as_json", "json_lines", "version"}
)
"""Parameters of the command line that are no such field."""


def fields_in(said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `AgentContext` by name, of the command line's parameters; an option without values is not given."""
    return {
        _OTHER_NAMES.get(name, name): (tuple(value) or None) if isinstance(value, list) else value
        for name, value in said.items()
        if name not in _NO_FIELDS
    }


def settings_of(max_calls: int | None, **settings: Any) -> Mapping[str, Any]:
    """The given ones among these settings; the others keep the defaults of `AgentContext`."""
    if max_calls is not None:
        settings["max_calls_per_turn"] = max_calls
        settings["max_calls_per_session"] = max(max_calls, MIN_CALLS_PER_SESSION)
    return {name: value for name, value in settings.items() if value is not None}


ANSWERED_AT_ONCE = frozenset({"-h", "--help", "--version"})
"""Options that need no task."""

NESTED = "model"
"""The command that has commands and options of its own, and none of the others."""

TASK_COMMAND = "run"
"""The command that is meant where none is named. Its words are a task, so all options belong to the program."""


class TaskGroup(TyperGroup):
    """A group whose options may stand anywhere, and whose first word is a task unless it is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hand the words on in the order that the parser expects."""
        general = {
            name: not getattr(each, "is_flag", True)
            for each in self.params
            for name in (*each.opts, *each.secondary_opts)  # a switch's second name, such as --no-evidence
        }
        return super().parse_args(ctx, in_order(args, set(self.commands), general))


def in_order(arguments: Sequence[str], commands: Collection[str], general: Mapping[str, bool]) -> list[str]:
    """The general options, then the command (`run` where the first word is none), then all other words.

    `general` are the options that stand before a command, each with whether it takes the next argument as its value;
    where that is missing the line ends with the option, which the parser then names. A command's own options stay with
    it. What follows the nested command is left alone, and so is a line that needs no task.
    """
    options: list[str] = []
    words: list[str] = []
    literal: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        own = bool(words) and words[0] in commands and words[0] != TASK_COMMAND
        if argument == "--":
            literal += rest
        elif argument == NESTED and not words:
            return [*options, argument, *rest]
        elif argument == "-" or not argument.startswith("-") or (own and argument.partition("=")[0] not in general):
            words.append(argument)
        else:
            valued = general.get(argument, False)
            value = [*islice(rest, valued)]
            options += [argument, *value]
            if valued and not value:
                return options
    if not words and not literal and (not options or ANSWERED_AT_ONCE & set(options)):
        return options
    return [*options, *_command_first(words, literal, commands)]


def _command_first(words: Sequence[str], literal: Sequence[str], commands: Collection[str]) -> list[str]:
    """The command and what follows it; the words of a task, and those after `--`, are no options whatever they are."""
    first, *_ = [*words, *literal, ""]
    if first not in commands:
        return [TASK_COMMAND, *_after_a_mark([*words, *literal])]
    words, literal = (words[1:], literal) if words else ([], literal[1:])
    if first == TASK_COMMAND:
        words, literal = [], [*words, *literal]
    return [first, *words, *_after_a_mark(literal)]


def _after_a_mark(words: Sequence[str]) -> list[str]:
    return ["--", *words] if words else []
