from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graph import current_redactor, gateway
from graph.context import AgentContext
from graph.current_redactor import CurrentRedactor
from graph.run import run_task
from nodes.records import OutcomeKind, Protocol
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.runs.scenario import message_of, use

GIVEN, FOUND = "plugh-1234-xyzzy", "quux-98765-quux"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """The environments that secrets were looked for in."""
    return counted(monkeypatch, current_redactor, "known_values")


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The argument of each call that the module makes of this function."""
    calls: list[Any] = []
    function = getattr(module, name)

    def counting(argument: Any) -> Any:
        calls.append(argument)
        return function(argument)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_secrets_are_looked_for_again_only_when_the_environment_has_changed(
    monkeypatch: pytest.MonkeyPatch, looked: list[Mapping[str, str]]
) -> None:
    current = CurrentRedactor([GIVEN])
    assert looked == []
    first = current.now()
    assert current.now() is first
    monkeypatch.setenv("SOME_TOKEN", FOUND)
    assert current.now().text(f"{GIVEN} {FOUND}") == "[redacted secret] [redacted secret]"
    monkeypatch.delenv("SOME_TOKEN")
    assert current.now().text(f"{GIVEN} {FOUND}") == f"[redacted secret] {FOUND}"
    assert len(looked) == 3


def test_a_run_looks_for_secrets_once_and_each_step_asks_for_its_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: list[Mapping[str, str]]
) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    folders = counted(monkeypatch, gateway, "run_folder")
    one, two = (use(*(("read_file", {"path": "a.py", "limit": lines + 1}) for lines in range(each))) for each in (1, 2))
    model = ScriptedModel([message_of(each, Protocol.NATIVE) for each in (one, two, Say("Done."))])
    result = run_task("Look.", AgentContext(workspace=str(tmp_path)), model=model, thread_id="t")
    assert result.outcome.kind is OutcomeKind.FINISHED
    assert len(looked) == 1
    assert folders == ["t"] * 3  # at the start, to see whether there is one, and in each step
