"""Tools of LangChain and typed functions in `tools=`: in both protocols, sync and async, under guard like all tools."""

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langchain_core.tools.simple import Tool as SimpleTool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel, field_validator

from mendgraph import (
    AgentContext,
    Effect,
    RetryableToolError,
    RunResult,
    Session,
    ToolContext,
    arun_task,
    build_graph,
    default_tools,
    run_task,
    tool as own_tool,
)
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import write_files

ways = pytest.mark.parametrize(("protocol", "asynchronous"), [("text", False), ("native", True)])
DONE = Say("Done.")
PNG = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
Calls = list[tuple[str, JsonMap]]
Wire = Literal["text", "native"]
WORD = "hunter2-hunter2-hunter2"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder with the runs' own files."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", {"a.py": "a = 1\n", ".env": "A=1\n"})
    return tmp_path / "root"


@dataclass
class CallsRun:
    """A run that ended, and what its model was sent."""

    result: RunResult
    requests: list[JsonMap]

    @property
    def call_results(self) -> list[Any]:
        """For each call its text, or the code of its error, as last sent to the model."""
        results: list[Any] = []
        for message in self.result.messages:
            if isinstance(message, ToolMessage):
                failed = message.status == "error"
                results.append(json.loads(message.text)["error"]["code"] if failed else message.content)
            elif isinstance(message, HumanMessage) and message.name == "tool_result":
                lines = (json.loads(line[len("tool_result(") : -1]) for line in message.text.split("\n"))
                results += [line["data"].get("text") if line["ok"] else line["error"]["code"] for line in lines]
        return results

    @property
    def last_prompt(self) -> str:
        """All that the model was sent in its last call."""
        return json.dumps(self.requests[-1]["messages"])


def run_calls(
    root: Path,
    *calls: tuple[str, JsonMap],
    tools: Sequence[Any],
    protocol: Wire = "native",
    asynchronous: bool = False,
    lines: Sequence[Message] = (),
    options: JsonMap | None = None,
    **context: Any,
) -> CallsRun:
    """One reply with these calls, then the answer."""
    settings = {"evidence": False, "read_ahead": False, "model": "m", **context}
    with ScriptedServer([*(lines or [message_of(use(*calls), Protocol(protocol))]), DONE]) as server:
        agent_context = AgentContext(workspace=str(root), base_url=server.base_url, protocol=protocol, **settings)
        run_options: Any = {"tools": (*default_tools(), *tools), **(options or {})}
        if asynchronous:
            result = asyncio.run(arun_task("Do it.", agent_context, **run_options))
        else:
            result = run_task("Do it.", agent_context, **run_options)
    assert result.outcome.reason == "answered", result.outcome.message
    return CallsRun(result, server.requests)


# --- Accepted tools


@tool
def double(number: int, times: int = None) -> int:  # type: ignore[assignment] # noqa: RUF013 - as it is often written
    """Double a number."""
    return number << (times or 1)


@tool
async def treble(number: int) -> str:
    """Treble a number."""
    await asyncio.sleep(0)
    return str(number * 3)


async def in_loop(word: str) -> str:
    return f"{word}, awaited"


