"""What `build_graph` takes: a checkpointer, a model, tools and rules of your own."""

import asyncio
import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command
from pydantic import SecretStr

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.options import check_options
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.records import JsonMap, OutcomeKind, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

THREAD: Any = {"configurable": {"thread_id": "t"}}
FILES = {"a.py": "a = 1\n", "b.py": "b = 1\n", "secret_plan.md": "rob a bank\n"}
DONE = Say("Done.")


def text_model(*replies: Use | Say) -> ScriptedModel:
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


def write(path: str) -> tuple[str, JsonMap]:
    return ("write_file", {"path": path, "content": "made\n"})


def ask(text: str = "Do it.") -> Any:
    return {"messages": [HumanMessage(text)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, FILES)
    return tmp_path


# --- Tools and rules of your own


def finish(machine: Machine, context: AgentContext) -> JsonMap:
    return dict(machine.invoke(ask(), context=context))


def test_users_file_rule_denies_by_name_and_by_link_target(folder: Path) -> None:
    rule = FileGuardrailRule("plans", "Secret plans", lambda path: path.name.startswith("secret"))
    (folder / "harmless.md").symlink_to("secret_plan.md")
    calls = [("read_file", {"path": path}) for path in ("secret_plan.md", "harmless.md", "a.py")]
    model = text_model(use(*calls, write("secret_too.md")), DONE)
    machine = build_graph(model=model, rules=(*DEFAULT_GUARDRAIL_RULES, rule))
    ended = finish(machine, AgentContext(workspace=str(folder)))
    results = [message for message in ended["messages"] if isinstance(message, ToolMessage)]
    blocked = ["Blocked by rule 'plans': Secret plans" in str(message.content) for message in results]
    assert [code_of(message) == "permission_denied" for message in results] == blocked == [True, True, False, True]
    assert "bank" not in str(ended["messages"])


def code_of(message: ToolMessage) -> str:
    """The result's error code, or "ok"."""
    result = json.loads(str(message.content))
    return str(result["error"]["code"]) if "error" in result else "ok"


# --- Arguments

RULE = FileGuardrailRule("migrations", "Database migrations", lambda path: "migrations" in path.parts)
READ_FILE = default_tools()[0]


WRONG: tuple[tuple[str, Any, str], ...] = (
    ("checkpointer", InMemorySaver, "the class InMemorySaver is not accepted: use a checkpoint saver of LangGraph"),
    ("model", " ", "a str is not accepted: use a chat model of LangChain such as"),
    ("tools", READ_FILE, "use a sequence of tools, as in (*default_tools(), mine)"),
    ("tools", [READ_FILE, "read_file"], "a str is not accepted: use tools of mendgraph, tools of LangChain"),
    ("effects", ["read_file"], "a list is not accepted: use effects by name of a tool"),
    ("rules", RULE, "use a sequence of FileGuardrailRule(name, description, check)"),
    ("roles", {"clerk": "read_file"}, "use collections of names of tools by role"),
    ("secrets", "hunter2", "use a sequence of texts, as in (token,)."),
    ("store", {}, "a dict is not accepted: use a store of LangGraph, such as InMemoryStore()."),
    ("context", {"workspace": "."}, "a dict is not accepted: use AgentContext(workspace=..., ...)."),
)


def test_wrong_argument_error_names_the_argument_and_the_remedy(subtests: pytest.Subtests) -> None:
    for name, value, words in WRONG:
        arguments: dict[str, Any] = {name: value}
        for make in (build_graph, Session):
            problem = pytest.raises(TypeError, match=f"^{name}: .*{re.escape(words)}")
            with subtests.test(name=name, words=words, make=make.__name__), problem:
                make(**arguments)
    for make in (build_graph, Session):
        with pytest.raises(ValueError, match=r"tools: 2 tools are called 'read_file': use different names\."):
            make(tools=[*default_tools(), READ_FILE])
    wrong: Any = True
    with pytest.raises(TypeError, match="checkpointer: pass a saver, or omit it"):
        Session(checkpointer=wrong)


def test_invalid_context_ends_the_turn_and_names_the_setting() -> None:
    context: Any = {"workspce": "elsewhere", 1: 2}
    ended: Any = build_graph().invoke({"messages": [HumanMessage("Hi.")]}, context=context)
    assert (ended["outcome"].reason, ended["outcome"].message) == (
        StopReason.INVALID_REQUEST,
        "The run's context does not fit: workspce: there is no such setting (did you mean workspace?).",
    )


def test_chat_model_key_is_a_secret_unless_it_is_a_local_servers_placeholder() -> None:
    def with_key(key: str) -> Any:
        model = ChatOpenAI(model="m", api_key=SecretStr(key))
        return check_options(None, None, {"model": model, "secrets": ("mine",)})["secrets"]

    assert with_key("sk-proj-4f9Qz81LmX2") == ("mine", "sk-proj-4f9Qz81LmX2")
    assert with_key("not-needed") == with_key("lm-studio") == ("mine",)
    assert check_options(None, None, {"model": "gpt-5-mini", "secrets": ("mine",)})["secrets"] == ("mine",)


# --- Copies, and commands that name a node


def test_copy_of_a_built_graph_runs_on_the_same_thread(folder: Path) -> None:
    machine = build_graph(InMemorySaver(), model=text_model(DONE, DONE), context=AgentContext(workspace=str(folder)))
    machine.invoke(ask(), THREAD)
    for copied in (copy.copy(machine), copy.deepcopy({"graph": machine})["graph"]):
        assert copied.get_state(THREAD).values["outcome"].kind is OutcomeKind.FINISHED
    assert copy.deepcopy(machine).invoke(ask("Again."), THREAD)["outcome"].kind is OutcomeKind.FINISHED


@pytest.mark.parametrize("node", ["execute_tools", "begin_turn"])
def test_command_with_goto_is_refused_with_the_reason(folder: Path, node: str) -> None:
    machine = build_graph(InMemorySaver(), model=text_model(DONE), context=AgentContext(workspace=str(folder)))
    command: Any = Command(goto=node, update=ask())
    problem = r"cannot begin a run in the middle of the machine"
    with pytest.raises(ValueError, match=problem):
        machine.invoke(command, THREAD)
    with pytest.raises(ValueError, match=problem):
        asyncio.run(machine.ainvoke(command, THREAD))


def test_context_of_a_thread_cannot_be_written(folder: Path) -> None:
    machine = build_graph(InMemorySaver(), model=text_model(DONE), context=AgentContext(workspace=str(folder)))
    machine.invoke(ask(), THREAD)
    with pytest.raises(InvalidUpdateError, match="context cannot be written: send another one with the next request"):
        machine.update_state(THREAD, {"context": {"mode": "auto", "workspace": "/"}}, as_node="begin_turn")
