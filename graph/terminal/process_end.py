"""How the process ends: exit codes, refused commands, signals, and streams that accept any text."""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from enum import IntEnum
from io import TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import typer

from mendgraph.graph.terminal.output import LONGEST_LINE, as_json, wrapped
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason, ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.configuration.loading import Problem


Value = TypeVar("Value")


class ExitCode(IntEnum):
    """How the process ended. Each terminal node of the machine has its code.

    A run that was stopped after its running step has an outcome, and the outcome's code. A process that was ended at
    once, and a chat, have the code of the signal (128 and its number, as in a shell). STUCK is that of SIGPROF; see
    `mendgraph.graph.start`.
    """

    FINISHED = 0
    OUTPUT_CLOSED = 1
    FINDINGS = 1
    USAGE_ERROR = 2
    BUDGET_STOP = 3
    SYSTEM_ERROR = 4
    NOT_CHECKED = 5
    INTERNAL_ERROR = 70
    INTERRUPTED = 130
    TERMINATED = 143
    STUCK = 155


MEANINGS: dict[ExitCode, str] = {
    ExitCode.FINISHED: "FINISHED: the model answered, and no check contradicts its changes",
    ExitCode.FINDINGS: "`doctor` found a problem, a task of a `batch` did not finish, a `replay` was worse, or a pipe"
    " was closed",
    ExitCode.USAGE_ERROR: "the command line is wrong or names a run that does not exist; nothing was run",
    ExitCode.BUDGET_STOP: "BUDGET_STOP: a limit ended the run, or you stopped it with Ctrl-C or SIGTERM",
    ExitCode.SYSTEM_ERROR: "SYSTEM_ERROR: the run failed, the command was refused, or the model is not installed",
    ExitCode.NOT_CHECKED: "with --require-checks: no check covers the changes; with --require-changes: the run is"
    " FINISHED, but a call was refused",
    ExitCode.INTERNAL_ERROR: "a bug in mendgraph",
    ExitCode.INTERRUPTED: "a second Ctrl-C, or Ctrl-C at a question, in a batch or replay; no file is left half"
    " written",
    ExitCode.TERMINATED: "a second SIGTERM, or SIGTERM at a question, in a chat, batch or replay; no file is left"
    " half written",
    ExitCode.STUCK: "code that cannot be interrupted kept the process busy; `mendgraph resume` continues",
}


def exit_code_of(outcome: Outcome, *, require_changes: bool = False) -> ExitCode:
    """Return the exit code of a run with this outcome; with `require_changes` a refused call is no success."""
    refused = require_changes and outcome.kind is OutcomeKind.FINISHED and bool(outcome.refused)
    if refused or outcome.reason is StopReason.NOT_CHECKED:
        return ExitCode.NOT_CHECKED

    return ExitCode[outcome.kind.value]


