import socket
import time
from collections.abc import Iterator
from threading import Thread

import httpx2
import pytest

from nodes.call_model.failures import IdleTimeoutError, TotalTimeoutError
from nodes.call_model.reply_clock import Clock, bind_reads, timed_by


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_before_the_first_part_only_the_whole_counts() -> None:
    ticks = Time()
    clock = Clock(ticks, 60.0, 5.0)
    ticks.now += 59
    clock.check()
    assert (clock.left(), clock.seconds) == (1.0, 59.0)
    ticks.now += 1
    with pytest.raises(TotalTimeoutError, match="no complete reply within 60 s"):
        clock.check()


def test_after_it_silence_counts() -> None:
    ticks = Time()
    clock = Clock(ticks, 60.0, 5.0)
    for _ in range(3):
        ticks.now += 4
        clock.part()
    assert clock.left() == 5.0
    ticks.now += 5
    with pytest.raises(IdleTimeoutError, match=r"nothing more came for 5 s"):
        clock.check()


def test_the_whole_is_named_where_it_ends_first() -> None:
    ticks = Time()
    clock = Clock(ticks, 10.0, 5.0)
    ticks.now += 8
    clock.part()
    ticks.now += 2
    with pytest.raises(TotalTimeoutError):
        clock.check()


def test_without_a_limit_silence_is_free() -> None:
    ticks = Time()
    clock = Clock(ticks, 10.0, None)
    clock.part()
    ticks.now += 9
    assert clock.left() == 1.0


def test_a_complete_reply_waits_a_moment_for_its_end() -> None:
    ticks = Time()
    clock = Clock(ticks, 60.0, 5.0)
    clock.part()
    clock.leave(0.5)
    assert clock.left() == 0.5


@pytest.fixture
def drips() -> Iterator[str]:
    """An address where each request is answered by one byte of a header after another."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(5)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            connection.recv(1)  # until the client is gone

    thread = Thread(target=serve, daemon=True)
    thread.start()
    with listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(5)


def test_reads_of_this_context_end_with_its_clock(drips: str) -> None:
    with httpx2.Client(verify=False, trust_env=False, timeout=60) as client:
        bind_reads(client)
        clock = Clock(time.monotonic, 0.05, None)
        with timed_by(clock), pytest.raises(httpx2.ReadTimeout):
            client.get(drips)
        assert clock.left() <= 0


def test_a_clock_that_has_run_out_reads_nothing(drips: str) -> None:
    clock = Clock(Time(), 0.0, None)
    with httpx2.Client(verify=False, trust_env=False, timeout=60) as client:
        bind_reads(client)
        with timed_by(clock), pytest.raises(httpx2.TimeoutException):
            client.get(drips)


def test_connections_through_a_proxy_are_bound_as_well(drips: str) -> None:
    with httpx2.Client(verify=False, proxy=drips, timeout=60) as client:
        bind_reads(client)
        with timed_by(Clock(Time(), 0.0, None)), pytest.raises(httpx2.TimeoutException):
            client.get("http://llm.test/v1")


def test_without_a_clock_the_clients_own_times_hold(drips: str) -> None:
    with httpx2.Client(verify=False, trust_env=False, timeout=0.05) as client:
        bind_reads(client)
        with pytest.raises(httpx2.ReadTimeout):
            client.get(drips)
