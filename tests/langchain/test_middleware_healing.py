"""`HealingMiddleware` in agents of LangChain and deepagents: malformed calls never run; the model is asked again."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from pydantic import BaseModel, Field, field_validator, model_validator

from mendgraph import AgentStoppedError, HealingMiddleware
from tests.doubles.scripted_server import Calls, Cut, Empty, Refuse, Say, ScriptedServer
from tests.extent import slow
from tests.langchain.agents import agent, ask, chat, sync_and_async

WHOLE = "import os\nprint(os.getcwd())\n"
WRITE = '{"path": "a.py", "text": "import os\\nprint(os.getcwd())\\n"}'


class FakeWithTools(FakeMessagesListChatModel):
    """Has scripted replies, whatever tools it gets."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        assert tools
        return self


CUT = Cut("", [("write", '{"path": "a.py", "text": "import os\\npri')])


@pytest.fixture
def files() -> dict[str, str]:
    return {}


@pytest.fixture
def write(files: dict[str, str]) -> Callable[..., str]:
    def write(path: str, text: str) -> str:
        """Write a file."""
        files[path] = text
        return "written"

    return write


@sync_and_async
def test_truncated_call_does_not_write_its_file(loop: bool, files: dict[str, str], write: Any) -> None:
    with ScriptedServer([CUT, Calls([("write", WRITE)]), Say("Done.")]) as server:
        healing_agent = create_agent(chat(server, streaming=True), [write], middleware=[HealingMiddleware()])
        messages = ask(healing_agent, loop)
        assert "TRUNCATED_REPLY" in server.requests[1]["messages"][-1]["content"]
    assert files == {"a.py": WHOLE}
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]  # without the failed replies
    assert messages[-1].text == "Done."


def test_terminal_invocation_runs_only_tools_of_the_agent(files: dict[str, str], write: Any) -> None:
    invocation = f'{{"tool": "write", "args": {WRITE}, "terminal": true}}'
    with ScriptedServer([Say(invocation), Say("Done.")]) as server:
        messages = ask(create_agent(chat(server), [write], middleware=[HealingMiddleware()]))
    assert files == {"a.py": WHOLE}
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]


def test_call_in_text_is_read_and_valid_calls_run_beside_invalid_ones(files: dict[str, str], write: Any) -> None:
    text_call = Say('{"name": "write", "arguments": {"path": "b.py", "text": "b"}}')
    mixed = Calls([("write", '{"path": "c.py"}'), ("write", '{"path": "d.py", "text": "d"}')])
    with ScriptedServer([text_call, mixed, Say("Done.")]) as server:
        messages = ask(agent(server, HealingMiddleware(), tools=[write]))
        messages_sent = server.requests[2]["messages"]
    assert files == {"b.py": "b", "d.py": "d"}
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai", "tool", "tool", "ai"]
    assert "text: field required" in messages[4].text
    assert [call["function"]["arguments"] for call in messages_sent[3]["tool_calls"]].count("{}") == 1


THOUGHT = '<tool_call>\n{"name": "NAME", "arguments": {"path": "a.py"}}\n</tool_call>'


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"read {path}"


@tool
def peek(path: str) -> str:
    """Look at a file."""
    return f"peeked at {path}"


peek.metadata = {"effect": "read"}


@tool
def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


@pytest.mark.parametrize(
    ("name", "after", "result"),
    [
        ("read_file", "", "read a.py"),
        ("peek", "", "peeked at a.py"),
        ("remove", "", None),
        ("read_file", "\nThat shows the file.", None),
    ],
)
def test_call_at_the_end_of_reasoning_runs_only_if_its_tool_is_read_only(
    name: str, after: str, result: str | None
) -> None:
    thought = "I have to look.\n" + THOUGHT.replace("NAME", name) + after
    replies: list[BaseMessage] = [AIMessage("", additional_kwargs={"reasoning_content": thought}), AIMessage("Done.")]
    model = FakeWithTools(responses=replies)
    healing_agent = create_agent(model, [read_file, peek, remove], middleware=[HealingMiddleware()])
    messages = healing_agent.invoke({"messages": [{"role": "user", "content": "Look."}]})["messages"]
    assert [message.text for message in messages if message.type == "tool"] == ([result] if result else [])
    assert messages[-1].text == "Done."


@slow
def test_model_that_does_not_repair_its_reply_is_stopped_with_the_errors(write: Any) -> None:
    with ScriptedServer(then=lambda _: Empty()) as server:
        messages = ask(agent(server, HealingMiddleware(), tools=[write]))
    assert len(server.requests) == 4
    assert [message.type for message in messages] == ["human", "ai"]
    assert messages[-1].text.startswith(
        "The model's reply was still empty after 3 retries. (empty_reply)\nEMPTY_REPLY: "
    )
    with ScriptedServer(then=lambda _: Calls([("write", '{"path": 1}')])) as server:
        healing = HealingMiddleware(max_schema_repairs=1, exit_behavior="error")
        with pytest.raises(AgentStoppedError, match="text: field required") as stopped:
            ask(agent(server, healing, tools=[write]))
    assert (len(server.requests), stopped.value.cause.reason) == (2, "schema_repair_exhausted")


