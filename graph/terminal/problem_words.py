"""How what is wrong with settings or with a file of tasks is said: all of it, one problem a line."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from graph.terminal.exit_codes import ExitCode
from graph.terminal.plain_text import one_line

if TYPE_CHECKING:
    from graph.configuration.settings_file import Problem

LONGEST_LINE: Final = 1_000
"""Characters of a line that names a problem, a setting or a folder."""


def tell_problems(problems: "Iterable[Problem]") -> dict[str, Any]:
    """Name every problem on standard error, each on its own line; the same as an object, for programs."""
    from graph.terminal.ending import error_object

    named = list(problems)
    said = [one_line(str(each), LONGEST_LINE) for each in named]
    typer.echo("\n".join(f"mendgraph: {each}" for each in said), err=True)
    told = error_object(ExitCode.USAGE_ERROR.name.lower(), "\n".join(said))
    told["error"]["problems"] = [asdict(each) for each in named]
    return told
