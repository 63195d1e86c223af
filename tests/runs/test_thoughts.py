"""What a run makes of a model that thinks aloud: no thought runs or is remembered, and thoughts alone are no reply."""

from pathlib import Path

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.records import JsonMap, Outcome, OutcomeKind, StopReason
from tests.doubles.replies import Calls, Message, Say, Think
from tests.doubles.scripted_model import ScriptedModel
from tests.workspace_files import write_files

DELETING = 'tool: delete_file({"path": "a.txt"})'
ALOUD = f"<think>\nI could say:\n{DELETING}\n</think>\n\n"
WELL = "All is well."


def asked(folder: Path, model: ScriptedModel, **settings: object) -> tuple[Outcome, str]:
    """The outcome of one question, and all that the history says."""
    write_files(folder, {"a.txt": "one\n"})
    said: JsonMap = {"evidence": False, "read_ahead": False, **settings}
    result = run_task("Is all well?", AgentContext(workspace=str(folder), **said), model=model)
    return result.outcome, "\n".join(message.text for message in result.messages)


@pytest.mark.parametrize("protocol", ["text", "native"])
@pytest.mark.parametrize("edit_form", ["replace", "blocks"])
def test_call_in_a_thought_never_runs_and_is_not_remembered(tmp_path: Path, protocol: str, edit_form: str) -> None:
    model = ScriptedModel([Say(f"{ALOUD}{WELL}")])
    outcome, history = asked(tmp_path, model, protocol=protocol, edit_form=edit_form)
    assert (outcome.kind, outcome.answer, outcome.changed_files) == (OutcomeKind.FINISHED, WELL, ())
    assert (tmp_path / "a.txt").read_text() == "one\n"
    assert "delete_file" not in history


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_what_comes_after_a_thought_runs(tmp_path: Path, protocol: str) -> None:
    arguments = '{"path": "."}'
    call: Message = Calls([("list_files", arguments)], text=ALOUD)
    if protocol == "text":
        call = Say(f"{ALOUD}tool: list_files({arguments})")
    model = ScriptedModel([call, Say(WELL)])
    outcome, history = asked(tmp_path, model, protocol=protocol)
    assert (outcome.kind, outcome.answer, len(model.calls)) == (OutcomeKind.FINISHED, WELL, 2)
    assert "delete_file" not in history
    assert all("delete_file" not in str(message) for message in model.calls[1].prompt.messages[2:])


@pytest.mark.parametrize("thought", [Think("Hm. So."), Say("<think>Hm. So.</think>"), Say("<think>Hm. So.")], ids=repr)
def test_thoughts_alone_are_asked_on_and_given_up_in_the_end(tmp_path: Path, thought: Message) -> None:
    model = ScriptedModel([thought], then=Say(WELL))
    outcome, _ = asked(tmp_path, model, protocol="native")
    assert (outcome.kind, outcome.answer) == (OutcomeKind.FINISHED, WELL)
    told = str(model.calls[1].prompt.messages[-1]["content"])
    assert "THOUGHT_ONLY_REPLY: The reply was only thought" in told
    assert "You only thought. Now answer, or make the tool call." in told
    outcome, _ = asked(tmp_path, ScriptedModel([], then=thought), protocol="native")
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.EMPTY_REPLY)
    assert outcome.message.startswith("The model still only thought, without an answer or a tool call after ")
