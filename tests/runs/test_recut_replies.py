"""However the wire brings a recorded reply, its verdict is that of the whole reply, or a typed truncation."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.records import (
    CallError,
    FinishReason,
    JsonMap,
    ModelReply,
    ProviderErrorKind as Kind,
    ProviderFailure,
)
from tests.runs.recutting import (
    Documents,
    Recorded,
    Verdict,
    call_parts,
    deeds,
    growing,
    is_refused,
    recorded_replies,
    repeated,
    replies_of,
    reply_of,
    retold,
    streamed,
    uncounted,
    verdict,
    with_field,
    with_parts,
    without_fields,
)

REPLIES = recorded_replies()
CALLING = [each for each in REPLIES if any(map(call_parts, each.documents))]
PARALLEL = [each for each in CALLING if isinstance(whole := reply_of(each.body), ModelReply) and len(whole.calls) > 1]
SHARES = 4
"""Where each reply is played in many ways, one of so many replies stands for the others."""

PORTION = 5
NOTHING = ModelReply(finish_reason=FinishReason.STOP)
"""What nothing at all is put together to: a chat model of the user's own may say nothing."""

Change = Callable[[Documents], Documents]


@cache
def whole_reply(body: bytes) -> ModelReply:
    """What the body is when it comes in one piece."""
    reply = reply_of(body)
    assert isinstance(reply, ModelReply)
    return reply


def whole_verdict(body: bytes) -> Verdict:
    found = verdict(whole_reply(body))
    assert isinstance(found, Verdict)
    return found


def end_of(body: bytes, word: bytes) -> int:
    """How many bytes have come with the event that holds this word and the line end after it."""
    return body.index(b"\n\n", body.index(word)) + 2


def finish_of(body: bytes) -> int:
    """How many bytes have come with the event that says why the reply ended."""
    ends = [end_of(body, word) for word in (b'"finish_reason": "', b'"finish_reason":"') if word in body]
    return min(ends)


def test_the_cassettes_hold_replies_of_each_kind() -> None:
    """So that none of the tests below is about nothing."""
    readings = Counter(whole_verdict(each.body).native["reading"].value for each in REPLIES)
    assert readings.keys() == {"calls", "malformed", "answer"}
    assert len(REPLIES) >= 150
    assert len(CALLING) >= 50
    assert len(PARALLEL) >= 8


# --- Where the bytes are cut


def test_a_reply_may_come_in_single_bytes_and_is_whole_from_its_finish_event_on() -> None:
    """Before it, what has come is no reply; after it, only its cost may be missing."""
    for name, body in REPLIES[::SHARES]:
        whole, finish = whole_reply(body), finish_of(body)
        came = growing(body)
        assert came[-1] == whole, name
        assert [each for each in came[: finish - 1] if each not in (None, NOTHING)] == [], name
        assert [each and uncounted(each) for each in came[finish - 1 :]] == [uncounted(whole)] * (
            len(body) - finish + 1
        ), name


@given(st.sampled_from(REPLIES), st.randoms(use_true_random=False), st.integers(0, 40))
def test_a_reply_may_come_in_any_pieces(reply: Recorded, chance: random.Random, most: int) -> None:
    cuts = sorted(chance.randint(0, len(reply.body)) for _ in range(most))
    parts = [reply.body[start:end] for start, end in pairwise([0, *cuts, len(reply.body)])]
    assert reply_of(*parts) == reply_of(reply.body)


# --- Where the connection is dropped


