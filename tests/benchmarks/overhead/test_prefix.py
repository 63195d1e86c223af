import json

from benchmarks.overhead.prefix import PrefixRecord


def body(*texts: str, tools: int = 1) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "tools": [{}] * tools, "messages": messages}).encode()


def record(*bodies: bytes) -> PrefixRecord:
    made = PrefixRecord()
    for each in bodies:
        made.add(each)
    return made


def test_what_was_sent_before_can_be_cached() -> None:
    one = len('{"role":"user","content":"a"}')
    made = record(body("a"), body("a", "b"), body("a", "b", "c"))
    assert (made.requests, made.breaks, made.first) == (3, 0, len(body("a")))
    assert (made.cacheable, made.total) == (4 + 3 * one + 4, 12 + 6 * one)
    assert made.percent == 100 * made.cacheable / made.total


def test_behind_a_message_that_has_changed_nothing_can_be_cached() -> None:
    made = record(body("a", "b", "c"), body("a", "x", "c"))
    assert (made.breaks, made.cacheable) == (1, 4 + len('{"role":"user","content":"a"}'))


def test_other_tools_spoil_all_of_it() -> None:
    made = record(body("a"), body("a", "b", tools=2))
    assert (made.breaks, made.cacheable) == (1, 0)


def test_nothing_was_sent() -> None:
    assert PrefixRecord().percent == 0.0
