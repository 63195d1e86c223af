"""A wire between PostgreSQL's clients and its server, which a test may cut."""

import socket
import threading
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

_MOST: Final = 1 << 20


class Wire:
    """Forwards what clients of `url` send to the server at `server`, whose socket is in a folder.

    `sent` counts what they send. What has the number `at` does not arrive, or where `late` is not answered any more:
    then the wire is cut, and works again for who connects anew.
    """

    def __init__(self, server: str, at: int = 0, *, late: bool = False) -> None:
        before, _, tail = server.partition("@")
        self.sent, self._at, self._late = 0, at, late
        self._beyond = f"{unquote(tail.partition('host=')[2])}/.s.PGSQL.5432"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._unanswered = False
        self._lock = threading.Lock()
        self.url = f"{before}@127.0.0.1:{self._listening.getsockname()[1]}{tail.partition('?')[0]}"
        self._start(self._accept)

    def cut(self) -> None:
        with self._lock:
            ending = [*self._open]
        for connection in ending:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for opened in (self._listening, *self._open):
            opened.close()

    def _start(self, *work: Any) -> None:
        self._threads.append(threading.Thread(target=work[0], args=work[1:], daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.socket(socket.AF_UNIX)
                try:
                    far.connect(self._beyond)
                except OSError:
                    near.close()
                    far.close()
                    continue
                with self._lock:
                    self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    self._start(self._forward, source, target, source is near)

    def _forward(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_MOST):
                if self._arrives(asks):
                    target.sendall(data)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _arrives(self, asks: bool) -> bool:
        """Whether what was sent arrives; at its time the wire is cut."""
        with self._lock:
            self.sent += asks
            due = asks and self.sent == self._at
            happens = (due and not self._late) or (self._unanswered and not asks)
            self._unanswered = (due and self._late) or (self._unanswered and not happens)
        if happens:
            self.cut()
        return not happens
