"""Tests cannot connect to other hosts, whichever function they call."""

import asyncio
import socket

import pytest

from tests import network
from tests.network import NetworkBlockedError


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the sockets that these lines leave behind
def test_other_hosts_are_blocked_and_in_a_replay_loopback_too() -> None:
    for reach in (
        lambda: socket.create_connection(("10.0.0.1", 80)),
        lambda: socket.create_connection(("llm.test", 80)),
        lambda: socket.getaddrinfo(b"llm.test", 80),
        lambda: socket.socket().connect(("10.0.0.1", 80)),
        lambda: socket.socket().connect_ex(("10.0.0.1", 80)),
        lambda: asyncio.run(asyncio.open_connection("llm.test", 80)),
    ):
        with pytest.raises(NetworkBlockedError, match=r"a test tried to reach '(10\.0\.0\.1|llm\.test)'"):
            reach()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address).close()
        with network.no_network(), pytest.raises(NetworkBlockedError):
            socket.create_connection(address)
        socket.create_connection(address).close()
