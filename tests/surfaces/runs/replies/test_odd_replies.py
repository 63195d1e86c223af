"""Replies of odd shapes: a clear call runs, anything else is reported to the model, each run has one outcome."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, Effect, Outcome, ToolContext, build_graph, default_tools, serializer, tool
from tests.doubles.history import history_problems
from tests.doubles.replies import Calls, Message, Say, Status
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import LEVEL, sampled, slow
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import changed_files, write_files

FILES = {"a.py": "x = 1\n"}
MOST_CALLS = 64
"""Of one reply, as docs/security.md says."""
READ = {"name": "read_file", "arguments": '{"path":"a.py"}'}
GOOD: JsonMap = {"id": "c1", "type": "function", "index": 0, "function": READ}
LONG = "x" * 100_000
RAN, UNNAMED = ["read_file ok"], [" invalid_argument"]
ASKED_AGAIN: list[str] = []
FAILED = None

Told = list[str] | None
"""Tool and verdict of each call; none where the reply was asked for again, None where it was given up."""


def call(**fields: Any) -> JsonMap:
    return {**GOOD, **fields}


def function(**fields: Any) -> JsonMap:
    return {**GOOD, "function": {**READ, **fields}}


def calls_beside(odd: Any) -> JsonMap:
    """A call of another shape after a good one, so that both have results."""
    return {"tool_calls": [GOOD, odd]}


def second_call(**fields: Any) -> JsonMap:
    """The same with these fields, or with those of its function."""
    return calls_beside(call(id="c2", index=1, **(fields if "function" in fields else {"function": fields})))


PARTS = [None, 3, "a", {"type": "text", "text": 4}, {"type": "thinking"}, {"type": 5}, {}]

MESSAGES: dict[str, tuple[JsonMap, Told]] = {
    "arguments are an object": ({"tool_calls": [function(arguments={"path": "a.py"})]}, RAN),
    "arguments are a list": (second_call(name="read_file", arguments=["a.py"]), [*RAN, "read_file invalid_argument"]),
    "arguments are false": (second_call(name="list_files", arguments=False), [*RAN, "list_files invalid_argument"]),
    "arguments are null": (second_call(name="list_files", arguments=None), [*RAN, "list_files ok"]),
    "a null function": (second_call(function=None), [*RAN, *UNNAMED]),
    "a function that is a string": (second_call(function="read_file"), [*RAN, *UNNAMED]),
    "no function": (calls_beside({"id": "c2", "type": "function", "index": 1}), [*RAN, *UNNAMED]),
    "the function's fields in the call": ({"tool_calls": [{"id": "c1", "index": 0, **READ}]}, RAN),
    "a call that is null": ({"tool_calls": [None, GOOD]}, RAN),
    "only a null call": ({"tool_calls": [None]}, ASKED_AGAIN),
    "a call that is a string": (calls_beside("read_file"), [*RAN, *UNNAMED]),
    "a call that is a list": (calls_beside([GOOD]), [*RAN, *UNNAMED]),
    "calls are one call": ({"tool_calls": GOOD}, RAN),
    "calls are a number": ({"tool_calls": 7}, ASKED_AGAIN),
    "calls are true": ({"tool_calls": True}, ASKED_AGAIN),
    "the call of the old API": ({"function_call": READ}, RAN),
    "an id that is a number": ({"tool_calls": [call(id=7)]}, RAN),
    "an id that is an object": ({"tool_calls": [call(id={"a": 1})]}, RAN),
    "an empty id": ({"tool_calls": [call(id="")]}, RAN),
    "an endless id": ({"tool_calls": [call(id=LONG)]}, RAN),
    "one id twice": ({"tool_calls": [GOOD, call(index=1)]}, [*RAN, *RAN]),
    "a name that is a number": (second_call(name=3), [*RAN, "3 unknown_tool"]),
    "a name that is null": (second_call(name=None), [*RAN, *UNNAMED]),
    "a name that is an object": (second_call(name={"a": 1}), [*RAN, '{"a": 1} unknown_tool']),
    "an endless name": (second_call(name=LONG), [*RAN, f"{LONG[:200]} unknown_tool"]),
    "no index": ({"tool_calls": [{k: v for k, v in GOOD.items() if k != "index"}]}, RAN),
    "a huge index": ({"tool_calls": [call(index=10**30)]}, RAN),
    "a negative index": ({"tool_calls": [call(index=-1)]}, RAN),
    "an index that is a list": ({"tool_calls": [call(index=[0])]}, RAN),
    "an index that is no whole number": ({"tool_calls": [call(index=0.5)]}, RAN),
    "content that is a number": ({"content": 7, "tool_calls": [GOOD]}, RAN),
    "content of odd parts": ({"content": PARTS, "tool_calls": [GOOD]}, RAN),
    "thoughts that are a list": ({"reasoning_content": ["a"], "tool_calls": [GOOD]}, RAN),
    "a role that is a number": ({"role": 3, "tool_calls": [GOOD]}, RAN),
}  # fmt: skip


def with_choice(**fields: Any) -> Callable[[JsonMap], JsonMap]:
    return lambda document: {**document, "choices": [{**document["choices"][0], **fields}]}


def with_fields(**fields: Any) -> Callable[[JsonMap], JsonMap]:
    return lambda document: {**document, **fields}


DOCUMENTS: dict[str, tuple[Callable[[JsonMap], Any], Told]] = {
    "two choices": (lambda document: {**document, "choices": document["choices"] * 2}, RAN),
    "usage of strings": (with_fields(usage={"prompt_tokens": "7", "completion_tokens": -3}), RAN),
    "usage that is a string": (with_fields(usage="much"), RAN),
    "a model that is a number": (with_fields(model=3), RAN),
    "choices that are a string": (with_fields(choices="none"), FAILED),
    "a null choice": (with_fields(choices=[None]), FAILED),
    "a message that is a list": (with_choice(message=[1], delta=[1]), FAILED),
    "a list for a document": (lambda document: [document], FAILED),
}


def document(message: JsonMap, *, streamed: bool) -> JsonMap:
    """A completion with this message, or the one part of a stream that is all of it."""
    message_field = {"delta" if streamed else "message": {"role": "assistant", **message}}
    kind = "chat.completion.chunk" if streamed else "chat.completion"
    choice = {"index": 0, **message_field, "finish_reason": "tool_calls"}
    return {"id": "x", "object": kind, "created": 1, "model": "m", "choices": [choice]}


def body(reply_document: Any, *, streamed: bool) -> Status:
    if not streamed:
        return Status(200, json.dumps(reply_document))
    return Status(200, f"data: {json.dumps(reply_document)}\n\ndata: [DONE]\n\n", {"Content-Type": "text/event-stream"})


def chat_at(base_url: str, *, streamed: bool, **settings: Any) -> BaseChatModel:
    chat: Any = ChatOpenAI
    model: BaseChatModel = chat(model="m", base_url=base_url, api_key="x", disable_streaming=not streamed, **settings)
    return model


class Run:
    """The result of a run: each call's tool and verdict, the outcomes, and whether its history is valid."""

    def __init__(
        self, model: BaseChatModel, folder: Path, *, is_async: bool, tools: Sequence[Any] = (), **settings: Any
    ) -> None:
        machine = build_graph(InMemorySaver(serde=serializer()), model=model, tools=[*default_tools(), *tools])
        off = {"evidence": False, "read_ahead": False, "provider_retries": 0}
        context = AgentContext(workspace=str(folder), **{"protocol": "native", **off, **settings})
        config: Any = {"configurable": {"thread_id": "t"}}
        self.results: list[str] = []
        self.messages: list[str] = []
        self.outcomes: list[Outcome] = []

        async def play(turn_input: Any) -> None:
            async for part in machine.astream(turn_input, config, context=context, stream_mode="updates"):
                self._note(part)

        def begin(turn_input: Any) -> None:
            if is_async:
                asyncio.run(play(turn_input))
                return
            for part in machine.stream(turn_input, config, context=context, stream_mode="updates"):
                self._note(part)

        try:
            begin({"messages": [HumanMessage("Read a.py.")]})
        except KeyboardInterrupt:
            begin(None)
        state = machine.get_state(config).values
        self.problems = history_problems(state["messages"], Protocol(context.protocol))

    def _note(self, part: JsonMap) -> None:
        for update in part.values():
            for result in (update or {}).get("results", []):
                error = result.result.error
                self.results.append(f"{result.tool} {error.code.value if error else 'ok'}")
                self.messages.append(error.message if error else "")
            if (update or {}).get("outcome"):
                self.outcomes.append(update["outcome"])

    def ended(self) -> tuple[Told, str]:
        """The calls and the reason of the one end; the history is valid."""
        assert self.problems == []
        [outcome] = self.outcomes
        return (self.results if outcome.reason.value == "answered" else FAILED), outcome.reason.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, FILES)
    return tmp_path


