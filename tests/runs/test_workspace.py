"""Runs whose workspace lets them down: a disk that takes no change ends the run, whatever the model would try next."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.execute_tools.files import file_changes
from mendgraph.nodes.records import OutcomeKind, Protocol, StopReason
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, READ, TASK
from tests.workspace_files import changed_files, write_files

FATAL = [(errno.ENOSPC, "the disk is full"), (errno.EIO, "the disk reports an error")]


@pytest.mark.parametrize(("number", "reason"), FATAL)
@pytest.mark.parametrize("protocol", list(Protocol))
def test_disk_that_takes_no_change_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: Protocol, number: int, reason: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_changes, "write_temporary", fail)
    write_files(tmp_path, CALC)
    model = ScriptedModel([message_of(reply, protocol) for reply in (use(READ), use(EDIT), DONE)])
    context = AgentContext(workspace=str(tmp_path), protocol=protocol.value)
    outcome = run_task(TASK, context, model=model).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.WORKSPACE_FAILED)
    assert outcome.message == f"Cannot write 'calc.py': {reason}."
    assert (outcome.changed_files, changed_files(tmp_path, CALC), len(model.calls)) == ((), {}, 2)
