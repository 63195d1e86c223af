"""`mendgraph` as a process of its own, to which a test sends signals, and an endpoint that stalls in mid-reply."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, cast

from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from tests.architecture.house import ROOT

COMMAND = Path(sys.executable).parent / "mendgraph"


def stopping(by: str) -> str:
    """What is said when the first signal has come."""
    return f"mendgraph: stopping after the running step; {by} again to stop at once\n"


LONG_S = 120
"""Seconds after which a process that should have ended is killed."""


class Process:
    """A run of the command in `root`. What it says is kept in `out` and `err` as far as it was read."""

    def __init__(self, root: Path, base_url: str, words: Sequence[str], command: Sequence[str | Path]) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "k",
            DATA_DIR_VARIABLE: str(root.parent / "data"),
        }
        pipe = subprocess.PIPE
        self.out, self.err = "", ""
        self._running = subprocess.Popen(
            [*command, *(() if "resume" in words else ("--model", "scripted")), *words],
            cwd=root,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            preexec_fn=_hear_signals,  # noqa: PLW1509 - it takes no lock
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._running.send_signal(number)

    def say(self, line: str) -> None:
        """Write a line to its input."""
        stdin = cast("IO[bytes]", self._running.stdin)
        stdin.write(line.encode())
        stdin.flush()

    def wait_for_out(self, text: str) -> None:
        """Wait until it has said this on standard output."""
        self.out += _read_until(self._running.stdout, text)

    def wait_for_err(self, text: str) -> None:
        """Wait until it has said this on standard error."""
        self.err += _read_until(self._running.stderr, text)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        out, err = self._running.communicate(timeout=LONG_S)
        self.out, self.err = self.out + out.decode(), self.err + err.decode()
        return self._running.returncode

    def kill(self) -> None:
        """End it, whatever it does."""
        self._running.kill()
        self._running.communicate()


@contextmanager
def mendgraph(root: Path, base_url: str, *words: str, command: Sequence[str | Path] = (COMMAND,)) -> Iterator[Process]:
    """The command, started; it is gone afterwards."""
    started = Process(root, base_url, words, command)
    try:
        yield started
    finally:
        started.kill()


def _read_until(stream: IO[bytes] | None, text: str) -> str:
    """What comes until this text has come, without what follows it."""
    read = b""
    while not read.endswith(text.encode()):
        piece = os.read(stream.fileno(), 1) if stream else b""
        if not piece:
            raise AssertionError(f"it ended without saying {text!r}, after {read.decode()!r}")
        read += piece
    return read.decode()


def _hear_signals() -> None:
    """A shell that starts jobs in the background lets them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
