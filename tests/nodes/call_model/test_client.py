import asyncio
import gc
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from nodes.call_model import client
from nodes.call_model.client import Connections, OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, RawCall
from tests.doubles.scripted_server import (
    Calls,
    Chunked,
    Cut,
    Disconnect,
    Empty,
    Filtered,
    NoFinish,
    Refuse,
    Reply,
    Say,
    ScriptedServer,
    Slow,
    Status,
)

MESSAGES: tuple[JsonMap, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix 😀.py"})
INPUT = len(json.dumps(MESSAGES, ensure_ascii=False)) // 4  # as the double counts where the script does not say
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": {}}}
CALL = Call(prompt=Prompt(messages=MESSAGES), max_output_tokens=50, timeout_s=5.0)
FULL = Call(
    prompt=Prompt(messages=MESSAGES, tools=(TOOL,), stop=("\ntool_result(",), temperature=0.5),
    max_output_tokens=50,
    timeout_s=5.0,
    seed=7,
)
Result = ModelReply | ProviderFailure


async def aask(model: OpenAIModel, call: Call, on_text: Callable[[str], None]) -> Result:
    try:
        return await model.acomplete(call, on_text)
    finally:
        await model.aclose()


def ask(reply: Reply, call: Call = CALL) -> tuple[Result, list[str]]:
    """What the client makes of a reply; sync and async have to say the same, over the same bytes."""
    results: list[tuple[Result, list[str]]] = []
    sent: list[tuple[JsonMap, str]] = []
    for asynchronous in (False, True):
        said: list[str] = []
        with ScriptedServer([reply]) as server:
            model = OpenAIModel(Endpoint(model="m", base_url=server.base_url, api_key=SecretStr("hunter2-hunter2")))
            if asynchronous:
                result = asyncio.run(aask(model, call, said.append))
            else:
                result = model.complete(call, said.append)
                model.close()
        results.append((plain(result, server.base_url), said))
        sent.append((server.requests[0], server.headers[0]["content-length"]))
    assert results[0] == results[1]
    assert sent[0] == sent[1]
    return results[0]


def plain(result: Result, base_url: str) -> Result:
    """The result without what differs from run to run: the time it took and the port."""
    if isinstance(result, ModelReply):
        return result.model_copy(update={"seconds": 0.0})
    return result.model_copy(update={"message": result.message.replace(base_url, "URL")})


def replied(text: str = "", finish: FinishReason = FinishReason.STOP, **fields: Any) -> ModelReply:
    return ModelReply(text=text, finish_reason=finish, model="m", **fields)


def called(call_id: str, tool: str, arguments: str) -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


CUT_CALL = ("edit_file", '{"path": "a.py", "text": "x = 1', "x")
CUT_CALLS = (called("x", *CUT_CALL[:2]),)
COUNTED: dict[str, Any] = {"input_tokens": 70, "output_tokens": 3}


@pytest.mark.parametrize(
    ("reply", "expected", "said"),
    [
        (Say("Hello", (70, 3)), replied("Hello", **COUNTED), ["Hello"]),
        (Chunked(Say("Hello 😀", (70, 3)), 3), replied("Hello 😀", **COUNTED), ["Hel", "lo ", "😀"]),
        (
            Chunked(Calls([("read_file", '{"path": "a"}', "x"), ("list_files", "{}", "y")], "Look:", (70, 3)), 4),
            replied(
                "Look:",
                FinishReason.TOOL_CALLS,
                calls=(called("x", "read_file", '{"path": "a"}'), called("y", "list_files", "{}")),
                **COUNTED,
            ),
            ["Look", ":"],
        ),
        (
            Calls([("read_file", "{}", ""), ("list_files", "{ }", "")], usage=(70, 3)),
            replied(
                "",
                FinishReason.TOOL_CALLS,
                calls=(called("", "read_file", "{}"), called("", "list_files", "{ }")),
                **COUNTED,
            ),
            [],
        ),
        (
            Chunked(Refuse("I can't."), 3),
            replied("", FinishReason.REFUSAL, refusal="I can't.", input_tokens=INPUT, output_tokens=2),
            [],
        ),
        (Filtered("Hm"), replied("Hm", FinishReason.CONTENT_FILTER, input_tokens=INPUT), ["Hm"]),
        (Empty(), replied(input_tokens=INPUT), []),
        (
            Cut("", [CUT_CALL]),
            replied("", FinishReason.LENGTH, calls=CUT_CALLS, input_tokens=INPUT, output_tokens=10),
            [],
        ),
        (Calls([CUT_CALL], usage=(70, 3)), replied("", FinishReason.TOOL_CALLS, calls=CUT_CALLS, **COUNTED), []),
    ],
    ids=["text", "pieces", "calls", "no ids", "refusal", "filter", "empty", "cut", "cut and not said"],
)
def test_a_reply_is_kept_to_the_letter(reply: Reply, expected: ModelReply, said: list[str]) -> None:
    assert ask(reply) == (expected, said)


OVERFLOW = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}
QUOTED_KEY = {"error": {"message": "Incorrect API key provided: hunter2-hunter2", "code": "invalid_api_key"}}
BUSY = Status(429, {"error": {"message": "slow down"}}, {"Retry-After": "1.5"})


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (BUSY, "rate_limited", "URL says: too many requests (slow down)."),
        (
            Status(401, QUOTED_KEY),
            "authentication",
            "URL refuses the key: check OPENAI_API_KEY (Incorrect API key provided: ***).",
        ),
        (
            Status(404),
            "model_unavailable",
            "URL does not have this model (scripted status 404). Choose one with --model.",
        ),
        (Status(400), "bad_request", "URL refuses the request (scripted status 400)."),
        (
            Status(400, OVERFLOW),
            "context_overflow",
            "The conversation is longer than the model's window at URL (too long).",
        ),
        (Status(500), "server_error", "URL failed (scripted status 500)."),
        (Status(502, "<html>\nbad gateway"), "server_error", "URL failed (Error code: 502)."),
        (
            Disconnect(),
            "connection",
            "URL cannot be reached (Connection error.). Is the address right and the server running?",
        ),
        (Disconnect(2), "incomplete_stream", "The reply of URL broke off (Connection error.)."),
        (
            NoFinish("Hello"),
            "incomplete_stream",
            "The reply broke off before the endpoint said that it was complete.",
        ),
        (
            Status(200, "<html>hello</html>"),
            "server_error",
            "URL failed (it sent no chat completion: No generation chunks were returned).",
        ),
    ],
)
def test_each_failure_is_a_value(reply: Reply, kind: str, message: str) -> None:
    result, said = ask(reply)
    wish = 1.5 if reply is BUSY else None
    came = sum(map(len, said))
    assert result == ProviderFailure(
        kind=ProviderErrorKind(kind), message=message, retry_after_s=wish, received_characters=came
    )


