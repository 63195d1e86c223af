"""The server process of the embedded model: started on first use, ended with its owner."""

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import IO, cast

from mendgraph.nodes.call_model.endpoint import EMBEDDED_WINDOW
from mendgraph.nodes.call_model.weights import WeightsSpec, WeightsState, embedded_weights, weights_path, weights_status
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
SERVER_PROGRAM = (sys.executable, "-P", os.path.join(os.path.dirname(os.path.abspath(__file__)), "local_server.py"))

_NOT_READY = {
    WeightsState.ABSENT: "are not on this machine",
    WeightsState.PARTIAL: "are only partly here",
    WeightsState.DAMAGED: "are damaged",
}
_START_REMEDY = "check with `mendgraph model status`, or set OPENAI_BASE_URL and OPENAI_API_KEY"
# Otherwise its threads spin in barriers while other work needs the cores.
# Source: measured, 15 tokens/s against 2.5 on two busy cores.
_CALM_THREADS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
_LOG_PREFIX = re.compile(r"^[\d.]+ [A-Z] ")


class LocalServer:
    """A running server. `base_url` ends in /v1, `model` is the name for requests; no key is needed."""

    def __init__(self, process: subprocess.Popen[bytes], base_url: str, model: str) -> None:
        self.base_url = base_url
        self.model = model
        self._process = process
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """End the process, if it is running."""
        atexit.unregister(self.stop)
        _end(self._process)


def start_local_server(
    weights: str,
    *,
    context_tokens: int = EMBEDDED_WINDOW,
    port: int = 0,
    program: Sequence[str] = SERVER_PROGRAM,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalServer | ProviderFailure:
    """Serve the file `weights` on 127.0.0.1, and return when the server is ready; port 0 means a free port.

    The failure of a server that exits or is not ready after `timeout_s` seconds contains its own error.
    """
    model = embedded_weights().model
    options = [model, str(context_tokens), *([str(port)] if port else [])]

    with TemporaryFile() as log:  # the child keeps its handle
        try:
            process = _launch([*program, os.path.abspath(weights), *options], log)
        except OSError as error:
            return _unavailable(f"the local model server did not start ({error.strerror}): {_START_REMEDY}")

        try:
            url, reason = _wait_for_address(process, log, timeout_s)
        except BaseException:
            _end(process)
            raise

    if url:
        return LocalServer(process, f"{url}/v1", model)

    _end(process)
    return _unavailable(f"the local model server did not start ({reason}): {_START_REMEDY}")


def why_unavailable(path: str | None = None, *, spec: WeightsSpec | None = None) -> ProviderFailure | None:
    """Return None if the embedded model can be started, else a failure that names the command to run."""
    if find_spec("xllamacpp") is None:
        hosted = "or name a hosted one with OPENAI_BASE_URL and OPENAI_API_KEY"
        from mendgraph.nodes.language.installation import how_to_add  # imported only if something is missing

        return _unavailable(f"the embedded model needs {how_to_add('local')}; {hosted}")

    state = weights_status(path, spec=spec).state
    if state is WeightsState.READY:
        return None

    return _unavailable(f"the embedded model's weights {_NOT_READY[state]}: run `mendgraph model pull`")


class ServerSlot:
    """At most one server for all threads, started on first use and again after it has died.

    `starting` is True while it starts.
    """

    def __init__(self, start: Callable[[], LocalServer | ProviderFailure]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._server: LocalServer | None = None
        self.starting = False

    def get(self) -> LocalServer | ProviderFailure:
        """Return the running server, after starting it if necessary; the next call retries after a failure."""
        with self._lock:
            if self._server is not None and self._server.alive:
                return self._server

            if self._server is not None:
                self._server.stop()
                self._server = None

            self.starting = True

            try:
                server = self._start()
            finally:
                self.starting = False

            if isinstance(server, LocalServer):
                self._server = server

            return server


def shared_local_server() -> LocalServer | ProviderFailure:
    """Return this process's server of the embedded model, started on first use (about 4 s). Safe in threads."""
    return _SHARED.get()


def local_server_is_starting() -> bool:
    """Return whether the embedded model's server is starting. Takes no lock."""
    return _SHARED.starting


_SHARED = ServerSlot(lambda: why_unavailable() or start_local_server(weights_path()))


def _launch(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the child in its own session, which Ctrl-C in the terminal does not reach, and without PYTHONPATH."""
    environment = {**os.environ, **_CALM_THREADS}
    for name in ("PYTHONPATH", "MENDGRAPH_STORE_URL"):  # the URL may contain a password
        environment.pop(name, None)

    pipe = subprocess.PIPE
    return subprocess.Popen(  # noqa: S603 - our own interpreter with our own program
        command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
    )


def _wait_for_address(process: subprocess.Popen[bytes], log: IO[bytes], timeout_s: float) -> tuple[str, str]:
    stdout = cast("IO[bytes]", process.stdout)
    if not select.select([stdout], [], [], timeout_s)[0]:
        process.kill()
        return "", f"no answer within {timeout_s:g} s"

    line = stdout.readline()
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["url"]), ""

    if line:
        return "", f"instead of its address it printed {line[:80]!r}"

    # End of file: the child is exiting, and its own exit code is reported.
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)

    log.seek(0)
    first_line = " ".join(log.readline(300).decode(errors="replace").split())
    return "", _LOG_PREFIX.sub("", first_line) or f"exit code {process.poll()}"


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()

    process.terminate()

    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unavailable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
