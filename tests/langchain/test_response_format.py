"""`response_format` as in create_agent: an instance of the given type, asked for until it is valid."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.messages import SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from mendgraph import Session, build_graph, resume_run, run_task, serializer
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.langchain.embedding import THREAD, context
from tests.vocabulary import JsonMap, Protocol

ASK = "Which functions are in calc.py?"


class Found(BaseModel):
    name: str
    line: int = Field(description="counted from 1")


class Report(BaseModel):
    """A report."""

    functions: list[Found]

    @field_validator("functions")
    @classmethod
    def _some(cls, functions: list[Found]) -> list[Found]:
        if not functions:
            raise ValueError("there is at least one function")
        return functions


@dataclass
class Count:
    count: int


class Counted(TypedDict):
    count: int


SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
FUNCTIONS: JsonMap = {"functions": [{"name": "add", "line": 1}]}
REPORT = Report(functions=[Found(name="add", line=1)])


def model_with_answers(*values: Any, protocol: Protocol = Protocol.NATIVE) -> ScriptedModel:
    return ScriptedModel([message_of(answer(value), protocol) for value in values])


def answer(value: Any) -> Any:
    return use(("final_answer", {"answer": "Here they are.", "value": value}))


FORMATS: dict[str, tuple[Any, Any, Any]] = {
    "model": (Report, FUNCTIONS, REPORT),
    "dataclass": (Count, {"count": 1}, Count(1)),
    "typed dict": (Counted, {"count": 1}, {"count": 1}),
    "schema": (SCHEMA, {"count": 1}, {"count": 1}),
    "tool": (ToolStrategy(Report), FUNCTIONS, REPORT),
    "provider": (ProviderStrategy(Count), {"count": 1}, Count(1)),
    "auto": (AutoStrategy(SCHEMA), {"count": 1}, {"count": 1}),
    "either": (Report | Count, {"count": 1}, Count(1)),
}


@slow
@pytest.mark.parametrize(("name", "protocol"), [*zip(FORMATS, [*Protocol] * 4, strict=True)])
def test_result_is_an_instance_of_the_given_type(name: str, protocol: Protocol, tmp_path: Path) -> None:
    """In the state and in the result; the checkpoint and the stream mode `updates` have plain data."""
    response_type, value, instance = FORMATS[name]
    settings, saver = context(tmp_path, protocol=protocol.value), InMemorySaver(serde=serializer())
    result = run_task(ASK, settings, model=model_with_answers(value, protocol=protocol), response_format=response_type)
    assert (result.structured, result.outcome.value, result.answer) == (instance, value, "Here they are.")
    graph = build_graph(
        saver, model=model_with_answers(value, protocol=protocol), context=settings, response_format=response_type
    )
    turn_input: Any = {"messages": [("user", ASK)]}
    parts = list(graph.stream(turn_input, THREAD, stream_mode=["updates", "values"]))
    assert parts[-2][1]["FINISHED"]["structured_response"] == value  # type: ignore[index]
    assert parts[-1][1]["structured_response"] == instance  # type: ignore[index]
    assert graph.get_state(THREAD).values["structured_response"] == instance
    later = build_graph(saver, model=ScriptedModel([Say("Hi.")] * 3), context=settings, response_format=response_type)
    assert later.get_state(THREAD).values["structured_response"] == instance
    assert later.invoke(turn_input, THREAD)["structured_response"] is None  # a turn that has not finished


def test_invalid_result_is_asked_for_again_and_ends_with_its_errors(tmp_path: Path) -> None:
    """Including errors of the type's own validators."""
    model = model_with_answers({"functions": [{"name": "add"}]}, {"functions": []}, FUNCTIONS)
    result = run_task(ASK, context(tmp_path), model=model, response_format=Report)
    requests = [call.prompt.messages[-1]["content"] for call in model.calls[1:]]
    assert "value.functions.0.line: Field required" in requests[0]
    assert "value.functions: Value error, there is at least one function" in requests[1]
    assert (result.ok, result.structured) == (True, REPORT)
    never = run_task(ASK, context(tmp_path), model=model_with_answers(*[{"functions": []}] * 3), response_format=Report)
    assert (never.outcome.reason, never.structured) == ("schema_repair_exhausted", None)
    assert "there is at least one function" in " ".join(never.outcome.diagnostics)


