"""What `build_graph` takes: a checkpointer, a model, tools and rules of your own; and asking a person."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.compiled import Machine
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, Protocol, StopReason, ToolError
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.runs.history import history_problems
from tests.runs.playing import changed_files, write_files
from tests.runs.scenario import Use, message_of, use

THREAD: Any = {"configurable": {"thread_id": "t"}}
FILES = {"a.py": "a = 1\n", "b.py": "b = 1\n", "secret_plan.md": "rob a bank\n"}
DONE = Say("Done.")


def told(*replies: Use | Say) -> ScriptedModel:
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


def write(path: str) -> tuple[str, JsonMap]:
    return ("write_file", {"path": path, "content": "made\n"})


def ask(text: str = "Do it.") -> Any:
    return {"messages": [HumanMessage(text)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, FILES)
    return tmp_path


# --- Asking a person


class Asking:
    """A run in mode "ask", at the question."""

    def __init__(self, folder: Path, *replies: Use | Say) -> None:
        self.folder = folder
        self.model = told(*replies)
        self.context = AgentContext(workspace=str(folder), mode="ask")
        self.machine = build_graph(InMemorySaver(serde=serializer()), model=self.model)
        self.first: JsonMap = self.machine.invoke(ask(), THREAD, context=self.context)

    @property
    def request(self) -> JsonMap:
        [question] = self.first["__interrupt__"]
        return dict(question.value)

    def answer(self, decision: Any) -> JsonMap:
        """Go on, in a machine of a new process."""
        machine = build_graph(self.machine.checkpointer, model=self.model)
        return dict(machine.invoke(Command(resume=decision), THREAD))

    @property
    def changed(self) -> dict[str, str]:
        return changed_files(self.folder, FILES)


TWO_WRITES = use(write("one.txt"), ("read_file", {"path": "a.py"}), write("two.toml"))


def asked(index: int, path: str, rule: str) -> JsonMap:
    return {"index": index, "tool": "write_file", "path": path, "rule": rule, "arguments": write(path)[1]}


def test_a_reply_asks_one_question_for_all_of_its_calls_and_does_nothing_before(folder: Path) -> None:
    asking = Asking(folder, TWO_WRITES, DONE)
    assert asking.request["kind"] == "approval"
    first, second = asking.request["calls"]
    assert asked(0, "one.txt", "ask_before_write").items() <= first.items()
    assert asked(2, "two.toml", "project_config").items() <= second.items()
    assert (first["preview"]["kind"], bool(first["grant"]), second["grant"]) == ("diff", True, "")
    assert (asking.changed, len(asking.model.calls), asking.first.get("outcome")) == ({}, 1, None)


@pytest.mark.parametrize(
    ("decision", "made", "codes"),
    [
        ("approve", {"one.txt", "two.toml"}, ["ok", "ok", "ok"]),
        ("reject", set(), ["permission_denied", "ok", "permission_denied"]),
        ({"decisions": {0: {"action": "approve"}}}, {"one.txt"}, ["ok", "ok", "permission_denied"]),
        ({"decisions": {"2": "approve"}}, {"two.toml"}, ["permission_denied", "ok", "ok"]),
        ("whatever", set(), ["permission_denied", "ok", "permission_denied"]),
    ],
)
def test_a_person_decides_call_by_call(folder: Path, decision: Any, made: set[str], codes: list[str]) -> None:
    asking = Asking(folder, TWO_WRITES, DONE)
    ended = asking.answer(decision)
    assert set(asking.changed) == made
    assert [code_of(message) for message in ended["messages"] if isinstance(message, ToolMessage)] == codes
    assert (ended["outcome"].kind, ended["outcome"].changed_files) == (OutcomeKind.FINISHED, tuple(sorted(made)))
    assert len(asking.model.calls) == 2


def test_a_person_may_stop_the_run(folder: Path) -> None:
    asking = Asking(folder, TWO_WRITES, DONE)
    ended = asking.answer("stop")
    assert (ended["outcome"].kind, ended["outcome"].reason) == (OutcomeKind.BUDGET_STOP, StopReason.CANCELLED)
    assert (asking.changed, len(asking.model.calls)) == ({}, 1)
    assert history_problems(ended["messages"], Protocol.NATIVE) == []


def test_a_stopped_thread_goes_on_with_the_next_request(folder: Path) -> None:
    asking = Asking(folder, TWO_WRITES, DONE)
    asking.answer("stop")
    ended = asking.machine.invoke(ask("And now?"), THREAD, context=asking.context)
    assert (ended["outcome"].answer, asking.changed) == ("Done.", {})


def test_without_a_checkpointer_nobody_can_be_asked(folder: Path) -> None:
    model = told(use(write("new.py")), DONE)
    context = AgentContext(workspace=str(folder), mode="ask")
    outcome = build_graph(model=model).invoke(ask(), context=context)["outcome"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.INVALID_REQUEST)
    assert "needs a checkpointer" in outcome.message
    assert model.calls == []


# --- Tools and rules of your own


class WordsArguments(BaseModel):
    """Whose words to count."""

    path: str
    least: int = 1


@tool(effect=Effect.READ, path_fields=("path",))
def count_words(context: ToolContext, arguments: WordsArguments) -> ToolOutput:
    """Count the words of a file.

    This is not for the model.
    """
    content = context.workspace.read_file(arguments.path)
    if isinstance(content, ToolError):
        return ToolOutput.failed(content)
    return ToolOutput.ok(words=len([w for w in content.data.split() if len(w) >= arguments.least]))


def finish(machine: Machine, context: AgentContext) -> JsonMap:
    return dict(machine.invoke(ask(), context=context))


def test_a_tool_of_your_own_goes_through_the_whole_machine(folder: Path) -> None:
    """Described to the model, its arguments checked, judged by guard, run in the workspace, its result sent back."""
    (folder / ".env").write_text("A=1\n", encoding="utf-8")
    model = told(
        use(("count_words", {"path": "a.py", "least": "many"})),
        use(("count_words", {"path": "a.py"}), ("count_words", {"path": ".env"}), ("count_words", {"path": "../x"})),
        DONE,
    )
    ended = finish(build_graph(model=model, tools=(*default_tools(), count_words)), AgentContext(workspace=str(folder)))
    described = {each["function"]["name"]: each["function"]["description"] for each in model.calls[0].prompt.tools}
    assert described["count_words"] == "Count the words of a file."
    assert "INVALID_ARGUMENTS: count_words: " in str(model.calls[1].prompt.messages[-1]["content"])
    results = [message for message in ended["messages"] if isinstance(message, ToolMessage)]
    assert [code_of(message) for message in results] == ["ok", "permission_denied", "permission_denied"]
    assert results[0].content == '{"ok":true,"data":{"words":3}}'


def test_a_rule_of_your_own_denies_by_name_and_by_what_the_name_leads_to(folder: Path) -> None:
    rule = FileGuardrailRule("plans", "Secret plans", lambda path: path.name.startswith("secret"))
    (folder / "harmless.md").symlink_to("secret_plan.md")
    calls = [("read_file", {"path": path}) for path in ("secret_plan.md", "harmless.md", "a.py")]
    model = told(use(*calls, write("secret_too.md")), DONE)
    machine = build_graph(model=model, rules=(*DEFAULT_GUARDRAIL_RULES, rule))
    ended = finish(machine, AgentContext(workspace=str(folder)))
    results = [message for message in ended["messages"] if isinstance(message, ToolMessage)]
    blocked = ["Blocked by rule 'plans': Secret plans" in str(message.content) for message in results]
    assert [code_of(message) == "permission_denied" for message in results] == blocked == [True, True, False, True]
    assert "bank" not in str(ended["messages"])


# --- What comes from outside


def test_calls_that_were_left_hanging_are_closed_before_the_model_is_asked(folder: Path) -> None:
    call = {"name": "read_file", "args": {"path": "a.py"}, "id": "old", "type": "tool_call"}
    history: list[AnyMessage] = [HumanMessage("Read."), AIMessage("", tool_calls=[call]), HumanMessage("Well?")]
    model = told(DONE)
    ended = build_graph(model=model).invoke({"messages": history}, context=AgentContext(workspace=str(folder)))
    assert history_problems(ended["messages"], Protocol.NATIVE) == []
    sent = model.calls[0].prompt.messages
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
    assert "This call was cancelled before it ran." in sent[3]["content"]


@pytest.mark.parametrize(
    "messages",
    [[], [HumanMessage("")], [HumanMessage(" \n")], [HumanMessage("Hi."), AIMessage("Hello.")]],
)
def test_without_a_request_nothing_is_spent(folder: Path, messages: list[AnyMessage]) -> None:
    model = told(DONE)
    ended = build_graph(model=model).invoke({"messages": messages}, context=AgentContext(workspace=str(folder)))
    outcome = ended["outcome"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.INVALID_REQUEST)
    assert (model.calls, outcome.usage["total_calls"]) == ([], 0)


def code_of(message: ToolMessage) -> str:
    """The result's error code, or "ok"."""
    result = json.loads(str(message.content))
    return str(result["error"]["code"]) if "error" in result else "ok"