def test_truncated_structured_response_is_asked_for_again() -> None:
    class Note(BaseModel):
        text: str

    cut, complete = Cut("", [("Note", '{"text": "Buy mi')]), Calls([("Note", '{"text": "Buy milk."}')])
    turn_input: Any = {"messages": [{"role": "user", "content": "Note it."}]}
    with ScriptedServer([cut, complete]) as server:
        model = chat(server, streaming=True)
        healed: Any = create_agent(model, middleware=[HealingMiddleware()], response_format=Note)
        assert asyncio.run(healed.ainvoke(turn_input))["structured_response"].text == "Buy milk."


class Split(BaseModel):
    tags: list[str]

    @field_validator("tags", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value


class Renamed(BaseModel):
    path: str

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, value: Any) -> Any:
        return {"path": value["file_path"]} if "file_path" in value else value


class Aliased(BaseModel):
    user: str = Field(alias="userId")


class Injected(BaseModel):
    path: str
    call_id: Annotated[str, InjectedToolCallId]


FITTING: list[tuple[type[BaseModel], str]] = [
    (Split, '{"tags": "a,b"}'),
    (Renamed, '{"file_path": "a"}'),
    (Aliased, '{"userId": "1"}'),
    (Injected, '{"path": "a"}'),
]


@slow
def test_arguments_are_validated_by_the_tools_own_schema(subtests: pytest.Subtests) -> None:
    def save(schema: type[BaseModel]) -> StructuredTool:
        return StructuredTool(name="save", description="Save.", args_schema=schema, func=lambda **_: "saved")

    for schema, arguments in FITTING:
        with subtests.test(fits=schema), ScriptedServer([Calls([("save", arguments)]), Say("Done.")]) as server:
            messages = ask(agent(server, HealingMiddleware(), tools=[save(schema)]))
            assert [message.text for message in messages if message.type == "tool"] == ["saved"]
    for schema in (Split, Injected):
        with subtests.test(refuses=schema), ScriptedServer([Calls([("save", "{}")]), Say("Done.")]) as server:
            ask(agent(server, HealingMiddleware(), tools=[save(schema)]))
            correction = server.requests[1]["messages"][-1]["content"]
            assert ("field required" in correction, "call_id" in correction) == (True, False)


def test_validation_error_handler_of_a_tool_is_used() -> None:
    fields: dict[str, Any] = {"name": "save", "description": "Save.", "func": lambda **_: "saved"}
    save = StructuredTool(args_schema=Split, handle_validation_error="My words.", **fields)
    with ScriptedServer([Calls([("save", "{}")]), Say("Done.")]) as server:
        messages = ask(agent(server, HealingMiddleware(), tools=[save]))
    assert [message.text for message in messages if message.type == "tool"] == ["My words."]


def test_exception_in_a_validator_is_raised_by_the_tool() -> None:
    class Failing(BaseModel):
        path: str

        @field_validator("path")
        @classmethod
        def _look_up(cls, value: str) -> str:
            raise KeyError(value)

    save = StructuredTool(name="save", description="Save.", args_schema=Failing, func=lambda **_: "saved")
    with ScriptedServer([Calls([("save", '{"path": "a"}')]), Say("Done.")]) as server:
        with pytest.raises(KeyError, match="a"):
            ask(agent(server, HealingMiddleware(), tools=[save]))
        assert len(server.requests) == 1


def test_negative_number_of_retries_is_refused() -> None:
    for name in ("max_healing_attempts", "max_schema_repairs"):
        options: dict[str, Any] = {name: -1}
        with pytest.raises(ValueError, match="max_healing_attempts and max_schema_repairs are 0 or more"):
            HealingMiddleware(**options)


def test_valid_reply_without_text_and_a_refusal_are_left_alone() -> None:
    for reply in (
        AIMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}]),
        AIMessage("", additional_kwargs={"audio": {"id": "1", "data": "YQ=="}}),
        AIMessage([{"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}}]),
        AIMessage("", response_metadata={"stop_reason": "pause_turn"}),
    ):
        model = GenericFakeChatModel(messages=iter([reply]))
        messages = ask(create_agent(model, [], middleware=[HealingMiddleware()]))
        assert messages[-1].content == reply.content
    with ScriptedServer([Refuse("I will not.")]) as server:
        assert "I will not." in ask(agent(server, HealingMiddleware()))[-1].text