def test_an_endpoint_that_stays_silent_is_given_up() -> None:
    result, _ = ask(Slow(600, Say("late")), CALL.model_copy(update={"timeout_s": 0.5}))
    message = "URL did not answer in time (no complete reply within 0.5 s)."
    assert result == ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message=message)


Handler = Callable[[httpx2.Request], httpx2.Response]


def transported(handler: Handler, call: Call = CALL, base_url: str = "http://llm.test/v1") -> tuple[Result, list[str]]:
    """What the client makes of an answer that no server of ours would give."""
    said: list[str] = []
    model = OpenAIModel(Endpoint(model="m", base_url=base_url), lambda: httpx2.MockTransport(handler))
    try:
        return model.complete(call, said.append), said
    finally:
        model.close()


def event(delta: JsonMap, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def streamed(*events: bytes) -> Handler:
    return lambda _: httpx2.Response(200, content=b"".join(events), headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize(
    ("base_url", "limit"),
    [
        ("http://llm.test/v1", "max_tokens"),
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("", "max_completion_tokens"),
    ],
)
@pytest.mark.parametrize("call", [CALL, FULL], ids=["least", "most"])
def test_each_field_is_on_the_wire_exactly_once(base_url: str, limit: str, call: Call) -> None:
    bodies: list[bytes] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        return streamed(event({"content": "Hello"}, "stop"))(request)

    assert transported(handler, call, base_url)[1] == ["Hello"]
    expected: JsonMap = {
        "messages": list(MESSAGES),
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": call.prompt.temperature,
        limit: 50,
    }
    if call is FULL:
        expected |= {"tools": [TOOL], "stop": ["\ntool_result("], "seed": 7}
    [body] = bodies
    names = [name for name, _ in json.loads(body, object_pairs_hook=list)]
    assert (json.loads(body), sorted(names)) == (expected, sorted(expected))


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        (
            [
                {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}},
                {"index": 0, "id": "y", "function": {"name": "g", "arguments": "{}"}},
            ],
            (called("x", "f", "{}"), called("y", "g", "{}")),
        ),
        (
            [{"id": "x", "function": {"name": "f", "arguments": "{"}}, {"function": {"arguments": "}"}}],
            (called("x", "f", "{}"),),
        ),
    ],
    ids=["one index for all", "no index"],
)
def test_servers_that_number_calls_in_their_own_way(events: list[JsonMap], calls: tuple[RawCall, ...]) -> None:
    reply, _ = transported(streamed(*(event({"tool_calls": [each]}) for each in events), event({}, "tool_calls")))
    assert isinstance(reply, ModelReply)
    assert reply.calls == calls


def test_halves_of_a_character_are_joined() -> None:
    reply, said = transported(streamed(event({"content": "a\ud83d"}), event({"content": "\ude00"}, "stop")))
    assert isinstance(reply, ModelReply)
    assert (reply.text, said) == ("a😀", ["a😀"])


