import asyncio
import socket
from collections.abc import Callable

import pytest

from tests import network
from tests.network import NetworkBlockedError


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection(("10.0.0.1", 80)),
        lambda: socket.create_connection(("llm.test", 80)),
        lambda: socket.getaddrinfo(b"llm.test", 80),
        lambda: socket.socket().connect(("10.0.0.1", 80)),
        lambda: socket.socket().connect_ex(("10.0.0.1", 80)),
        lambda: asyncio.run(asyncio.open_connection("llm.test", 80)),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the sockets that these lines leave behind
def test_every_test_is_kept_from_other_hosts(reach: Callable[[], object]) -> None:
    with pytest.raises(NetworkBlockedError, match=r"a test tried to reach '(10\.0\.0\.1|llm\.test)'"):
        reach()


def test_loopback_is_open_and_closed_to_replays() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address).close()
        with network.nobody(), pytest.raises(NetworkBlockedError):
            socket.create_connection(address)
        socket.create_connection(address).close()
