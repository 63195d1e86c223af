"""What helps a weak model costs a model that replies well neither a call nor tokens."""

from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.records import OutcomeKind
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.runs.run_plays import use
from tests.scenarios.sample_repair import BROKEN, EDIT, MENDED, READ, TASK
from tests.workspace_files import write_files

ALLOWED = 1.02
"""Prompt characters with all the means, over those without them."""

DOCUMENTED = BROKEN.replace("return", '"""Add.\n\n    >>> add(2, 3)\n    5\n    """\n    return')
WITHOUT: dict[str, Any] = {"evidence": False, "read_ahead": False, "max_healing_attempts": 0}


def played(folder: Path, **settings: Any) -> HistoryModel:
    folder.mkdir()
    write_files(folder, {"calc.py": DOCUMENTED})
    model = HistoryModel((use(READ), use(EDIT), Say("add adds now.")))
    outcome = run_task(TASK, AgentContext(workspace=str(folder), **settings), model=model).outcome
    assert (outcome.kind, outcome.answer) == (OutcomeKind.FINISHED, "add adds now."), outcome
    assert (folder / "calc.py").read_text() == DOCUMENTED.replace("a - b", "a + b")
    assert MENDED not in DOCUMENTED
    return model


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_evidence_and_claims_send_the_very_same_requests(tmp_path: Path, protocol: str) -> None:
    with_all = played(tmp_path / "with", protocol=protocol, read_ahead=False)
    without = played(tmp_path / "without", protocol=protocol, **WITHOUT)
    assert [call.prompt for call in with_all.calls] == [call.prompt for call in without.calls]


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_reading_ahead_saves_a_call(tmp_path: Path, protocol: str) -> None:
    with_all = played(tmp_path / "with", protocol=protocol)
    without = played(tmp_path / "without", protocol=protocol, **WITHOUT)
    assert (len(with_all.calls), len(without.calls)) == (2, 3)
    sent, otherwise = (sum(call.prompt.size for call in model.calls) for model in (with_all, without))
    assert sent <= ALLOWED * otherwise