def cuts_of(body: bytes) -> list[int]:
    """Places at the end of each event, in the middle of its line end, and within it."""
    ends = [at + 2 for at in range(len(body)) if body[at : at + 2] == b"\n\n"]
    return sorted({0, *ends, *(end - 1 for end in ends), *((start + end) // 2 for start, end in pairwise([0, *ends]))})


@pytest.mark.parametrize("dropped", [False, True], ids=["ended", "broken"])
def test_a_connection_dropped_in_an_event_is_the_whole_reply_or_a_typed_truncation(dropped: bool) -> None:
    for name, body in REPLIES[dropped :: 2 * SHARES]:
        finish, begun = finish_of(body), end_of(body, b"data: ")
        whole, cuts = whole_verdict(body), cuts_of(body)
        for at, result in zip(cuts, replies_of([(body[:at],) for at in cuts], dropped=dropped), strict=True):
            found = verdict(result)
            if at >= finish:
                assert found == whole, (name, at)
                continue
            assert isinstance(found, ProviderFailure), (name, at)
            unheard = Kind.CONNECTION if dropped else Kind.SERVER_ERROR
            assert found.kind is (Kind.INCOMPLETE_STREAM if at >= begun else unheard), (name, at)


def test_what_a_reply_has_cost_is_known_once_it_was_told() -> None:
    """However the connection ends then: the budget is charged."""
    for name, body in REPLIES:
        counted = end_of(body, b'"usage"') if b'"usage"' in body else len(body)
        ended, broken = reply_of(body[:counted]), reply_of(body[:counted], dropped=True)
        assert ended == broken == whole_reply(body), name


# --- How calls are told apart


def calls_of(reply: Recorded) -> list[list[JsonMap]]:
    """For each call of a reply the parts in which it was sent, its head first."""
    found: dict[int, list[JsonMap]] = {}
    for document in retold(reply.documents, PORTION):
        for part in call_parts(document):
            found.setdefault(part["index"], []).append(part)
    return [found[index] for index in sorted(found)]


def merged(calls: Sequence[Sequence[JsonMap]], chance: random.Random) -> list[JsonMap]:
    """The parts of the calls in any order that keeps that of each call, and that of their heads."""
    rest = [list(parts) for parts in calls]
    begun = 0
    together: list[JsonMap] = []
    while any(rest):
        at = chance.choice([at for at, parts in enumerate(rest) if parts and at <= begun])
        begun = max(begun, at + 1)
        together.append(rest[at].pop(0))
    return together


def with_calls(reply: Recorded, parts: Sequence[JsonMap]) -> Documents:
    """The reply with these parts of calls, one in each event, in place of its own."""
    documents = reply.documents
    first = next(at for at, document in enumerate(documents) if call_parts(document))
    others = [document for document in documents[first:] if not call_parts(document)]
    return (*documents[:first], *(with_parts(documents[first], [part]) for part in parts), *others)


@given(st.sampled_from(PARALLEL), st.randoms(use_true_random=False))
def test_parallel_calls_may_be_told_in_turns(reply: Recorded, chance: random.Random) -> None:
    told = streamed(with_calls(reply, merged(calls_of(reply), chance)))
    assert reply_of(told) == reply_of(reply.body)


TOLD_APART: dict[str, Change] = {
    "no ids": lambda told: without_fields(told, "id"),
    "empty ids": lambda told: with_field(told, "id", ""),
    "equal ids": lambda told: with_field(told, "id", "call_x"),
    "no indexes": lambda told: without_fields(told, "index"),
    "equal indexes": lambda told: with_field(told, "index", 0),
    "ids in each part": lambda told: repeated(told, "id"),
    "ids in each part, no indexes": lambda told: without_fields(repeated(told, "id"), "index"),
}
"""What an endpoint may do to ids and indexes after which each call is still known from the others."""

MIXED_UP: dict[str, Change] = {
    "no ids, no indexes": lambda told: without_fields(told, "id", "index"),
    "no ids, equal indexes": lambda told: with_field(without_fields(told, "id"), "index", 0),
    "equal ids, no indexes": lambda told: with_field(without_fields(told, "index"), "id", "call_x"),
    "equal ids and indexes": lambda told: with_field(with_field(told, "id", "call_x"), "index", 0),
    "names in each part, no ids": lambda told: without_fields(repeated(told, "name"), "id"),
}
"""What an endpoint may do after which nobody can tell where a call ends."""


@pytest.mark.parametrize("fault", TOLD_APART)
def test_a_call_is_known_by_its_id_or_by_its_index(fault: str) -> None:
    for reply in CALLING[::SHARES]:
        found = whole_verdict(streamed(TOLD_APART[fault](reply.documents)))
        assert [*map(deeds, found)] == [*map(deeds, whole_verdict(reply.body))], reply.name
        for update in found:
            ids = [item.call_id for item in update["items"]]
            assert len(set(ids)) == len(ids), reply.name


@pytest.mark.parametrize("fault", MIXED_UP)
def test_calls_that_cannot_be_told_apart_are_the_same_calls_or_errors(fault: str) -> None:
    for reply in CALLING[::SHARES]:
        meant = whole_verdict(reply.body)
        for update, whole in zip(whole_verdict(streamed(MIXED_UP[fault](reply.documents))), meant, strict=True):
            assert_none_is_made_up(update, whole, reply.name)


def assert_none_is_made_up(update: JsonMap, whole: JsonMap, name: str) -> None:
    """What is to be done is what was meant, or a part of it with an error for what is missing."""
    lost = len(deeds(whole)) - len(deeds(update))
    errors = [item for item in update["items"] if isinstance(item, CallError)]
    assert is_part_of(deeds(update), deeds(whole)), name
    assert is_refused(update) or bool(errors) or not lost, name


def is_part_of(some: Sequence[object], whole: Sequence[object]) -> bool:
    """Whether these stand in the whole, in order, perhaps with others between them."""
    rest = iter(whole)
    return all(each in rest for each in some)
