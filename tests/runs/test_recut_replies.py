"""However the wire brings a recorded reply, its verdict is that of the whole reply, or a typed truncation."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from itertools import chain, pairwise, product

import httpx2
import pytest
from hypothesis import given, strategies as st

from mendgraph.graph.langchain.chat_models import EndpointModel, endpoint_chat, endpoint_model
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.records import (
    CallError,
    FinishReason,
    JsonMap,
    ModelReply,
    ProviderErrorKind as Kind,
    ProviderFailure,
)
from tests.runs.recutting import (
    CALL,
    DONE,
    Documents,
    Recorded,
    Result,
    Verdict,
    call_parts,
    deeds,
    escaped,
    foreign_letters,
    growing,
    is_refused,
    recorded_replies,
    repeated,
    replies_of,
    reply_of,
    retold,
    sent_together,
    streamed,
    timeless,
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

LETTERS = "ä漢😀"
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


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(
    ("between", "end"),
    [
        ("", DONE),
        ("", ""),
        (": keep-alive\n\n", DONE),
        ("event: x\nid: 7\nretry: 3\n", DONE),
        ("", f"{DONE}\n\ndata: {{"),
    ],
    ids=["as recorded", "not done", "kept alive", "named", "more after the end"],
)
def test_line_ends_comments_and_a_missing_end_say_nothing(newline: str, between: str, end: str) -> None:
    for name, body in REPLIES[1 :: 2 * SHARES]:
        whole = whole_reply(body)
        sent = streamed(Recorded(name, body).documents, newline, between, end)
        assert reply_of(sent) == whole, name


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_text_may_come_in_any_portions_also_of_half_characters(size: int) -> None:
    for reply in REPLIES[size % SHARES :: SHARES]:
        documents = foreign_letters(reply.documents, LETTERS)
        told = retold(documents, size)
        assert reply_of(streamed(documents)) == reply_of(escaped(told)), reply.name


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


class Broken(httpx2.AsyncByteStream):
    """A body of two parts, whose connection then breaks."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.body[: len(self.body) // 2]
        yield self.body[len(self.body) // 2 :]
        raise httpx2.RemoteProtocolError("peer closed connection")


def answered(bodies: Sequence[bytes]) -> list[Result]:
    """What a request comes to that is answered with each body, without a network."""
    sent = b""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Broken(sent))

    async def asked() -> list[Result]:
        nonlocal sent
        endpoint = Endpoint(model="m", base_url="http://llm.test/v1")
        model = endpoint_model(endpoint, PLAIN)
        assert isinstance(model, EndpointModel)
        chat = endpoint_chat(endpoint, PLAIN, verify=False, transport=httpx2.MockTransport(answer))
        model.clients[asyncio.get_running_loop()] = chat
        found = []
        for body in bodies:
            sent = body
            found.append(timeless(await model.acomplete(CALL, lambda _: None)))
        await model.aclose()
        return found

    return asyncio.run(asked())


def test_a_request_that_is_answered_comes_to_the_same() -> None:
    """So that what is shown above of replies without a request holds for all of the client."""
    bodies = [reply.body[:at] for reply in REPLIES[:: 3 * SHARES] for at in cuts_of(reply.body)]
    assert answered(bodies) == replies_of([(body,) for body in bodies], dropped=True)


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


def numbered(calls: Sequence[Sequence[JsonMap]]) -> list[list[JsonMap]]:
    """The calls as one reply would tell them, each with an index and an id of its own."""
    return [
        [{**part, "index": index, **({"id": f"call_{index}"} if "id" in part else {})} for part in parts]
        for index, parts in enumerate(calls)
    ]


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


@given(st.lists(st.sampled_from(CALLING), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_calls_of_several_replies_may_be_told_in_turns_as_one(replies: list[Recorded], chance: random.Random) -> None:
    calls = numbered([parts for reply in replies for parts in calls_of(reply)])
    one_by_one = whole_reply(streamed(with_calls(replies[0], list(chain(*calls)))))
    assert len(one_by_one.calls) == len(calls)
    assert reply_of(streamed(with_calls(replies[0], merged(calls, chance)))) == one_by_one


def as_sent(documents: Documents) -> Documents:
    return documents


def in_portions(documents: Documents) -> Documents:
    return retold(documents, PORTION)


SHAPED = pytest.mark.parametrize("shape", [as_sent, sent_together, in_portions], ids=["as sent", "whole", "small"])
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


@SHAPED
@pytest.mark.parametrize("fault", TOLD_APART)
def test_a_call_is_known_by_its_id_or_by_its_index(fault: str, shape: Change) -> None:
    for reply in CALLING[::SHARES]:
        found = whole_verdict(streamed(TOLD_APART[fault](shape(reply.documents))))
        assert [*map(deeds, found)] == [*map(deeds, whole_verdict(reply.body))], reply.name
        for update in found:
            ids = [item.call_id for item in update["items"]]
            assert len(set(ids)) == len(ids), reply.name


@SHAPED
@pytest.mark.parametrize("fault", MIXED_UP)
def test_calls_that_cannot_be_told_apart_are_the_same_calls_or_errors(fault: str, shape: Change) -> None:
    for reply in CALLING[::SHARES]:
        meant = whole_verdict(reply.body)
        for update, whole in zip(whole_verdict(streamed(MIXED_UP[fault](shape(reply.documents)))), meant, strict=True):
            assert_none_is_made_up(update, whole, reply.name)


def assert_none_is_made_up(update: JsonMap, whole: JsonMap, name: str) -> None:
    """What is to be done is what was meant, or a part of it with an error for what is missing."""
    lost = len(deeds(whole)) - len(deeds(update))
    errors = [item for item in update["items"] if isinstance(item, CallError)]
    assert is_part_of(deeds(update), deeds(whole)), name
    assert is_refused(update) or bool(errors) or not lost, name


HEAD: JsonMap = {"index": 0, "id": "x", "type": "function", "function": {"name": "list_files", "arguments": ""}}
WITHOUT_ARGUMENTS = [[HEAD], [HEAD, {"index": 0, "function": {"arguments": "{}"}}]]


def test_a_call_without_arguments_is_no_part_of_the_call_beside_it() -> None:
    for reply, fault, none in product(CALLING[:: 2 * SHARES], MIXED_UP.values(), WITHOUT_ARGUMENTS):
        if any(part["function"].get("name") == "list_files" for call in calls_of(reply) for part in call):
            continue
        for calls in (numbered([none, *calls_of(reply)]), numbered([*calls_of(reply), none])):
            documents = with_calls(reply, list(chain(*calls)))
            meant = whole_verdict(streamed(documents))
            for update, whole in zip(whole_verdict(streamed(fault(documents))), meant, strict=True):
                assert_none_is_made_up(update, whole, reply.name)


def is_part_of(some: Sequence[object], whole: Sequence[object]) -> bool:
    """Whether these stand in the whole, in order, perhaps with others between them."""
    rest = iter(whole)
    return all(each in rest for each in some)
