import socket

import pytest

from graph.cassettes import offline
from graph.cassettes.offline import OfflineError


def explain(host: str) -> str:
    return f"not {host}"


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("a.b", False)],
)
def test_loopback_is_this_machine_as_itself(host: str, answer: bool) -> None:
    assert offline.is_loopback(host) is answer


def test_nothing_is_reached_but_what_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with offline.only(lambda host: host == "localhost", explain):
            with socket.socket() as client, pytest.raises(OfflineError, match=r"^not 127\.0\.0\.1$"):
                client.connect(address)
            with socket.socket() as client, pytest.raises(OfflineError, match=r"^not 127\.0\.0\.1$"):
                client.connect_ex(address)
            with pytest.raises(OfflineError, match=r"^not example\.org$"):
                socket.getaddrinfo(b"example.org", 80)
            assert socket.getaddrinfo("localhost", 80)
            assert socket.getaddrinfo(None, 80)
        with socket.socket() as client:
            client.connect(address)


def test_sockets_without_a_host_are_free_and_blocks_nest() -> None:
    with offline.only(lambda _: False, explain), offline.only(lambda _: True, str):
        for end in socket.socketpair():
            end.close()
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(FileNotFoundError):
            client.connect("/nowhere/at/all")
        with pytest.raises(OfflineError, match="not localhost"):
            socket.getaddrinfo("localhost", 80)
