"""A model is given as a chat model, as a name, or as "provider:name", wherever a run can start."""

from pathlib import Path

import pytest

from mendgraph import AgentContext, run_task
from mendgraph.graph.fleet.batch.batch import check_session_options
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.runs import resume_run
from mendgraph.nodes.records import StopReason
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import Say, ScriptedServer, Status


@pytest.fixture
def context(tmp_path: Path) -> AgentContext:
    (tmp_path / "work").mkdir()
    return AgentContext(workspace=str(tmp_path / "work"), evidence=False, project_notes=False)


def test_model_name_is_stored_with_its_run_and_used_by_resume(
    context: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ScriptedServer([Status(401, "no"), Say("Done.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert run_task("Hi.", context, model="openai:m").outcome.reason is StopReason.PROVIDER_FAILED
        result = resume_run(workspace=context.workspace)
    assert isinstance(result, RunResult)
    assert (result.answer, [request["model"] for request in server.requests]) == ("Done.", ["m", "m"])


def test_fallbacks_beside_the_users_chat_model_are_refused(context: AgentContext) -> None:
    outcome = run_task(
        "Hi.", context.model_copy(update={"fallback_models": ("local",)}), model=ScriptedModel([])
    ).outcome
    assert outcome.reason is StopReason.INVALID_REQUEST
    assert outcome.message.startswith("fallback_models do not apply to your own chat model")


def test_only_a_model_name_can_be_sent_to_other_processes() -> None:
    check_session_options({"model": "anthropic:claude-sonnet-4-5"}, in_this_process=False)
    with pytest.raises(ValueError, match="model: these cannot be sent to other processes"):
        check_session_options({"model": ScriptedModel([])}, in_this_process=False)
    with pytest.raises(TypeError, match="model: a str is not accepted"):
        check_session_options({"model": " "}, in_this_process=True)
