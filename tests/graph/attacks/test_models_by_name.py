"""A model is given as a chat model, as a name, or as "provider:name", wherever a run can begin."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph import AgentContext, BatchTask, Ended, Session, arun_task, build_graph, run_batch, run_task, stream_task
from mendgraph.graph.fleet.batch.batch_folder import BatchResult
from mendgraph.graph.fleet.batch.run_batch import Crew, check_crew
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.runs import resume_run
from mendgraph.nodes.records import Outcome, StopReason
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import Say, ScriptedServer, Status

Way = Callable[[Any, AgentContext], str]


def by_graph(model: Any, context: AgentContext) -> str:
    request: Any = {"messages": [HumanMessage("Hi.")]}
    outcome: Outcome = build_graph(model=model).invoke(request, context=context)["outcome"]
    return outcome.answer


def by_session(model: Any, context: AgentContext) -> str:
    with Session(context, model=model) as session:
        session.work("Hi.")
        return session.result().answer


def by_stream(model: Any, context: AgentContext) -> str:
    *_, last = stream_task("Hi.", context, model=model)
    assert isinstance(last, Ended)
    return last.outcome.answer


def by_batch(model: Any, context: AgentContext) -> str:
    tasks = [BatchTask(id="a", prompt="Hi.", workspace=context.workspace)]
    found = run_batch(tasks, out=f"{context.workspace}.batch", context=context, model=model)
    assert isinstance(found, BatchResult)
    (result,) = found.results()
    return result.answer


WAYS: dict[str, Way] = {
    "build_graph": by_graph,
    "run_task": lambda model, context: run_task("Hi.", context, model=model).answer,
    "arun_task": lambda model, context: asyncio.run(arun_task("Hi.", context, model=model)).answer,
    "stream_task": by_stream,
    "Session": by_session,
    "run_batch": by_batch,
}


@pytest.fixture
def context(tmp_path: Path) -> AgentContext:
    (tmp_path / "work").mkdir()
    return AgentContext(workspace=str(tmp_path / "work"), evidence=False, project_notes=False)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_takes_each_of_them(way: str, context: AgentContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert WAYS[way](ScriptedModel([Say("Done.")]), context) == "Done."
    for place, name in enumerate(("m", "openai:m")):
        with ScriptedServer([Say("Done.")]) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            (Path(context.workspace).parent / str(place)).mkdir()
            there = context.model_copy(update={"workspace": str(Path(context.workspace).parent / str(place))})
            assert WAYS[way](name, there) == "Done."
        assert [request["model"] for request in server.requests] == ["m"]


def test_a_provider_without_its_package_is_one_line(context: AgentContext) -> None:
    result = run_task("Hi.", context, model="perplexity:sonar")
    assert result.outcome.reason is StopReason.PROVIDER_FAILED
    assert "pip install langchain-perplexity" in result.outcome.message


def test_a_name_is_kept_with_its_run_and_asked_again_by_a_resume(
    context: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ScriptedServer([Status(401, "no"), Say("Done.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert run_task("Hi.", context, model="openai:m").outcome.reason is StopReason.PROVIDER_FAILED
        result = resume_run(workspace=context.workspace)
    assert isinstance(result, RunResult)
    assert (result.answer, [request["model"] for request in server.requests]) == ("Done.", ["m", "m"])


def test_fallbacks_beside_a_chat_model_of_ones_own_are_refused_and_not_ignored(context: AgentContext) -> None:
    outcome = run_task(
        "Hi.", context.model_copy(update={"fallback_models": ("local",)}), model=ScriptedModel([])
    ).outcome
    assert outcome.reason is StopReason.INVALID_REQUEST
    assert outcome.message.startswith("fallback_models are not asked beside a chat model of your own")


def test_the_price_is_that_of_the_chat_model_that_answers(context: AgentContext) -> None:
    named = context.model_copy(update={"model": "gpt-5-nano", "max_cost_usd": 1.0})
    own = ChatOpenAI(model="nobody-knows-its-price", base_url="http://127.0.0.1:9/v1", api_key=SecretStr("k"))
    outcome = run_task("Hi.", named, model=own).outcome
    assert outcome.reason is StopReason.INVALID_REQUEST
    assert "nobody-knows-its-price" in outcome.message


def test_only_a_name_is_sent_to_other_processes() -> None:
    check_crew(Crew(processes=2), {"model": "anthropic:claude-sonnet-4-5"})
    with pytest.raises(ValueError, match="model: these cannot be sent to other processes"):
        check_crew(Crew(processes=2), {"model": ScriptedModel([])})
    with pytest.raises(TypeError, match="model: a str does not fit"):
        check_crew(Crew(), {"model": " "})
