"""A sandbox that several commands of a run share: their processes, their loopback and their temporary files.

A thread of this process starts the sandbox and serves it until it is closed: the kernel ends bubblewrap with the thread
that has started it. Inside, `shared_launcher` starts the commands.
"""

import marshal
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.processes.processes import CapturedOutput
from mendgraph.nodes.workspace.processes.resource_limits import Limit, LimitReached, Watch
from mendgraph.nodes.workspace.sandboxes import shared_launcher
from mendgraph.nodes.workspace.sandboxes.sandbox import PROGRAM_FOLDERS, Sandbox, SandboxedProcess, View, text_handle

_POLL_S: Final = 0.05
_START_S: Final = 20.0
_ANSWER_S: Final = 5.0
"""Seconds in which the launcher has to answer; a program can stop it by a signal."""
_LOOK_S: Final = 0.5
"""Seconds between two looks at the files that the sandbox hides or protects."""
_CHUNK: Final = 65_536
_MOST_BYTES: Final = 4_096
_MOST_READS: Final = 32
_MARSHAL_VERSION: Final = 2
"""A version of the format that all Pythons read."""
_LAUNCHER: Final = "/run/shared_launcher.py"

CHANGED: Final = "a file that programs may not see or change was replaced"
TOO_LONG: Final = "its sandbox has reached its longest time"


@dataclass
class SharedCommand:
    """A command in a shared sandbox.

    `exit_code` is None until it has ended; `why` says what else has ended it, `start_error` why it was not executed.
    """

    number: int
    program: str
    stdout: CapturedOutput
    stderr: CapturedOutput
    size: int = 0
    exit_code: int | None = None
    limit: LimitReached | None = None
    why: str = ""
    is_started: bool = False
    start_error: OSError | None = None
    pipes: dict[int, CapturedOutput] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.exit_code is not None or bool(self.why) or self.limit is not None


