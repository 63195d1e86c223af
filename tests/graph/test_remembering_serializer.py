from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph.remembering_serializer import RememberingSerializer


class Counted(JsonPlusSerializer):
    """Notes what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.read.append(data[1])
        return super().loads_typed(data)


def test_what_was_read_lately_is_given_again() -> None:
    counted = Counted()
    serde = RememberingSerializer(counted)
    stored = serde.dumps_typed({"a": [1]})
    assert stored == JsonPlusSerializer().dumps_typed({"a": [1]})
    first = serde.loads_typed(stored)
    assert first == {"a": [1]}
    assert serde.loads_typed((stored[0], bytes(bytearray(stored[1])))) is first
    assert counted.read == [stored[1]]


def test_the_kind_tells_equal_bytes_apart() -> None:
    serde = RememberingSerializer(JsonPlusSerializer())
    assert [serde.loads_typed((kind, b"\x01")) for kind in ("msgpack", "bytes", "msgpack")] == [1, b"\x01", 1]


def test_what_was_asked_for_least_lately_is_forgotten_first() -> None:
    counted = Counted()
    serde = RememberingSerializer(counted, budget=25)
    one, two, three = (("bytes", letter * 10) for letter in (b"1", b"2", b"3"))
    for stored in (one, two, one, three, one, three, two):
        assert serde.loads_typed(stored) == stored[1]
    assert counted.read == [one[1], two[1], three[1], two[1]]


def test_what_is_larger_than_all_that_is_remembered_is_read_each_time() -> None:
    counted = Counted()
    serde = RememberingSerializer(counted, budget=25)
    small, large = ("bytes", b"x"), ("bytes", b"x" * 26)
    for stored in (small, large, large, small):
        serde.loads_typed(stored)
    assert counted.read == [small[1], large[1], large[1], small[1]]


def test_threads_do_not_disturb_each_other() -> None:
    serde = RememberingSerializer(JsonPlusSerializer(), budget=40)
    stored = [("bytes", str(number % 20).encode() * 5) for number in range(2_000)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(serde.loads_typed, stored)) == [data for _, data in stored]


def test_what_two_threads_read_at_once_is_counted_once() -> None:
    both = Barrier(2)

    class AtOnce(Counted):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            if data == one:
                both.wait(60)
            return super().loads_typed(data)

    counted = AtOnce()
    serde = RememberingSerializer(counted, budget=25)
    one, two = ("bytes", b"1" * 10), ("bytes", b"2" * 10)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(serde.loads_typed, (one, one))) == [one[1], one[1]]
    assert [serde.loads_typed(stored) for stored in (two, one)] == [two[1], one[1]]
    assert counted.read == [one[1], one[1], two[1]]


def test_an_error_is_remembered_by_nobody() -> None:
    counted = Counted()
    serde = RememberingSerializer(counted)
    for _ in range(2):
        with pytest.raises(NotImplementedError):
            serde.loads_typed(("unknown", b""))
    assert counted.read == [b"", b""]
