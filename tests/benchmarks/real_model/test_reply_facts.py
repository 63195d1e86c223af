import json

import pytest

from benchmarks.real_model.reply_facts import ReplyFacts, is_complete, read_facts

TIMINGS = {"cache_n": 34, "prompt_n": 1, "predicted_n": 3}
USAGE = {"prompt_tokens": 35, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 34}}


def document(**extra: object) -> bytes:
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Hello!"}}
    return json.dumps({"choices": [choice], **extra}).encode()


def stream(*documents: object) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in documents) + b"data: [DONE]\n\n"


def chunk(delta: object, finish_reason: str | None = None, **extra: object) -> object:
    return {"choices": [{"finish_reason": finish_reason, "index": 0, "delta": delta}], **extra}


@pytest.mark.parametrize(
    "body",
    [
        document(timings=TIMINGS, usage=USAGE),
        document(usage=USAGE),
        stream(chunk({"content": "Hello!"}), chunk({}, "stop", timings=TIMINGS)),
        stream(chunk({"content": "Hello!"}), chunk({}, "stop"), {"choices": [], "usage": USAGE, "timings": TIMINGS}),
    ],
)
def test_the_figures_are_the_same_whichever_way_they_come(body: bytes) -> None:
    wanted = ReplyFacts(prompt_tokens=35, cached_tokens=34, completion_tokens=3, finish_reason="stop")
    assert read_facts(body) == wanted


@pytest.mark.parametrize(
    ("body", "streamed", "complete"),
    [
        (stream(chunk({"content": "a"})), True, True),
        (stream(chunk({"content": "a"}))[:-20], True, False),
        (document(), False, True),
        (document()[:-1], False, False),
        (b"", False, False),
    ],
)
def test_a_reply_that_was_cut_off_is_known(body: bytes, streamed: bool, complete: bool) -> None:
    assert is_complete(body, streamed) is complete
