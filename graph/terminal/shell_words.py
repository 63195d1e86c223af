"""What a shell may offer for the word at hand: commands, options, their values, and runs. Pure.

The command line is taken as `word_order` takes it: options may stand anywhere, and a first word that is no command is
a task.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from graph.kept_run import short_id
from graph.terminal.options import NESTED, TASK_COMMAND
from nodes.language.display import one_line

TALK: Final = "chat"
"""The other command that may begin a run."""

RUN: Final = "RUN"
"""The metavar of arguments and options that name a run."""

_NAMES_OF_FILES: Final = {"DIR": "dir", "FOLDER": "dir", "FILE": "file"}
"""What the shell offers by itself, by the metavar."""

_LONGEST_HELP: Final = 60

ListRuns = Callable[[str], Sequence[tuple[str, str]]]
"""The runs of a folder, each with its task."""


class Offer(NamedTuple):
    """One thing that may stand there. `kind` is `plain`, or asks the shell for its own names: `file`, `dir`."""

    kind: str
    value: str = ""
    help: str = ""


@dataclass
class _Line:
    """The words before the one at hand, as far as they matter: the command that they name, and its arguments."""

    app: Any
    command: Any
    everywhere: Collection[str]
    arguments: list[str] = field(default_factory=list)
    root: str = "."
    task: bool = False
    nested: bool = False
    literal: bool = False
    waiting: Any = None  # the option whose value is at hand
    given: set[str] = field(default_factory=set)

    @property
    def options(self) -> list[Any]:
        """The options that this command takes: those of a new run only where there may be one."""
        own = [each for each in self.command.params if each.param_type_name == "option"]
        if self.command is self.app or self.nested:
            return own
        general = [each for each in self.app.params if each.param_type_name == "option"]
        new = self.task or self.command is self.app.commands.get(TALK)
        return [*own, *(each for each in general if new or each.name in self.everywhere)]


def offers(app: Any, words: Sequence[str], word: str, list_runs: ListRuns, everywhere: Collection[str]) -> list[Offer]:
    """What may stand in place of `word`, the beginning of which is typed; `words` are those before it.

    `app` is the command tree as typer gives it; `everywhere` are the names of those of its options that every command
    takes, while the others are for new runs.
    """
    line = _read(_Line(app, app, everywhere), words)
    name, equals, begun = word.partition("=")
    if line.waiting is not None:
        found = _values(line.waiting, line.root, word, list_runs)
    elif not line.literal and equals and name.startswith("--"):
        option = _option(line.options, name)
        found = _values(option, line.root, begun, list_runs) if option is not None else []
        return [offer._replace(value=f"{name}={offer.value}") for offer in found if offer.value.startswith(begun)]
    elif not line.literal and word.startswith("-"):
        found = list(_options(line))
    else:
        found = list(_words(line, word, list_runs))
    return [offer for offer in found if offer.kind != "plain" or offer.value.startswith(word)]


def _read(line: _Line, words: Sequence[str]) -> _Line:
    for word in words:
        if line.waiting is not None:
            line.root = word if "--root" in line.waiting.opts else line.root
            line.waiting = None
        elif word == "--" and not line.literal:
            line.literal = True
        elif word.startswith("-") and word != "-" and not line.literal:
            _read_option(line, word)
        else:
            _read_word(line, word)
    return line


def _read_option(line: _Line, word: str) -> None:
    name, equals, value = word.partition("=")
    option = _option(line.options, name)
    if option is None:
        return
    line.given.update(() if option.multiple else [*option.opts, *option.secondary_opts])
    if "--root" in option.opts and equals:
        line.root = value
    line.waiting = None if equals or option.is_flag else option


def _read_word(line: _Line, word: str) -> None:
    commands = getattr(line.command, "commands", {})
    if word in commands and not line.task and not line.arguments:
        first = line.command is line.app
        line.nested = line.nested or (first and word == NESTED)
        line.command, line.task = commands[word], first and word == TASK_COMMAND
    elif line.command is line.app:
        line.command, line.task = line.app.commands[TASK_COMMAND], True
        line.arguments.append(word)
    else:
        line.arguments.append(word)


def _option(options: Sequence[Any], name: str) -> Any:
    return next((each for each in options if name in (*each.opts, *each.secondary_opts)), None)


def _options(line: _Line) -> Iterator[Offer]:
    for each in line.options:
        for name in (*each.opts, *each.secondary_opts):
            if name.startswith("--") and name not in line.given and not each.hidden:
                yield Offer("plain", name, _help(each.help))
    yield Offer("plain", "--help", "Show this message and exit.")


def _words(line: _Line, word: str, list_runs: ListRuns) -> Iterator[Offer]:
    commands: Mapping[str, Any] = getattr(line.command, "commands", {})
    for name, command in commands.items():
        if not command.hidden:
            yield Offer("plain", name, _help(command.help))
    arguments = [each for each in line.command.params if each.param_type_name == "argument"]
    for argument in arguments[len(line.arguments) :][:1]:
        yield from _values(argument, line.root, word, list_runs)


def _values(parameter: Any, root: str, begun: str, list_runs: ListRuns) -> list[Offer]:
    """What a parameter takes: its choices, runs, folders or files; nothing for what only a person knows."""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return [Offer("plain", str(each)) for each in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [Offer("plain", str(each.value)) for each in annotation]
    if parameter.metavar == RUN:
        return _runs(list_runs(root), begun)
    kind = _NAMES_OF_FILES.get(parameter.metavar or "")
    return [Offer(kind)] if kind else []


def _runs(runs: Sequence[tuple[str, str]], begun: str) -> list[Offer]:
    """The short names of runs, and the whole ones where a short one is not enough."""
    short = [short_id(run_id) for run_id, _ in runs]
    return [
        Offer("plain", run_id if short.count(name) > 1 or len(begun) > len(name) else name, _help(task))
        for (run_id, task), name in zip(runs, short, strict=True)
        if run_id.isprintable() and not set(run_id) & set(" \t\"'\\$`")
    ]


def _help(text: str | None) -> str:
    """The first sentence, on one line."""
    said = one_line(text or "", _LONGEST_HELP * 3)
    return one_line("".join(takewhile(lambda sign: sign not in ".;:(", said)), _LONGEST_HELP).strip()