class SharedSandbox:
    """One sandbox with this view. `close` kills all that runs in it, then closes the resources of the view."""

    def __init__(self, view: View, longest_s: float) -> None:
        self.view = view
        self.problem: ToolError | None = None
        self.watch: Watch | None = None
        self._changed = threading.Condition()
        self._commands: dict[int, SharedCommand] = {}
        self._count = 0
        self._is_ready = False
        self._is_over = False
        self._closing = False
        self._deadline = time.monotonic() + longest_s
        self._identities = _identities(view)
        self._channel, self._inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None

    @classmethod
    def opened(
        cls, sandbox: Sandbox, view: View, env: Mapping[str, str], resources: ExitStack, longest_s: float
    ) -> Self:
        """Start a sandbox that ends after `longest_s` seconds, and wait until it takes commands or has failed.

        `resources` are those of the view.
        """
        shared = cls(view, longest_s)
        shared._thread = threading.Thread(
            target=shared._run, args=(sandbox, env, resources), name="shared sandbox", daemon=True
        )
        shared._thread.start()
        shared.wait(lambda: shared._is_ready or shared._is_over, _START_S)

        return shared

    @property
    def is_over(self) -> bool:
        """Whether nothing runs in it any more."""
        return self._is_over

    def start(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], most_output: int
    ) -> SharedCommand | ToolError:
        """Start a command, whose first word is an absolute name."""
        if any(not is_argument(word) for word in (*argv, cwd)):
            return invalid("A program takes no argument with a NUL character or half a surrogate pair.")

        self._count += 1
        outputs = (CapturedOutput(most=most_output), CapturedOutput(most=most_output))
        command = SharedCommand(self._count, argv[0], *outputs)
        text = marshal.dumps({"argv": list(argv), "cwd": cwd, "env": dict(env)}, _MARSHAL_VERSION)

        with ExitStack() as handles, self._changed:
            if self._is_over or not self._is_ready:
                return self.problem or _unavailable("its sandbox has ended")

            specification = handles.enter_context(text_handle(text))
            inner = [specification]
            for output in (command.stdout, command.stderr):
                reader, writer = os.pipe()
                handles.callback(os.close, writer)
                inner.append(writer)
                command.pipes[reader] = output

            self._commands[command.number] = command
            try:
                socket.send_fds(self._channel, [b"%d" % command.number], inner)
            except OSError as error:
                self._drop(command)
                return _unavailable(error.strerror or str(error))

        return command

    def wait_for_start(self, command: SharedCommand) -> None:
        """Wait until a command runs or has ended; the sandbox is closed if nothing says so."""
        if not self.wait(lambda: command.is_started or command.has_ended, _ANSWER_S):
            self.close()

    def wait(self, until: Callable[[], bool], seconds: float, check: Callable[[], None] = lambda: None) -> bool:
        """Wait until the condition is met; False after `seconds`. `check` is called from time to time and may raise."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not until():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False

                self._changed.wait(min(remaining, _POLL_S))
                check()

        return True

    def kill(self, command: SharedCommand, grace_s: float = 0.0) -> None:
        """End a command by SIGTERM, and after `grace_s` seconds by SIGKILL, and wait for its end.

        The sandbox is closed if that does not end it.
        """
        for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _ANSWER_S)):
            if seconds and not command.has_ended:
                with suppress(OSError):
                    self._channel.send(b"%d %d" % (command.number, number))

                self.wait(lambda: command.has_ended, seconds)

        if not command.has_ended:
            self.close()

    def take_output(self, command: SharedCommand) -> tuple[CapturedOutput, CapturedOutput]:
        """Return what a command has printed since the last call of this method."""
        with self._changed:
            outputs = (replace(command.stdout), replace(command.stderr))
            for output in (command.stdout, command.stderr):
                output.head = output.tail = b""
                output.size = 0

        return outputs

    def close(self) -> None:
        """Kill everything, and wait for the end."""
        self._closing = True
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes the thread

        if self._thread is not None:
            self._thread.join(_START_S)

    # --- The thread

    def _run(self, sandbox: Sandbox, env: Mapping[str, str], resources: ExitStack) -> None:
        with resources, self._channel, self._inside, self._selector:
            try:
                self._serve(sandbox, env)
            except OSError as error:
                self.problem = ToolError(code=ToolErrorCode.IO_ERROR, message=f"The sandbox has ended: {error}.")
            finally:
                self._end()

    def _serve(self, sandbox: Sandbox, env: Mapping[str, str]) -> None:
        python = _python(self.view)
        if python is None:
            self.problem = _unavailable("no Python that it needs can be seen in the sandbox")
            return

        with ExitStack() as stack:
            text = stack.enter_context(text_handle(Path(shared_launcher.__file__).read_bytes()))
            added = (*self.view.added_files, (text, _LAUNCHER))
            view = replace(self.view, added_files=added, inherited=(self._inside.fileno(),))
            launcher = [python, "-I", "-S", _LAUNCHER, str(self._inside.fileno())]
            running = stack.enter_context(sandbox.started(view, launcher, env))
            if isinstance(running, ToolError):
                self.problem = running
                return

            self._inside.close()
            diagnostics = CapturedOutput(most=_MOST_BYTES)
            for handle, handler in running.output_handlers(diagnostics.add, diagnostics.add).items():
                self._selector.register(handle, selectors.EVENT_READ, handler)

            self._channel.setblocking(False)
            self._selector.register(self._channel, selectors.EVENT_READ, self._channel)
            self.watch = running.watch
            with self._changed:
                self._is_ready = True
                self._changed.notify_all()

            self._read_until_over(running)
            words = (diagnostics.head + diagnostics.tail).decode(errors="replace").strip()
            if words and not self._closing:
                self.problem = _unavailable(f"its sandbox has ended: {words.splitlines()[-1]}")

    def _read_until_over(self, running: SandboxedProcess) -> None:
        next_look = 0.0

        while not self._closing and running.process.poll() is None:
            ready = [key for key, _ in self._selector.select(_POLL_S)]
            ready.sort(key=lambda key: key.data is self._channel)  # an answer may close the outputs of its command

            for key in ready:
                if key.data is not self._channel:
                    self._read_output(key)
                elif not self._read_answer():
                    return

            if self._is_exceeded(running):
                return

            if time.monotonic() > self._deadline:
                self._fail_all(TOO_LONG)
                return

            if time.monotonic() > next_look:
                next_look = time.monotonic() + _LOOK_S
                if _identities(self.view) != self._identities:
                    self._fail_all(CHANGED)
                    return

    def _read_output(self, key: selectors.SelectorKey) -> None:
        chunk = os.read(key.fd, _CHUNK)
        if not chunk:
            self._selector.unregister(key.fd)
            return

        with self._changed:
            key.data(chunk)
            self._changed.notify_all()

    def _read_answer(self) -> bool:
        """Read what the launcher says of a command; False if it has ended, or was replaced by something else."""
        with suppress(ValueError, KeyError), self._changed:
            number, *codes = map(int, self._channel.recv(_MOST_BYTES).split())
            command = self._commands[number]

            if codes:
                self._drop(command)
                command.exit_code, *error = codes
                if error:
                    command.start_error = OSError(error[0], os.strerror(error[0]))
            else:
                command.is_started = True
                for reader, output in command.pipes.items():
                    os.set_blocking(reader, False)
                    self._selector.register(reader, selectors.EVENT_READ, self._adder(command, output))

            self._changed.notify_all()
            return True

        return False

    def _adder(self, command: SharedCommand, output: CapturedOutput) -> Callable[[bytes], bool]:
        def add(chunk: bytes) -> bool:
            command.size += len(chunk)
            return output.add(chunk)

        return add

    def _is_exceeded(self, running: SandboxedProcess) -> bool:
        """End the sandbox where a limit is exceeded, which holds for all its commands together."""
        exceeded = running.watch.exceeded_limit() if running.watch is not None else None
        most = self.view.limits.output_bytes
        size = max([command.size for command in self._commands.values()], default=0)
        if size > most:
            exceeded = LimitReached(Limit.OUTPUT, size, most)

        if exceeded is None:
            return False

        with self._changed:
            for command in self._commands.values():
                command.limit = exceeded

        return True

    def _drop(self, command: SharedCommand) -> None:
        """Read the rest of the outputs, and close them."""
        del self._commands[command.number]

        for reader, output in command.pipes.items():
            with suppress(KeyError):
                self._selector.unregister(reader)

            os.set_blocking(reader, False)
            with suppress(OSError):
                for _ in range(_MOST_READS):  # what has left the session may go on writing
                    output.add(os.read(reader, _CHUNK))

            os.close(reader)

    def _fail_all(self, why: str) -> None:
        with self._changed:
            for command in self._commands.values():
                command.why = command.why or why

    def _end(self) -> None:
        self._fail_all("its sandbox was closed")
        with self._changed:
            for command in [*self._commands.values()]:
                self._drop(command)

            self._is_over = True
            self._changed.notify_all()


def is_argument(word: str) -> bool:
    """Return whether a program can have this argument."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _identities(view: View) -> list[tuple[int, int] | None]:
    """Return which files the names are that the view hides or protects; a replaced one is not covered any more."""
    identities: list[tuple[int, int] | None] = []
    for name in (*view.hidden_files, *view.hidden_folders, *(name for _, name in view.read_only)):
        try:
            status = os.stat(name, follow_symlinks=False)
        except OSError:
            identities.append(None)
        else:
            identities.append((status.st_dev, status.st_ino))

    return identities


def _python(view: View) -> str | None:
    """Return an interpreter that the sandbox shows: ours, or else the system's."""
    real = os.path.realpath(sys.executable)
    for name in (real, *(f"{folder}/python3" for folder in PROGRAM_FOLDERS)):
        target = os.path.realpath(name)
        is_visible = any(target.startswith(f"{folder}/") for folder in ("/usr", "/bin", *view.readable))
        if is_visible and os.access(target, os.X_OK):
            return target

    return None


def _unavailable(reason: str) -> ToolError:
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"The command could not be started: {reason}.")
