"""HTTP/1.1 on loopback with connections that stay open, as hosted endpoints keep them."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

POLL_S = 0.01
"""How soon the listener notices that it is to stop, in seconds."""


class Listener(ThreadingHTTPServer):
    """Serves connections on a free port, each in a thread of its own, until `stop`.

    `endpoint` is the scripted endpoint that the handler asks for its answers.
    """

    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, handler: type["ConnectionHandler"], endpoint: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.endpoint = endpoint
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let answers that have begun end, close all connections, and wait for their threads."""
        self.shutdown()
        self._thread.join()

        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            end_reading(connection)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)


class ConnectionHandler(BaseHTTPRequestHandler):
    """One connection and its requests. It stays open between them, as the client of an endpoint expects."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart
    timeout = 60

    @property
    def request_headers(self) -> dict[str, str]:
        """The headers of the request, with names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def start_answer(self, status: int, headers: dict[str, str]) -> None:
        """Send the status line and the headers; a connection that will close says so."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def send_document(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.start_answer(status, length | (headers or {}))
        self.wfile.write(body)

    def send_chunk(self, data: bytes) -> None:
        """Send a chunk of a body whose length nobody knows before; an empty one ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Print nothing."""


def end_reading(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RD)
    except OSError:
        return  # the client has closed it
