"""Play something in a fresh process, once for each point at which it may be killed or failed, at a fork's price.

    with ForkServer(library, module="tests.crash.play") as server:
        whole = server.run("begin", place)
        torn = server.run("begin", other_place, at=2, how="kill_before")
    assert (whole.killed, torn.killed, torn.calls) == (False, True, 2)

The server is a program of its own that has imported `module`; each run is a fork of it. Servers may run beside each
other; one server does one run after another, and is asked by one thread. Without a library no call is counted, and a
play that is to be killed kills itself.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from tests.architecture.product import ROOT
from tests.crash.shim import How

START_SECONDS: Final = 120
"""To import a play, on a machine that is busy."""
GRACE_SECONDS: Final = 60
"""For the server itself, beside what the play may take."""
STEERING: Final = ("COV_", "COVERAGE_", "PYTEST_")
"""The variables by which pytest and coverage would follow into the server."""
PROGRAM: Final = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.crash.forking import main; main()"


class PlayError(AssertionError):
    """A play neither returned nor was killed where it should be: it raised, hung, or something else ended it."""


class ServerError(AssertionError):
    """The server does not answer any more, or could not start."""


@dataclass(frozen=True)
class PlayResult:
    """A play from its end.

    `calls` counts the calls that change files, up to the one at which it was killed; `trace` names them. `value` is
    what the function returned, None if it was killed. `stderr` is all that it said, on stdout as well.
    """

    killed: bool
    calls: int
    value: Any
    stderr: str
    trace: tuple[str, ...]


class ForkServer:
    """A process with the library in it that forks; a context manager that may be entered once."""

    def __init__(self, library: Path | None, module: str, *, timeout: float = 60.0) -> None:
        """Nothing is started yet. `timeout` is what one run may take, in seconds."""
        self._library, self._module, self._timeout = library, module, timeout

    def __enter__(self) -> Self:
        """Start the server and wait until it has imported the module."""
        self._log = tempfile.TemporaryFile()
        command = [sys.executable, "-B", "-P", "-u", "-c", PROGRAM, self._module]
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
            | ({"LD_PRELOAD": str(self._library)} if self._library else {})
            | {"PYTHONHASHSEED": "0"},  # sets are walked in the same order each time
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is for pytest, which then ends the server
        )
        try:
            self._answer(START_SECONDS)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def end(self) -> None:
        """End the server, and with it what still runs; whoever waits for a play, in another thread, gets an error."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        self.end()
        _pipe(self._process.stdout).close()
        self._log.close()

    def run(
        self,
        function: str,
        argument: Any = None,
        at: int | None = None,
        how: How = "kill_before",
        timeout: float | None = None,
    ) -> PlayResult:
        """Run a function of the module, with one argument that JSON can hold, in a fresh fork.

        `how` happens at the call number `at`, counted from 1; without `at` nothing does.

        Raises:
            PlayError: the play raised, hung for `timeout` seconds, or ended in another way.
            ServerError: the server itself is gone.
        """
        seconds = self._timeout if timeout is None else timeout
        request = {"function": function, "argument": argument, "at": at, "how": how, "timeout": seconds}
        line = json.dumps(request).encode() + b"\n"
        try:
            _pipe(self._process.stdin).write(line)
        except (BrokenPipeError, ValueError):  # it has died, or was ended
            raise self._gone() from None
        answer = self._answer(seconds + GRACE_SECONDS)
        ended, trace, output = answer["ended"], tuple(answer["calls"]), answer["said"]
        if ended not in {"returned", "killed"}:
            where = f"{how}:{at}" if at else "no fault"
            last = f", the last being {trace[-1]!r}" if trace else ""
            patience = f" for {seconds:g} s" if ended == "hung" else ""
            raise PlayError(
                f"{function} ({where}) {ended}{patience} after {len(trace)} calls{last}; it said:\n{output}"
            )
        return PlayResult(ended == "killed", len(trace), answer["value"], output, trace)

    def _answer(self, seconds: float) -> dict[str, Any]:
        pipe, line = _pipe(self._process.stdout), b""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while not line.endswith(b"\n"):
            part = (pipe.read(1 << 20) or b"") if poll.poll(seconds * 1000) else b""
            if not part:
                raise self._gone()
            line += part
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self) -> ServerError:
        self._log.seek(0)
        return ServerError(f"the server of {self._module} does not answer; it said:\n{self._log.read().decode()}")


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