sync_or_async = StructuredTool.from_function(lambda word: f"{word}, called", in_loop, "both", "Say how it is run.")
one_text = SimpleTool(name="one_text", func=str.upper, description="Shout.")
by_schema = StructuredTool(
    name="by_schema",
    description="Takes a JSON schema.",
    args_schema={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    func=lambda word: {"word": word},
)


class Ask(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def _no_shouting(cls, word: str) -> str:
        if word.isupper():
            raise ValueError("do not shout")
        return word


class Echo(BaseTool):
    name: str = "echo"
    description: str = "Echo a word."
    args_schema: type[BaseModel] = Ask

    def _run(self, word: str) -> str:
        return word


class Phone:
    def call(self, who: str) -> str:
        """Call somebody."""
        return f"called {who}"


async def greet(who: str) -> str:
    """Greet somebody."""
    return f"hello {who}"


def with_context(where: ToolContext, path: str) -> str:
    """Look at a file."""
    return type(where.workspace.read_file(path)).__name__


@own_tool(effect=Effect.NONE)
def ours(word: str) -> dict[str, str]:
    """One of ours."""
    return {"text": word}


EVERY = [double, treble, sync_or_async, one_text, by_schema, Echo(), Phone().call, greet, with_context, ours]
CALLS: Calls = [
    ("double", {"number": 4}),
    ("treble", {"number": 4}),
    ("both", {"word": "it"}),
    ("one_text", {"__arg1": "loud"}),
    ("by_schema", {"word": "w"}),
    ("echo", {"word": "w"}),
    ("call", {"who": "Ada"}),
    ("greet", {"who": "Ada"}),
    ("with_context", {"path": "a.py"}),
    ("ours", {"word": "w"}),
]


@ways
def test_every_kind_of_tool_runs(root: Path, protocol: Wire, asynchronous: bool) -> None:
    done = run_calls(root, *CALLS, tools=EVERY, protocol=protocol, asynchronous=asynchronous)
    how = "it, awaited" if asynchronous else "it, called"
    texts = ["8", "12", how, "LOUD", '{"word": "w"}', "w", "called Ada", "hello Ada"]
    assert done.call_results[:8] == texts
    assert '\\"FileContent\\"' in done.last_prompt


def test_arguments_are_validated_by_the_tools_own_schema(root: Path) -> None:
    wrong = use(("echo", {"word": "LOUD"}), ("double", {"number": "four"}))
    lines = [message_of(wrong, Protocol.NATIVE), message_of(use(("echo", {"word": "low"})), Protocol.NATIVE)]
    done = run_calls(root, tools=[Echo(), double], lines=lines)
    corrected = json.dumps(done.requests[1]["messages"])
    assert "do not shout" in corrected
    assert "number: input should be a valid integer" in corrected
    assert done.call_results[-1] == "low"


class Aimed(Ask):
    state: Annotated[JsonMap, InjectedState]


@tool(args_schema=Aimed)
def aimed(word: str, state: JsonMap) -> str:
    """Fail over what a service has answered."""
    return Ask.model_validate({"wrod": word, "state": state}).word


def test_validation_error_inside_a_tool_is_not_an_argument_error(root: Path) -> None:
    done = run_calls(root, ("aimed", {"word": "LOUD"}), ("aimed", {"word": "low"}), tools=[aimed])
    assert done.call_results == ["invalid_argument", "io_error"]
    assert "The arguments of aimed do not fit: word: value error, do not shout" in done.last_prompt
    assert "aimed failed: 1 validation error for Ask" in done.last_prompt


WRONG: list[tuple[Any, type[Exception], str]] = [
    ({"type": "web_search"}, TypeError, "tools: a dict is not accepted: use tools of mendgraph, tools of LangChain"),
    (Echo, TypeError, "tools: the class Echo is not accepted"),
    (lambda x: x, TypeError, "the function '<lambda>' cannot be made a tool: Function must have a docstring"),
    (StructuredTool.from_function(in_loop, name="read_file", description="R."), ValueError, "the name of a built-in"),
    (tool(return_direct=True)(Phone().call), ValueError, "'call' has return_direct=True"),
    (Echo(name="Echo it"), ValueError, "'Echo it' is not a valid name of a tool"),
    (Echo(name="e" * 65), ValueError, "is not a valid name of a tool: use letters, digits, _ and -, at most 64"),
    (Echo(metadata={"effect": "reads"}), ValueError, "the effect 'reads' of 'echo' is unknown; the effects are"),
    (Echo(metadata={"path_fields": ["file"]}), ValueError, "'echo' has no argument 'file', which its path_fields"),
]


def test_invalid_tool_is_named_when_the_graph_is_built(subtests: pytest.Subtests) -> None:
    for invalid_tool, kind, words in WRONG:
        for make in (build_graph, Session):
            with subtests.test(words=words, make=make.__name__), pytest.raises(kind, match=words):
                make(tools=[*default_tools(), invalid_tool])
    for name, words in (("ecko", "Did you mean echo"), ("ours", "'ours' says its effect itself")):
        with pytest.raises(ValueError, match=f"effects: .*{words}"):
            build_graph(tools=[Echo(), ours], effects={name: Effect.READ})


@slow
def test_only_results_of_reading_tools_are_cached(root: Path) -> None:
    counted: list[str] = []

    def note(word: str) -> str:
        """Note a word."""
        counted.append(word)
        return word

    calls = ("note", {"word": "a"}), ("note", {"word": "a"})
    for effect in Effect:
        counted.clear()
        done = run_calls(root, *calls, tools=[note], options={"effects": {"note": effect}})
        assert (done.call_results, counted) == (["a", "a"], ["a"] * (1 if effect is Effect.READ else 2)), effect


# --- Results


@tool(response_format="content_and_artifact")
def look(city: str) -> tuple[list[Any], list[Document]]:
    """Look at a city."""
    return [PNG, {"type": "text", "text": f"Sun in {city}, {WORD}"}], [Document(page_content=f"raw {WORD}")]


def test_content_blocks_and_artifacts_arrive_as_in_langchain_and_redacted(root: Path) -> None:
    done = run_calls(root, ("look", {"city": "Rome"}), tools=[look], options={"secrets": [WORD]})
    [message] = [message for message in done.result.messages if isinstance(message, ToolMessage)]
    text = message.text
    assert text.startswith("Sun in Rome, ")
    assert message.content == [PNG, {"type": "text", "text": text}]
    assert message.artifact[0]["page_content"].startswith("raw ")
    sent = done.requests[-1]["messages"][-2:]  # OpenAI takes images from a user only
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert [(message["role"], message["content"]) for message in sent] == [("tool", text), ("user", [image])]
    assert WORD not in f"{done.last_prompt}{done.result.messages}"


@tool
def hot() -> str:
    """Fail."""
    raise ToolException("too hot")


def ask_somebody() -> str:
    """Ask."""
    return str(interrupt("May I?"))


def who(user: Annotated[str, InjectedState("user")]) -> str:
    """Say who."""
    return user


def hand_over() -> Command[Any]:
    """Hand over."""
    return Command(goto="other")


handled = hot.model_copy(update={"name": "handled", "handle_tool_error": "Try the shade."})


@slow
@ways
def test_failure_is_a_typed_error_that_the_model_sees(root: Path, protocol: Wire, asynchronous: bool) -> None:
    tools = [hot, handled, hand_over, ask_somebody, who]
    calls: Calls = [("hot", {}), ("handled", {}), ("hand_over", {}), ("ask_somebody", {}), ("who", {})]
    done = run_calls(root, *calls, tools=tools, protocol=protocol, asynchronous=asynchronous)
    assert done.call_results == ["io_error", "io_error", "invalid_argument", "invalid_argument", "io_error"]
    for words in (
        "hot failed: too hot",
        "Try the shade.",
        "hand_over returned a Command",
        "mode ask has a person",
        "it asks for 'user'",
    ):
        assert words in done.last_prompt


# --- Injected arguments


@tool
def inside(
    word: str,
    state: Annotated[JsonMap, InjectedState],
    messages: Annotated[list[Any], InjectedState("messages")],
    call_id: Annotated[str, InjectedToolCallId],
    store: Annotated[Any, InjectedStore()],
    runtime: ToolRuntime[Any, Any],
) -> str:
    """Look at the run."""
    same = runtime.tool_call_id == call_id == messages[-1].tool_calls[0]["id"] and runtime.store is store
    return f"{word} {same} {messages[0].text} {runtime.context.mode} {state['step']} {sorted(state)[:1]}"


def forged(word: str, state: Annotated[JsonMap, InjectedState]) -> str:
    """Look at the run."""
    return f"{word} {state.get('forged')}"


def bare(runtime: ToolRuntime) -> str:
    """Look at the run."""
    return str(type(runtime.context).__name__)


open_schema = StructuredTool(
    name="open_schema", description="Look.", func=forged, args_schema={"type": "object", "properties": {}}
)


@slow
@pytest.mark.filterwarnings("error::UserWarning")
@ways
def test_injected_arguments_come_from_the_run_and_never_from_the_model(
    root: Path, protocol: Wire, asynchronous: bool
) -> None:
    calls: Calls = [("inside", {"word": "w"}), ("open_schema", {"word": "w", "state": {"forged": True}}), ("bare", {})]
    options = {"store": InMemoryStore()}
    done = run_calls(
        root, *calls, tools=[inside, open_schema, bare], protocol=protocol, asynchronous=asynchronous, options=options
    )
    assert done.call_results == ["w True Do it. auto 1 ['answer']", "w None", "AgentContext"]
    [schema] = [schema for schema in done.requests[0].get("tools", []) if schema["function"]["name"] == "inside"] or [
        None
    ]
    if schema:
        assert [*schema["function"]["parameters"]["properties"]] == ["word"]
    else:
        assert "call_id" not in json.dumps(done.requests[0])


# --- Rules for all calls


def test_tool_without_a_declared_effect_counts_as_a_program(root: Path) -> None:
    calls: Calls = [("greet", {"who": "Ada"}), ("echo", {"word": "w"}), ("double", {"number": 1})]
    tools = [greet, Echo(metadata={"effect": "read"}), double]
    contexts: list[JsonMap] = [{"mode": "read-only"}, {"role": "editor"}, {"mode": "ask"}]
    for context in contexts:
        done = run_calls(root, *calls, tools=tools, options={"effects": {"double": Effect.NONE}}, **context)
        refused = "approval_required" if "ask" in context.values() else "permission_denied"
        assert done.call_results == [refused, "w", "2"]


def test_file_rules_judge_arguments_declared_as_paths(root: Path) -> None:
    reader = Echo(metadata={"effect": "read", "path_fields": ["word"]})
    calls = [("echo", {"word": path}) for path in ("a.py", ".env", "../b.py")]
    assert run_calls(root, *calls, tools=[reader]).call_results == ["a.py", "permission_denied", "permission_denied"]


@slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_timeouts_retries_and_cache_are_those_of_all_tools(root: Path, asynchronous: bool) -> None:
    attempts, released = list[str](), threading.Event()

    def flaky() -> str:
        """Fail once."""
        attempts.append("flaky")
        if attempts.count("flaky") == 1:
            raise RetryableToolError("busy")
        return "at last"

    def cached(word: str) -> str:
        """Read a word."""
        attempts.append("cached")
        return word

    async def endless() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    def stuck() -> str:
        """Wait in a thread."""
        released.wait(20)
        attempts.append("stuck")
        return ""

    calls: Calls = [("flaky", {}), ("endless", {}), ("stuck", {}), *[("cached", {"word": "w"})] * 2]
    done = run_calls(
        root,
        *calls,
        tools=[flaky, cached, endless, stuck],
        asynchronous=asynchronous,
        tool_timeouts_s={"endless": 0.1, "stuck": 0.1},
        options={"effects": {"cached": Effect.READ, "flaky": Effect.READ}},
    )
    assert done.call_results == ["at last", "timeout", "timeout", "w", "w"]
    assert (attempts.count("flaky"), attempts.count("cached"), attempts.count("stuck")) == (2, 1, 0)
    released.set()