# --- A store


@tool(effect=Effect.READ, cacheable=False)
def remember(word: str) -> dict[str, Any]:
    """Remember a word, and tell those of before."""
    store = get_store()
    known = [item.key for item in store.search(("words",))]
    store.put(("words",), word, {})
    return {"known": sorted(known)}


@pytest.mark.parametrize("loop", [True, False])
def test_a_tool_reaches_the_store_from_every_thread(folder: Path, loop: bool) -> None:
    store, known = InMemoryStore(), []
    for word in ("one", "two"):
        model = told(use(("remember", {"word": word})), DONE)
        machine = build_graph(model=model, tools=(*default_tools(), remember), store=store)
        settings: Any = {"context": AgentContext(workspace=str(folder))}
        result: Any = asyncio.run(machine.ainvoke(ask(), **settings)) if loop else machine.invoke(ask(), **settings)
        known += [json.loads(each.content)["data"]["known"] for each in result["messages"] if each.type == "tool"]
    assert known == [[], ["one"]]
    assert sorted(item.key for item in store.search(("words",))) == ["one", "two"]


def test_a_session_hands_its_store_to_its_tools(folder: Path) -> None:
    store = InMemoryStore()
    model = told(use(("remember", {"word": "one"})), DONE)
    run_task("Do it.", AgentContext(workspace=str(folder)), model=model, tools=[remember], store=store)
    assert [item.key for item in store.search(("words",))] == ["one"]