@sampled
@pytest.mark.parametrize(("streamed", "is_async"), [(True, False), (False, True)] if LEVEL else [(True, False)])
def test_any_shape_of_an_http_reply_is_handled(folder: Path, streamed: bool, is_async: bool) -> None:
    replies = {name: (document(message, streamed=streamed), expected) for name, (message, expected) in MESSAGES.items()}
    good = document({"tool_calls": [GOOD]}, streamed=streamed)
    replies |= {name: (change(good), expected) for name, (change, expected) in DOCUMENTS.items()}
    ended_by_done = RAN if streamed else FAILED
    replies["a finish reason that is a number"] = (with_choice(finish_reason=3)(good), ended_by_done)
    answer = body(document({"content": "Done."}, streamed=streamed), streamed=streamed)
    differing = []
    script: list[Status] = []
    with ScriptedServer(then=lambda _: script.pop(0)) as server:
        for name, (reply, expected) in replies.items():
            script[:] = [body(reply, streamed=streamed), answer]
            end = Run(chat_at(server.base_url, streamed=streamed), folder, is_async=is_async).ended()
            if end != (expected, "provider_failed" if expected is FAILED else "answered"):
                differing.append((name, end))
    assert differing == []
    assert changed_files(folder, FILES) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES: list[tuple[str | int, ...]] = [
    (),
    ("id",),
    ("model",),
    ("usage",),
    ("usage", "prompt_tokens"),
    ("choices",),
    ("choices", 0),
    ("choices", 0, "index"),
    ("choices", 0, "finish_reason"),
    ("choices", 0, "<message>"),
    *(
        ("choices", 0, "<message>", name)
        for name in ("role", "content", "refusal", "reasoning_content", "reasoning_details")
    ),
    *(("choices", 0, "<message>", name) for name in ("function_call", "audio", "tool_calls")),
    ("choices", 0, "<message>", "tool_calls", 0),
    *(("choices", 0, "<message>", "tool_calls", 0, name) for name in ("id", "index", "type", "extra", "function")),
    *(("choices", 0, "<message>", "tool_calls", 0, "function", name) for name in ("name", "arguments")),
]


