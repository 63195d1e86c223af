"""`mendgraph` as a process of its own, to which a test sends signals, and an endpoint that stalls in mid-reply."""

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final

from mendgraph.graph import start
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE
from tests.crash.forking import LOADED_BY_RUNS


def stopping_message(by: str) -> str:
    """The message after the first signal."""
    return f"mendgraph: stopping after the running step; {by} again to stop at once\n"


LONG_S = 120
"""Seconds after which a process that should have ended is killed."""

_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [*LOADED_BY_RUNS, "mendgraph.graph.terminal.turns", "tests.surfaces.terminal.blocking_play"]
)


class Process:
    """A run of the command in `root`. What it says is kept in `out` and `err` as far as it was read.

    It is a fork of a process that has imported everything: that takes a tenth of a start.
    """

    def __init__(self, root: Path, base_url: str, words: Sequence[str], main: Callable[[], int]) -> None:
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "k",
            DATA_DIR_VARIABLE: str(root.parent / "data"),
        }
        arguments = ["mendgraph", *(() if "resume" in words else ("--model", "scripted")), *words]
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self.out, self.err = "", ""
        theirs = (stdin, stdout, stderr)
        self._running = _FORKS.Process(
            target=_run, args=(main, arguments, root, environment, [*map(DupFd, theirs)]), daemon=True
        )
        self._running.start()
        for descriptor in theirs:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._running.pid is not None
        return self._running.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def say(self, line: str) -> None:
        """Write a line to its input."""
        os.write(self._stdin, line.encode())

    def wait_for_out(self, text: str) -> None:
        """Wait until it has said this on standard output."""
        self.out += _read_until(self._stdout, text)

    def wait_for_err(self, text: str) -> None:
        """Wait until it has said this on standard error."""
        self.err += _read_until(self._stderr, text)

    def end(self) -> int:
        """Wait for its end; the exit code, which is negative for a signal that ended it."""
        os.close(self._stdin)
        self._stdin = -1
        with ThreadPoolExecutor(1) as beside:
            err = beside.submit(_read_all, self._stderr)
            self.out += _read_all(self._stdout)
            self.err += err.result()
        self._running.join(LONG_S)
        assert self._running.exitcode is not None
        return self._running.exitcode

    def kill(self) -> None:
        """Kill it."""
        self._running.kill()
        self._running.join()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            if descriptor >= 0:
                os.close(descriptor)


def _run(
    main: Callable[[], int], arguments: list[str], root: Path, environment: dict[str, str], streams: Sequence[Any]
) -> None:
    """What the fork does: it becomes the command, started in `root`."""
    for number, stream in enumerate(streams):
        os.dup2(stream.detach(), number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))
    sys.argv = arguments
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(main())


@contextmanager
def start_command(root: Path, base_url: str, *words: str, main: Callable[[], int] = start.main) -> Iterator[Process]:
    """The command, started; it is gone afterwards."""
    started = Process(root, base_url, words, main)
    try:
        yield started
    finally:
        started.kill()


def _read_all(stream: int) -> str:
    with open(stream, "rb", closefd=False) as file:
        return file.read().decode()


def _read_until(stream: int, text: str) -> str:
    """What comes until this text has come, without what follows it."""
    read = b""
    while not read.endswith(text.encode()):
        piece = os.read(stream, 1)
        if not piece:
            raise AssertionError(f"it ended without saying {text!r}, after {read.decode()!r}")
        read += piece
    return read.decode()


@contextmanager
def stalled_endpoint(text: str) -> Iterator[str]:
    """The address of an endpoint that streams this text, and then says nothing more until the test ends."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            delta = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}
            self.wfile.write(f"data: {json.dumps(delta)}\n\n".encode())
            self.wfile.flush()
            over.wait(LONG_S)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server gives it
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
