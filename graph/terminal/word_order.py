"""In which order the words of the command line are read: options may stand anywhere, and a task needs no command.

Pure.
"""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from typer.core import TyperGroup

ANSWERED_AT_ONCE = frozenset({"-h", "--help", "--version"})
"""Options that need no task."""

NESTED = "model"
"""The command that has commands and options of its own."""


class TaskGroup(TyperGroup):
    """A group whose options may stand anywhere, and whose first word is a task unless it is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hand the words on in the order that the parser expects."""
        valued = {name for each in self.params for name in each.opts if not getattr(each, "is_flag", True)}
        return super().parse_args(ctx, in_order(args, set(self.commands), valued))


def in_order(arguments: Sequence[str], commands: Collection[str], valued: Collection[str]) -> list[str]:
    """The arguments with the options first, then the command (`run` where the first word is none), then the words.

    `valued` are the options that take the next argument as their value; where it is missing the line ends with the
    option, which the parser then names. What follows the nested command is left alone, and so is a line that needs no
    task.
    """
    options: list[str] = []
    words: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            words += rest
        elif argument == NESTED and not words:
            return [*options, argument, *rest]
        elif argument == "-" or not argument.startswith("-"):
            words.append(argument)
        else:
            value = [*islice(rest, argument in valued)]
            options += [argument, *value]
            if argument in valued and not value:
                return options
    if not words and (not options or ANSWERED_AT_ONCE & set(options)):
        return options
    command = words.pop(0) if words and words[0] in commands else "run"
    return [*options, command, *(["--", *words] if words else [])]
