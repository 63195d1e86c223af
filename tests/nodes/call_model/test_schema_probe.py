import asyncio
from dataclasses import replace
from threading import Barrier

import pytest

from nodes.call_model.client import OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.call_model.schema_probe import SchemaProbe, response_format
from nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Reply, Say, ScriptedServer, Status

SCHEMA = {"type": "object", "anyOf": [{"type": "object"}]}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "tool_call", "schema": SCHEMA, "strict": False}}
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": {}}}
PROMPT = Prompt(messages=({"role": "user", "content": "Hi"},), tools=(TOOL,))
FREE = Call(prompt=PROMPT, max_output_tokens=50, timeout_s=5.0)
BOUND = FREE.model_copy(update={"prompt": replace(PROMPT, response_schema=SCHEMA)})
Result = ModelReply | ProviderFailure


def asked(calls: list[Call], script: list[Reply], *, asynchronous: bool) -> tuple[list[str], list[str], list[JsonMap]]:
    """What one client makes of these calls, one after the other (texts and kinds of failure), and its requests."""
    said: list[str] = []

    async def in_turn(model: OpenAIModel) -> list[Result]:
        try:
            return [await model.acomplete(call, said.append) for call in calls]
        finally:
            await model.aclose()

    with ScriptedServer(script) as server:
        model = OpenAIModel(Endpoint(model="m", base_url=server.base_url))
        if asynchronous:
            results = asyncio.run(in_turn(model))
        else:
            results = [model.complete(call, said.append) for call in calls]
            model.close()
    return [each.text if isinstance(each, ModelReply) else each.kind.value for each in results], said, server.requests


def bound(requests: list[JsonMap]) -> list[bool]:
    """Which requests carried the schema; they are all the same otherwise, tools included."""
    rest = [{name: value for name, value in request.items() if name != "response_format"} for request in requests]
    assert rest == [{**rest[0], "tools": [TOOL]}] * len(rest)
    assert all(request.get("response_format") in (None, RESPONSE_FORMAT) for request in requests)
    return ["response_format" in request for request in requests]


BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True])
OVERFLOW = Status(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})


@BOTH_WAYS
def test_an_endpoint_that_takes_a_schema_is_asked_once(asynchronous: bool) -> None:
    results, said, requests = asked([BOUND, FREE, BOUND], [Say("a"), Say("b"), Say("c")], asynchronous=asynchronous)
    assert (results, said, bound(requests)) == (["a", "b", "c"], ["a", "b", "c"], [True, False, True])


@BOTH_WAYS
@pytest.mark.parametrize("code", [400, 422])
def test_an_endpoint_that_refuses_schemas_is_asked_without_and_remembered(code: int, asynchronous: bool) -> None:
    results, said, requests = asked([BOUND, BOUND], [Status(code), Say("a"), Say("b")], asynchronous=asynchronous)
    assert (results, said, bound(requests)) == (["a", "b"], ["a", "b"], [True, False, False])


@BOTH_WAYS
@pytest.mark.parametrize("second", [Status(400), Status(500), Status(429)])
def test_a_second_try_that_fails_is_what_the_call_came_to_and_teaches_nothing(
    second: Status, asynchronous: bool
) -> None:
    results, said, requests = asked([BOUND, BOUND], [Status(400), second, Say("a")], asynchronous=asynchronous)
    kinds = {400: "bad_request", 500: "server_error", 429: "rate_limited"}
    assert (results, said, bound(requests)) == ([kinds[second.code], "a"], ["a"], [True, False, True])


@BOTH_WAYS
@pytest.mark.parametrize("status", [OVERFLOW, Status(401), Status(404), Status(429), Status(500)])
def test_only_a_refused_request_is_sent_again(status: Status, asynchronous: bool) -> None:
    _, said, requests = asked([BOUND], [status], asynchronous=asynchronous)
    assert (said, bound(requests)) == ([], [True])


@BOTH_WAYS
def test_a_call_without_a_schema_is_not_sent_again(asynchronous: bool) -> None:
    results, said, requests = asked([FREE], [Status(400)], asynchronous=asynchronous)
    assert (results, said, bound(requests)) == (["bad_request"], [], [False])


def test_calls_that_are_refused_together_are_all_answered() -> None:
    together = Barrier(3)

    def answer(request: JsonMap) -> Reply:
        if "response_format" not in request:
            return Say("a")
        together.wait(10)
        return Status(400)

    async def ask_together(model: OpenAIModel) -> list[Result]:
        try:
            return await asyncio.gather(*(model.acomplete(BOUND, print) for _ in range(3)))
        finally:
            await model.aclose()

    with ScriptedServer(then=answer) as server:
        results = asyncio.run(ask_together(OpenAIModel(Endpoint(model="m", base_url=server.base_url))))
    assert [each.text for each in results if isinstance(each, ModelReply)] == ["a", "a", "a"]


REFUSED = ProviderFailure(kind=ProviderErrorKind.BAD_REQUEST, message="no")


def test_the_second_try_has_only_the_rest_of_the_time() -> None:
    probe = SchemaProbe()
    assert probe.second_try(BOUND, REFUSED, 2.0) == FREE.model_copy(update={"timeout_s": 3.0})
    assert probe.second_try(BOUND, REFUSED, 9.0) == FREE.model_copy(update={"timeout_s": 0.001})
    assert probe.second_try(FREE, REFUSED, 2.0) is None
    assert probe.second_try(BOUND, ModelReply(text="a"), 2.0) is None


def test_what_one_endpoint_refuses_another_may_take() -> None:
    one, other = SchemaProbe(), SchemaProbe()
    assert one.learned(REFUSED) == REFUSED
    assert one.as_taken(BOUND) == BOUND
    assert one.learned(ModelReply(text="a")) == ModelReply(text="a")
    assert (one.as_taken(BOUND), one.as_taken(FREE), other.as_taken(BOUND)) == (FREE, FREE, BOUND)


def test_the_field_of_the_request() -> None:
    assert response_format(SCHEMA) == RESPONSE_FORMAT