@pytest.mark.parametrize(
    "document",
    [
        b"data: {bad\n\n",
        b"data: [1]\n\n",
        b"data: null\n\n",
        b'data: {"choices": [null]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": null}]}}]}\n\n',
        b'data: {"error": {"message": "overloaded"}}\n\n',
        b"data: \xff\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_what_is_no_chat_completion_is_a_failure(document: bytes, begun: bool) -> None:
    first = [event({"content": "Hello"})] if begun else []
    result, _ = transported(streamed(*first, document))
    assert isinstance(result, ProviderFailure)
    assert result.kind is (ProviderErrorKind.INCOMPLETE_STREAM if begun else ProviderErrorKind.SERVER_ERROR)


def test_one_client_for_each_loop_also_when_calls_begin_together() -> None:
    async def together(model: OpenAIModel) -> list[Result]:
        try:
            return await asyncio.gather(*(model.acomplete(CALL, print) for _ in range(3)))
        finally:
            await model.aclose()

    with ScriptedServer(then=lambda _: Say("Hello", (1, 1))) as server:
        model = OpenAIModel(Endpoint(model="m", base_url=server.base_url))
        results = [*asyncio.run(together(model)), *asyncio.run(together(model))]
    gc.collect()
    assert [plain(result, "") for result in results] == [replied("Hello", input_tokens=1, output_tokens=1)] * 6


def environment(**variables: str) -> Callable[[], dict[str, str]]:
    return lambda: variables


def test_a_connection_is_shared_until_it_is_closed() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        connections = Connections(environment(OPENAI_BASE_URL=server.base_url))
        first, second = connections.connect("m", None), connections.connect("m", None)
        other = connections.connect("n", None)
        assert first is second is not other
        assert isinstance(first, OpenAIModel)
        assert isinstance(first.complete(CALL, print), ModelReply)
        connections.close()
        assert connections.connect("m", None) is not first
        asyncio.run(connections.aclose())
    gc.collect()


def test_where_no_model_is_named_the_served_one_is_taken() -> None:
    with ScriptedServer([Say("Hello")]) as server:
        connections = Connections(environment())
        model = connections.connect(None, server.base_url)
        assert isinstance(model, OpenAIModel)
        assert isinstance(model.complete(CALL, print), ModelReply)
        connections.close()
    assert server.requests[0]["model"] == "scripted"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (httpx2.Response(200, json={"data": [{"id": "b"}, {"id": "a"}]}), "serves 2 models (a, b)"),
        (httpx2.Response(500, json={"error": {"message": "broken"}}), "failed (broken)"),
        (httpx2.Response(200, content=b"<html>"), "sent no chat completion"),
    ],
)
def test_an_endpoint_that_cannot_name_its_model(models: httpx2.Response, message: str) -> None:
    endpoint = Endpoint(model="", base_url="http://llm.test/v1")
    found = client._named(OpenAIModel(endpoint, lambda: httpx2.MockTransport(lambda _: models)), endpoint)
    assert isinstance(found, ProviderFailure)
    assert message in found.message


def test_settings_that_lead_nowhere_connect_to_nothing() -> None:
    connections = Connections(environment())
    found = connections.connect("m", None)
    assert isinstance(found, ProviderFailure)
    assert found.kind is ProviderErrorKind.MODEL_UNAVAILABLE
    assert (connections.is_embedded("m", None), connections.is_embedded(None, None)) == (False, True)


def test_the_name_of_the_model_is_told_without_asking_its_endpoint() -> None:
    connections, url = Connections(environment()), "http://127.0.0.1:9/v1"
    settings = [(None, None), ("local", url), ("m", url), (None, url), ("m", None)]
    names = ["qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b", "m", "", ""]
    assert [connections.model_name(*each) for each in settings] == names


def test_the_embedded_model_is_started_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="Run `mendgraph model pull`.")
    connections = Connections(environment())
    with ScriptedServer([Status(500)]) as server:
        monkeypatch.setattr(client, "shared_local_server", lambda: absent)
        assert connections.connect("local", None) == absent
        monkeypatch.setattr(client, "shared_local_server", lambda: SimpleNamespace(model="m", base_url=server.base_url))
        model = connections.connect(None, None)
        assert isinstance(model, OpenAIModel)
        failure = model.complete(CALL, print)
        connections.close()
    assert isinstance(failure, ProviderFailure)
    assert failure.message == "the embedded model failed (scripted status 500)."


def test_the_environments_proxy_does_not_come_between_us_and_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    result, _ = ask(Say("Hello"))
    assert isinstance(result, ModelReply)


def test_endpoints_whose_keys_have_different_variables_share_no_connection() -> None:
    connections = Connections(environment())
    one, other = (connections.connect("m", "http://llm.test/v1", variable) for variable in ("", "OTHER_KEY"))
    connections.close()
    assert one is not other