def test_resumed_run_keeps_its_schema(tmp_path: Path) -> None:
    """Pass the type again on resume to get an instance; otherwise the result is plain data."""
    settings = context(tmp_path)
    with Session(settings, model=ScriptedModel([Say("Hello.")] * 3), response_format=Count) as session:
        assert session.work(ASK).outcome.kind == "SYSTEM_ERROR"  # type: ignore[union-attr]
    resumed: Any = resume_run(session.thread_id, settings.workspace, model=model_with_answers("no", {"count": 1}))
    assert (resumed.ok, resumed.structured) == (True, {"count": 1})


def test_invalid_response_format_is_refused_when_the_graph_is_built() -> None:
    rows: list[tuple[Any, type[Exception], str]] = [
        (5, TypeError, "response_format: use a pydantic model, a dataclass, a TypedDict or a JSON schema."),
        ("Report", TypeError, "response_format: use a pydantic model"),
        ({"type": "objekt"}, ValueError, "response_format is not a JSON schema"),
    ]
    for response_type, kind, words in rows:
        with pytest.raises(kind, match=words):
            build_graph(response_format=response_type)


# --- Other parameters of create_agent


WORDS = "Answer in the language of pirates."


@pytest.mark.parametrize("form", [{}, {"protocol": "text", "edit_form": "blocks"}])
def test_system_prompt_follows_the_instructions_for_tools(form: JsonMap, tmp_path: Path) -> None:
    """It is in each request and not in the stored history."""
    models = [
        ScriptedModel([message_of(use(("read_file", {"path": "calc.py"})), Protocol(form.get("protocol", "native")))])
        for _ in "ab"
    ]
    results = [
        run_task(ASK, context(tmp_path, **form), model=model, system_prompt=words)
        for model, words in zip(models, (None, WORDS), strict=True)
    ]
    without, having = ([call.prompt.messages[0]["content"] for call in model.calls] for model in models)
    assert having == [f"{prompt}\n\n{WORDS}" for prompt in without]
    sizes = [[call.prompt.size for call in model.calls] for model in models]
    assert [after - before for before, after in zip(*sizes, strict=True)] == [len(WORDS) + 2] * 2
    assert [message.type for message in results[1].messages] == [message.type for message in results[0].messages]
    assert WORDS not in json.dumps([message.text for message in results[1].messages])


@slow
def test_system_prompt_is_kept_for_the_whole_thread(tmp_path: Path) -> None:
    """It is stored once a turn, beside the context, of which each step has a copy."""
    settings, saver = context(tmp_path), InMemorySaver(serde=serializer())
    with Session(
        settings, model=model_with_answers("no"), response_format=Count, system_prompt=SystemMessage(WORDS)
    ) as session:
        session.work(ASK)
    model = model_with_answers("no", {"count": 1})
    resume_run(session.thread_id, settings.workspace, model=model)
    graph = build_graph(saver, model=model)
    turn_input: Any = {"messages": [("user", ASK)]}
    graph.invoke(turn_input, THREAD, context=settings.model_copy(update={"system_prompt": WORDS}))
    graph.invoke(turn_input, THREAD)
    assert {call.prompt.messages[0]["content"].endswith(WORDS) for call in model.calls} == {True}
    assert graph.get_state(THREAD).values["context"].system_prompt == ""
    graph.invoke(turn_input, THREAD, context=settings)
    assert not model.calls[-1].prompt.messages[0]["content"].endswith(WORDS)


def test_name_of_the_graph_is_the_name_of_its_last_message(tmp_path: Path) -> None:
    graph = build_graph(model=ScriptedModel([]), context=context(tmp_path), name="coder")
    assert (graph.name, build_graph().name) == ("coder", "mendgraph")
    turn_input: Any = {"messages": [("user", ASK)]}
    assert graph.invoke(turn_input)["messages"][-1].name == "coder"
    with pytest.raises(TypeError, match="name: a int is not accepted"):
        build_graph(name=5)  # type: ignore[arg-type]
