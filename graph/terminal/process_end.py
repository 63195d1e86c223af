"""How the process ends: one line for what went wrong, and streams that nothing can be written to by accident."""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import IntEnum
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import OutcomeKind

if TYPE_CHECKING:
    from mendgraph.graph.configuration.settings_file import Problem
    from mendgraph.graph.terminal.options import Options


class ExitCode(IntEnum):
    """How the process ended. The three terminals of the machine have a code each.

    A run that was stopped after its running step has an outcome, and so that outcome's code, whoever stopped it. What
    was ended at once, and a chat as a whole, has none: its code is that of the signal (128 and its number, as in a
    shell). STUCK is what a shell says of SIGPROF; see `mendgraph.graph.start`.
    """

    FINISHED = 0
    OUTPUT_CLOSED = 1
    FINDINGS = 1
    USAGE_ERROR = 2
    BUDGET_STOP = 3
    SYSTEM_ERROR = 4
    INTERNAL_ERROR = 70
    INTERRUPTED = 130
    TERMINATED = 143
    STUCK = 155


MEANINGS: dict[ExitCode, str] = {
    ExitCode.FINISHED: "FINISHED: the run gave its answer",
    ExitCode.FINDINGS: "`doctor` or `cassette` found something, a task of a `batch` did not FINISH, or nobody reads on",
    ExitCode.USAGE_ERROR: "the command line is wrong, and nothing was run",
    ExitCode.BUDGET_STOP: "BUDGET_STOP: a limit ended the run, or a person did (Ctrl-C, too), or SIGTERM",
    ExitCode.SYSTEM_ERROR: "SYSTEM_ERROR: the run failed or the command was refused, or the model is not in place",
    ExitCode.INTERNAL_ERROR: "a bug in mendgraph",
    ExitCode.INTERRUPTED: "Ctrl-C for the second time, at a question or in a batch; files are whole, old or new",
    ExitCode.TERMINATED: "SIGTERM for the second time, at a question, in a chat or batch; files are whole, old or new",
    ExitCode.STUCK: "code that nothing can interrupt kept the process busy; `mendgraph resume` goes on",
}


def exit_code_of(kind: OutcomeKind) -> ExitCode:
    """The code of a run that ended in this terminal."""
    return ExitCode[kind.value]


def exit_code_table() -> str:
    """One line for each code, in order."""
    return "\n".join(f"{code.value:>5}  {meaning}" for code, meaning in MEANINGS.items())


def fail(arguments: Sequence[str], code: ExitCode, message: str) -> int:
    """Say what is wrong, as an object as well where one was asked for, and return the code.

    `arguments` are those of the process: the command line may be what is wrong.
    """
    sys.stderr.write(f"mendgraph: {message}\n")
    if "--json" in arguments or "--json-lines" in arguments:
        from mendgraph.graph.terminal.output_lines import as_json, error_object

        told = error_object(code.name.lower(), message)
        sys.stdout.write(as_json({"event": "error", **told} if "--json-lines" in arguments else told) + "\n")
    return code


def tidy(error: typer.TyperException) -> str:
    """What typer has to say, in one line without a full stop."""
    return one_line(error.format_message().replace("Value error, ", ""), 300).rstrip(".")


def report_bug(arguments: Sequence[str], error: Exception) -> int:
    """A bug of ours: one line that asks for a report, and with `--debug` the traceback without secrets.

    A store that cannot be used is none.
    """
    from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor
    from mendgraph.nodes.execute_tools.store.database import StoreError

    if isinstance(error, StoreError):
        return fail(arguments, ExitCode.SYSTEM_ERROR, one_line(str(error), 2_000))

    scrub = Redactor(known_values(os.environ)).text
    if "--debug" in arguments:
        import traceback

        sys.stderr.write(scrub("".join(traceback.format_exception(error))))
    what = one_line(scrub(f"{type(error).__name__}: {error}"))
    return fail(arguments, ExitCode.INTERNAL_ERROR, f"this is a bug ({what}): please report it with what --debug says")


def close_output(message: str = "") -> int:
    """Nobody reads any more, or the disk is full: say so if possible, and let nothing be written at exit."""
    if message:
        sys.stderr.write(f"mendgraph: {message}\n")
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OUTPUT_CLOSED


def make_streams_writable() -> None:
    """What the terminal's encoding does not know is written as an escape; a closed stream swallows everything.

    A closed input has nothing to read.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open until the process ends
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def leave_at_once(code: int) -> NoReturn:
    """End the process without waiting for threads: one of them may still wait for an endpoint."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError):  # nobody reads, or a signal has interrupted another flush
            stream.flush()
    os._exit(code)


LONGEST_LINE: Final = 1_000
"""Characters of a line that names a problem, a setting or a folder."""


def settings_refused(chosen: "Options", problems: "Iterable[Problem]") -> int:
    """Name every problem of files on standard error, each on its own line; with `--json` as an object as well."""
    from mendgraph.graph.terminal.output_lines import as_json, error_object

    named = list(problems)
    said = [one_line(str(each), LONGEST_LINE) for each in named]
    typer.echo("\n".join(f"mendgraph: {each}" for each in said), err=True)
    if chosen.as_json:
        shown = error_object(ExitCode.USAGE_ERROR.name.lower(), "\n".join(said))
        shown["error"]["problems"] = [asdict(each) for each in named]
        typer.echo(as_json({"event": "error", **shown} if chosen.json_lines else shown))
    return ExitCode.USAGE_ERROR