def with_value_at(document: Any, place: Sequence[str | int], value: Any) -> Any:
    """A copy with this value at a place."""
    if not place:
        return value
    first, *deeper = place
    copy: Any = list(document) if isinstance(document, list) else dict(document)
    copy[first] = with_value_at(copy.get(first, {}) if isinstance(copy, dict) else copy[first], deeper, value)
    return copy


@slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), JSON, st.booleans(), st.booleans())
def test_run_has_one_outcome_for_any_value_at_any_place_of_a_reply(
    folder: Path, place: tuple[str | int, ...], value: Any, streamed: bool, is_async: bool
) -> None:
    field = "delta" if streamed else "message"
    at = tuple(field if part == "<message>" else part for part in place)
    odd = body(with_value_at(document({"tool_calls": [GOOD]}, streamed=streamed), at, value), streamed=streamed)
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        if len(requests) > 1:
            return httpx2.Response(404, json={"error": {"message": "over"}})
        return httpx2.Response(200, content=str(odd.body), headers={"content-type": "application/json", **odd.headers})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    model = chat_at("http://llm.test/v1", streamed=streamed, http_async_client=client)
    run = Run(model, folder, is_async=is_async)
    assert (len(run.outcomes), run.problems) == (1, [])
    assert changed_files(folder, FILES) == {}


# --- A chat model of the user's own


class UnvalidatedModel(BaseChatModel):
    """Replies with these messages in order, without any validation."""

    replies: list[Any]

    @property
    def _llm_type(self) -> str:
        return "odd"

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - it knows what it will say
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration.model_construct(message=self.replies.pop(0), text="")])


def unvalidated_message(**fields: Any) -> AIMessage:
    """A message whose fields are of any kind."""
    base = {"content": "", "tool_calls": [], "invalid_tool_calls": [], "additional_kwargs": {}, "response_metadata": {}}
    message = AIMessage("")
    for name, value in {**base, **fields}.items():
        message.__dict__[name] = value
    return message


OWN: JsonMap = {"name": "read_file", "args": {"path": "a.py"}, "id": "c1", "type": "tool_call"}


