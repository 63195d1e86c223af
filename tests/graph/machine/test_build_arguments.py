"""Arguments that cannot be used are refused where they are given, with their name and the remedy."""

import re
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore
from pydantic import SecretStr

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.build_arguments import BuildArguments, check_arguments, with_keys
from mendgraph.graph.runs.session import Session
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from tests.doubles.scripted_model import ScriptedModel

RULE = FileGuardrailRule("migrations", "Database migrations", lambda path: "migrations" in path.parts)
TEXT: Any = "*.sql"
READ_FILE = default_tools()[0]


def plain(text: str) -> str:
    """Not made a tool."""
    return text


WRONG: tuple[tuple[str, Any, str], ...] = (
    ("checkpointer", InMemorySaver, "InMemorySaver is a class: make one of it, as in InMemorySaver(...)."),
    ("checkpointer", SqliteSaver.from_conn_string(":memory:"), "is a context manager: enter it, as in `with ... as"),
    ("checkpointer", "memory", "str is no checkpoint saver of LangGraph, such as InMemorySaver()."),
    ("model", ScriptedModel, "ScriptedModel is a class: make one of it"),
    ("model", " ", "the name is empty: leave it out to use what the environment names."),
    ("model", FakeListChatModel(responses=["a"]).bind(stop=["b"]), "is no chat model of LangChain by itself: give a"),
    ("model", object(), 'object is no chat model of LangChain: give a chat model such as ChatAnthropic(model="...")'),
    ("tools", READ_FILE, "give a sequence of tools, as in tools=(*default_tools(), mine)."),
    ("tools", "read_file", "give a sequence of tools"),
    ("tools", [READ_FILE, plain], "number 1 (plain) is no tool: make one of a typed function with @tool(effect="),
    ("tools", [object()], "number 0 (object) is no tool"),
    ("rules", RULE, "give a sequence of rules, as in rules=(*DEFAULT_GUARDRAIL_RULES, mine)."),
    ("rules", None, "give a sequence of rules"),
    ("rules", [*DEFAULT_GUARDRAIL_RULES, "*.sql"], "number 5 (str) is no rule: FileGuardrailRule("),
    ("rules", [RULE._replace(check=TEXT)], "number 0 (migrations) has a check that is no function of a path"),
    ("roles", ["reader"], "give names of tools by role"),
    ("roles", {"clerk": "read_file"}, "the role 'clerk' needs a collection of names of tools"),
    ("secrets", "hunter2", "give a sequence of texts, as in secrets=(token,)."),
    ("secrets", [7], "give a sequence of texts"),
    ("store", InMemoryStore, "InMemoryStore is a class: make one of it"),
    ("store", {}, "dict is no store of LangGraph, such as InMemoryStore()."),
    ("context", {"workspace": "."}, "dict is no AgentContext: give AgentContext(workspace=..., ...)."),
)


@pytest.mark.parametrize(("name", "value", "words"), WRONG, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(WRONG)])
def test_a_wrong_argument_is_named_with_its_remedy(name: str, value: Any, words: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(TypeError, match=f"^{name}: .*{re.escape(words)}"):
        check_arguments(BuildArguments(**given))
    with pytest.raises(TypeError, match=f"^{name}: "):
        build_graph(**given)
    with pytest.raises(TypeError, match=f"^{name}: "):
        Session(**given)


def test_two_tools_of_one_name_are_refused() -> None:
    for make in (build_graph, Session):
        with pytest.raises(ValueError, match=r"tools: 2 tools are called 'read_file': give them different names\."):
            make(tools=[*default_tools(), READ_FILE])


def test_what_is_right_is_taken() -> None:
    check_arguments(BuildArguments())
    check_arguments(
        BuildArguments(
            checkpointer=InMemorySaver(),
            model=ScriptedModel([]),
            tools=list(default_tools()),
            rules=[RULE],
            roles={"clerk": {"read_file"}},
            secrets=["hunter2"],
            store=InMemoryStore(),
            context=AgentContext(),
        )
    )
    for checkpointer in (True, False):
        check_arguments(BuildArguments(checkpointer=checkpointer))
    for model in (FakeListChatModel(responses=["a"]), "gpt-5-mini", "anthropic:claude-sonnet-4-5"):
        check_arguments(BuildArguments(model=model))


def test_a_session_keeps_its_thread_somewhere() -> None:
    wrong: Any = True
    with pytest.raises(TypeError, match="checkpointer: give a saver, or none to keep the thread"):
        Session(checkpointer=wrong)


def test_the_key_of_a_chat_model_is_a_secret_and_the_word_that_a_local_server_takes_is_none() -> None:
    def with_key(key: str) -> tuple[str, ...]:
        return with_keys(("mine",), ChatOpenAI(model="m", api_key=SecretStr(key)))

    assert with_key("sk-proj-4f9Qz81LmX2") == ("mine", "sk-proj-4f9Qz81LmX2")
    assert with_key("not-needed") == with_key("lm-studio") == with_keys(("mine",), "gpt-5-mini") == ("mine",)