class RefusedError(Exception):
    """A command is refused. `named` are further lines, which name what blocks it."""

    def __init__(
        self, code: ExitCode, message: str, error: Mapping[str, Any] | None = None, named: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.error = error
        self.named = named


def fail(words: Sequence[str], refusal: RefusedError) -> int:
    """Write the problem to standard error, with `--json` or `--json-lines` among the `words` also as an object.

    Return the exit code.
    """
    lines = [f"mendgraph: {part}" for part in refusal.message.split("\n")]
    lines += refusal.named
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        lines = [wrapped(line, columns) for line in lines]

    typer.echo("\n".join(lines), err=True)
    if "--json" in words or "--json-lines" in words:
        error = {**(refusal.error or {"code": refusal.code.name.lower()}), "message": refusal.message}
        value: dict[str, Any] = {"error": error}
        if "--json-lines" in words:
            value = {"event": "error", "error": error}

        typer.echo(as_json(value))

    return refusal.code


_WRONG_WORD: Final = frozenset({ToolErrorCode.NOT_FOUND, ToolErrorCode.INVALID_ARGUMENT})
"""Errors of the command line: it names something that does not exist or is ambiguous."""

_MOST_NAMED: Final = 50
"""Files that a refusal lists."""


def unwrap(value: Value | ToolError) -> Value:
    """Return the value of a result; raise RefusedError if it is an error."""
    if not isinstance(value, ToolError):
        return value

    message, named = refusal_words(value)
    code = ExitCode.SYSTEM_ERROR
    if value.code in _WRONG_WORD:
        code = ExitCode.USAGE_ERROR

    raise RefusedError(code, message, value.as_map(), named)


def unwrap_settings(value: "Value | tuple[Problem, ...]") -> Value:
    """Return the settings or tasks of files; raise RefusedError with each problem on a line."""
    if not isinstance(value, tuple):
        return value

    error = {"code": ExitCode.USAGE_ERROR.name.lower(), "problems": [asdict(problem) for problem in value]}
    lines = "\n".join(one_line(str(problem), LONGEST_LINE) for problem in value)
    raise RefusedError(ExitCode.USAGE_ERROR, lines, error)


def refusal_words(error: ToolError) -> tuple[str, list[str]]:
    """Return the message of an error with its suggestions, and lines that name what blocks the command."""
    message = one_line(error.message.replace("skip_changed", "--skip-changed"), 2_000)
    named = [one_line(suggestion) for suggestion in error.suggestions]
    if error.code in _WRONG_WORD:
        meant = [alternative for alternative in named if alternative not in message]
        if meant:
            message += f" Did you mean {' or '.join(meant)}?"

        return message, []

    lines = [f"  {name}" for name in named[:_MOST_NAMED]]
    if len(named) > _MOST_NAMED:
        lines.append(f"  and {len(named) - _MOST_NAMED} more")

    return message, lines


def bug(error: Exception, *, debug: bool) -> RefusedError:
    """Return the refusal for an unexpected error; with `debug` write its traceback. A damaged store is no bug."""
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
    from mendgraph.nodes.workspace.store.database import StoreError

    if isinstance(error, StoreError):
        return RefusedError(ExitCode.SYSTEM_ERROR, one_line(str(error), 2_000))

    scrub = Redactor(known_values(os.environ)).text

    if debug:
        import traceback

        sys.stderr.write(scrub("".join(traceback.format_exception(error))))

    what = one_line(scrub(f"{type(error).__name__}: {error}"))
    return RefusedError(ExitCode.INTERNAL_ERROR, f"this is a bug ({what}): please report it with the output of --debug")


def write_file(folder: str, name: str, content: bytes, *, force: bool) -> None:
    """Write a file atomically; raise RefusedError if that fails, or if the file exists, unless `force`."""
    from mendgraph.nodes.workspace.files.workspace import Workspace, WriteFile

    workspace = Workspace(folder, lambda *_: None)
    sha256 = ""
    if workspace.exists(name):
        sha256 = unwrap(workspace.read_file(name)).sha256

    if sha256 and not force:
        message = f"{os.path.join(folder, name)!r} exists: name another file, or replace it with --force."
        raise RefusedError(ExitCode.USAGE_ERROR, one_line(message, LONGEST_LINE))

    unwrap(workspace.change_files([WriteFile(name, content, expected_sha256=sha256)]))


def close_output(message: str = "") -> int:
    """Discard further output, as nobody reads it or the disk is full; write `message` to standard error."""
    if message:
        sys.stderr.write(f"mendgraph: {message}\n")

    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return ExitCode.OUTPUT_CLOSED


def make_streams_writable() -> None:
    """Write unknown characters as escapes, and replace closed streams by the null device."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open until the process ends

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


BEFORE_LEAVING: Final[list[Callable[[], None]]] = []
"""What `leave_at_once` calls, as no `finally` runs: each restores the terminal, and raises nothing."""


def leave_at_once(code: int) -> NoReturn:
    """End the process without waiting for threads: one of them may still wait for an endpoint."""
    for restore in BEFORE_LEAVING:
        restore()

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError):  # nobody reads, or a signal has interrupted another flush
            stream.flush()

    os._exit(code)


SIGNALS: Final[Mapping[int, str]] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
"""The signals that stop a run, and what a person calls them."""


def by_whom(name: str) -> str:
    """Return who stops a run with this signal."""
    if name == SIGNALS[signal.SIGINT]:
        return "by you (Ctrl-C)"
    return f"by {name}"


def install(handlers: Mapping[int, Any]) -> dict[int, Any]:
    """Install these handlers, except for ignored signals; returns the previous ones. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}

    previous = {}
    for number, handler in handlers.items():
        if signal.getsignal(number) not in {signal.SIG_IGN, None}:
            previous[number] = signal.signal(number, handler)

    return previous


GRACE_S: Final = 5.0
"""Seconds that a turn has to end after the second signal; then the process ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM where Ctrl-C would raise KeyboardInterrupt: at a prompt, or the second time."""


class Signals:
    """Handles signals inside of `handled`. Ignored signals stay ignored.

    The signal handler calls `stop` with the words for who stops the turn; the event loop calls `tell` to announce that
    the turn is ending. Outside of `draining` a signal raises KeyboardInterrupt or `Terminated`.
    """

    def __init__(self, stop: Callable[[str], None], tell: Callable[[], None]) -> None:
        self._stop = stop
        self._tell = tell
        self.last = SIGNALS[signal.SIGINT]
        self.terminated = False
        self.stopping = False

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a process that a signal has ended."""
        if self.terminated:
            return ExitCode.TERMINATED

        return ExitCode.INTERRUPTED

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Inside, SIGTERM acts as Ctrl-C does. Afterwards the previous handlers are restored."""
        before = install({signal.SIGTERM: self._raise})
        try:
            yield
        finally:
            install(before)

    def begin_turn(self) -> None:
        """Forget the signals of the turn before."""
        self.last = SIGNALS[signal.SIGINT]
        self.stopping = False

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Inside, in a task of the main thread's event loop, the first signal of a turn stops it after its step.

        The second one cancels the task. If it does not end, because something blocks the event loop, the process ends.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        alarm: dict[int, Any] = {}

        def handle(number: int, _: FrameType | None) -> None:
            self._note(number)

            if not self.stopping:
                self.stopping = True
                self._stop(by_whom(self.last))
                loop.call_soon_threadsafe(self._tell)
            elif task is not None and not alarm:
                alarm.update(install({signal.SIGALRM: self._leave}))
                signal.setitimer(signal.ITIMER_REAL, GRACE_S)
                task.cancel()
                loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may wait for something else

        before = install(dict.fromkeys(SIGNALS, handle))
        try:
            yield
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)

            install({**before, **alarm})

    def _leave(self, _: int, __: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # it may have interrupted a line that is being written
            sys.stderr.write(f"mendgraph: stopped {by_whom(self.last)}; continue with: mendgraph resume\n")

        leave_at_once(self.exit_code)

    def _raise(self, number: int, _: FrameType | None) -> None:
        self._note(number)
        if number == signal.SIGTERM:
            raise Terminated

        raise KeyboardInterrupt

    def _note(self, number: int) -> None:
        self.last = SIGNALS[number]
        self.terminated = self.terminated or number == signal.SIGTERM