MODELS: tuple[tuple[JsonMap, Any], ...] = (
        ({"tool_calls": [OWN, {**OWN, "id": 7}]}, [*RAN, *RAN]),
        ({"tool_calls": [OWN, {**OWN, "id": None}, OWN]}, [*RAN, *RAN, *RAN]),
        ({"tool_calls": [OWN, "read_file"]}, [*RAN, *UNNAMED]),
        ({"tool_calls": [OWN, {"name": "list_files", "args": False}]}, [*RAN, "list_files invalid_argument"]),
        ({"tool_calls": [OWN], "invalid_tool_calls": [{"name": 3, "args": 4, "id": 5}]}, [*RAN, "3 unknown_tool"]),
        ({"tool_calls": [{**OWN, "args": '{"path": "a.py"}'}]}, RAN),
        ({"tool_calls": [OWN], "additional_kwargs": {"tool_calls": 3, "reasoning_content": [1], "refusal": None}}, RAN),
        ({"tool_calls": [OWN], "usage_metadata": {"input_tokens": "7", "output_tokens": -1}}, ...),
        ({"tool_calls": [{**OWN, "args": {"path": {1, 2}}}]}, FAILED),
        ({"tool_calls": 7}, FAILED),
        ({"tool_calls": [OWN], "content": 7}, ...),
        ({"tool_calls": [OWN], "content": [None, 3, {"type": "text", "text": 4}]}, ...),
        ({"tool_calls": [OWN], "additional_kwargs": None}, ...),
        ({"tool_calls": [OWN], "response_metadata": 3}, ...),
)  # fmt: skip
"""Where the calls are left open, the reply may as well be a failure of its provider: one that says why."""


@slow
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_any_shape_of_a_chat_models_reply_is_handled(folder: Path, is_async: bool) -> None:
    for fields, expected in MODELS:
        run = Run(
            UnvalidatedModel(replies=[unvalidated_message(**fields), AIMessage("Done.")]), folder, is_async=is_async
        )
        results, reason = run.ended()
        assert reason == ("provider_failed" if results is FAILED else "answered"), fields
        assert results in ([RAN, FAILED] if expected is ... else [expected]), fields


# --- Many calls in one reply


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_first_64_calls_run_and_each_of_the_others_gets_an_error(folder: Path, protocol: str) -> None:
    count = 2 * MOST_CALLS + 3
    calls = [("read_file", json.dumps({"path": "a.py", "start_line": at + 1}), "same") for at in range(count)]
    first: Message = Calls(calls)
    if protocol == "text":
        first = Say("\n".join(f"tool: read_file({arguments})" for _, arguments, _ in calls))
    run = Run(ScriptedModel([first]), folder, is_async=protocol == "text", protocol=protocol)
    assert run.ended()[1] == "answered"
    assert len(run.results) == count
    over = "TOO_MANY_CALLS: Not run: a reply may hold 64 calls at most. Send it again."
    assert [message == over for message in run.messages] == [False] * MOST_CALLS + [True] * (count - MOST_CALLS)


# --- Time


@slow
def test_step_of_many_calls_ends_at_the_time_limit_of_its_run(folder: Path) -> None:
    timeouts: list[float] = []

    @tool(effect=Effect.NONE)
    def wait(_: ToolContext, seconds: float) -> str:
        """Wait."""
        timeouts.append(seconds)
        time.sleep(seconds)
        return "waited"

    waits = [json.dumps({"seconds": seconds}) for seconds in (0.2, 60, 60, 0.2)]
    script = Calls([("wait", arguments, f"c{at}") for at, arguments in enumerate(waits)])
    run = Run(ScriptedModel([script]), folder, is_async=False, tools=[wait], max_seconds=1.0)
    assert run.ended() == (FAILED, "wall_clock")
    assert (sorted(timeouts), run.results) == ([0.2, 60], ["wait ok", *["wait timeout"] * 3])
    used_up = "The time of this turn is used up, so this call did not run."
    assert [message == used_up for message in run.messages] == [False, False, True, True]


@slow
def test_resumed_step_has_only_the_remaining_time(folder: Path) -> None:
    timeouts: list[float] = []
    seconds_left: list[float] = []

    @tool(effect=Effect.WRITE)
    def wait(context: ToolContext, seconds: float) -> str:
        """Wait; for no time at all, be killed."""
        timeouts.append(seconds)
        seconds_left.append(context.seconds_left)
        if not seconds:
            raise KeyboardInterrupt
        time.sleep(seconds)
        return "waited"

    waits = [json.dumps({"seconds": seconds}) for seconds in (1.5, 0, 60, 0.2)]
    script = Calls([("wait", arguments, f"c{at}") for at, arguments in enumerate(waits)])
    run = Run(ScriptedModel([script]), folder, is_async=True, tools=[wait], max_seconds=2.0)
    assert run.ended() == (FAILED, "wall_clock")
    assert timeouts == [1.5, 0, 60]
    assert seconds_left[-1] <= 0.5
    assert run.results == ["wait ok", "wait outcome_unknown", "wait timeout", "wait timeout"]
