"""How the process ends: one line for what went wrong, and streams that nothing can be written to by accident."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

import typer

from graph.terminal.exit_codes import ExitCode
from graph.terminal.plain_text import one_line


def fail(arguments: Sequence[str], code: ExitCode, message: str) -> int:
    """Say what is wrong, as an object as well where one was asked for, and return the code.

    `arguments` are those of the process: the command line may be what is wrong.
    """
    sys.stderr.write(f"mendgraph: {message}\n")
    if "--json" in arguments or "--json-lines" in arguments:
        from graph.terminal.ending import as_json, error_object

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
    from nodes.execute_tools.environment.database import StoreError
    from nodes.execute_tools.secrets.known_secrets import known_values
    from nodes.execute_tools.secrets.redact import Redactor

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
