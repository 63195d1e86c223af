"""In which order the words of the command line are read: options may stand anywhere, and a task needs no command.

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from typer.core import TyperGroup

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
