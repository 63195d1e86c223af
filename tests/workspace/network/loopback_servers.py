"""Servers on loopback with scripted bytes, and a network backend that connects every address to one of them."""

import datetime as dt
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpcore2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

Answer = Callable[[bytes], Iterable[bytes]]
"""Maps the head of a request to the pieces of its answer."""


def http_answer(body: bytes = b"hello", status: str = "200 OK", **headers: str) -> bytes:
    """One complete response; keyword arguments such as `content_type` replace default headers."""
    named = {"content_type": "text/plain", "content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in named.items() if value]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def require_loopback(host: str) -> str:
    """Return the host, or skip the test if this machine cannot bind it (IPv6 in some containers)."""
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    return host


class Listener:
    """A server that answers one connection after the other, and counts what reaches it.

    `at_once` answers before anything is asked. `requests` has what each connection sent, up to the end of its head. At
    the end of the block whoever still waits is heard, so that after it the counts are final, and it stops by itself.
    """

    def __init__(
        self,
        answer: bytes | Answer = b"",
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        at_once: bool = False,
    ) -> None:
        self._answer = (lambda _: [answer]) if isinstance(answer, bytes) else answer
        self._tls, self._at_once = tls, at_once
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.settimeout(0.02)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.stopped = threading.Event()
        self.connections = 0
        self.requests: list[bytes] = []

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stopped.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                if self.stopped.is_set():
                    return
                continue
            self.connections += 1
            with connection:
                connection.settimeout(5)
                try:
                    self._talk(connection)
                except OSError:
                    continue

    def _talk(self, connection: socket.socket) -> None:
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            self.requests.append(b"")
            while not self._at_once and b"\r\n\r\n" not in self.requests[-1]:
                chunk = connection.recv(65_536)
                if not chunk:
                    return
                self.requests[-1] += chunk
            for piece in self._answer(self.requests[-1]):
                if self.stopped.is_set():
                    return
                connection.sendall(piece)


def certificate_for(name: str, folder: Path) -> str:
    """Write a self-signed certificate for `name` with its key to a new file; returns its path."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + secret)
    return str(path)


def serving(certificate: str) -> ssl.SSLContext:
    """The TLS context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class Everywhere(httpcore2.NetworkBackend):
    """A network backend that connects every address to one listener and reports the requested address as the peer.

    `connected` lists the requested addresses. `far_end` is reported as the peer instead.
    """

    def __init__(self, listener: Listener, *, far_end: str = "", dead: Sequence[str] = ()) -> None:
        self._listener, self._far_end, self._dead = listener, far_end, dead
        self.connected: list[str] = []

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        del local_address, socket_options
        self.connected.append(host)
        if host in self._dead:
            raise httpcore2.ConnectError("nobody is there")
        inner = httpcore2.SyncBackend().connect_tcp("127.0.0.1", self._listener.port, timeout)
        return _Elsewhere(inner, (self._far_end or host, port))


class _Elsewhere(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, address: tuple[str, int]) -> None:
        self._inner, self._address = inner, address

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Elsewhere(self._inner.start_tls(ssl_context, server_hostname, timeout), self._address)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._address if info == "server_addr" else self._inner.get_extra_info(info)
