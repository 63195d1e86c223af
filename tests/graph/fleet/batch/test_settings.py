"""What a task may do: the workspace's own settings narrow it, unless they are trusted; its own limits hold for it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.orders import WorkOrder
from mendgraph.graph.fleet.batch.settings import ANY_FILE, context_of, trusted_settings
from mendgraph.graph.fleet.batch.tasks import BatchTask
from mendgraph.nodes.execute_tools.store.user_files import trust
from mendgraph.nodes.records import ToolError, ToolErrorCode

NARROW = "max_steps = 3\n"
WIDE = 'allowed_programs = ["make"]\n'


def order(limits: dict[str, Any] | None = None, **changed: Any) -> WorkOrder:
    task = BatchTask(id="a", prompt="p", workspace="/w", limits=limits or {})
    context = AgentContext(max_steps=9, allowed_programs=("git",), model="m")
    return WorkOrder("0a", task, context.model_dump_json(), "/out/a", **{"own_settings": True, **changed})


def context(given: WorkOrder, root: Path) -> AgentContext:
    found = context_of(given, str(root))
    assert isinstance(found, AgentContext), found.message
    return found


def test_the_folders_own_settings_narrow(tmp_path: Path) -> None:
    (tmp_path / ".mendgraph.toml").write_text(NARROW)
    found = context(order(), tmp_path)
    assert (found.workspace, found.max_steps, found.model) == (str(tmp_path), 3, "m")
    assert context(order(given='{"max_steps": 7}'), tmp_path).max_steps == 7
    assert context(order({"max_steps": 5}, given='{"max_steps": 7}'), tmp_path).max_steps == 5
    assert context(order(own_settings=False), tmp_path).max_steps == 9


def test_what_widens_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / ".mendgraph.toml").write_text(WIDE)
    refused = context_of(order(), str(tmp_path))
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.INVALID_ARGUMENT
    assert ".mendgraph.toml of the task's workspace sets allowed_programs, which needs your trust" in refused.message
    sha256 = hashlib.sha256(WIDE.encode()).hexdigest()
    for trusted in (sha256, ANY_FILE):
        assert context(order(trusted=trusted), tmp_path).allowed_programs == ("make",)


def test_the_environment_names_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".mendgraph.toml").write_text('base_url = "http://127.0.0.1:1/v1"\n')
    assert isinstance(context_of(order(), str(tmp_path)), ToolError)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:2/v1")
    assert context(order(), tmp_path).base_url is None


@pytest.mark.parametrize(("limits", "given"), [({}, {"usd_per_million_input": 1}), ({"max_steps": 0}, {})])
def test_settings_that_do_not_fit_are_told(tmp_path: Path, limits: dict[str, Any], given: dict[str, Any]) -> None:
    wrong = order(given=json.dumps(given))
    task = wrong.task.model_copy(update={"limits": limits})
    found = context_of(wrong._replace(task=task), str(tmp_path))
    assert isinstance(found, ToolError)
    assert "do not fit together" in found.message


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / ".mendgraph.toml").write_text("max_steps = \n")
    found = context_of(order(), str(tmp_path))
    assert isinstance(found, ToolError)
    assert found.message.startswith(".mendgraph.toml:1")


def test_a_folder_is_trusted_by_its_file_or_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("MENDGRAPH_CONFIG", "")
    root = tmp_path / "root"
    root.mkdir()
    assert trusted_settings(str(root)) == ""
    assert trust(str(root), "ab" * 32) is None
    assert trusted_settings(str(root)) == "ab" * 32
    config = tmp_path / "config.toml"
    config.write_text(f'trusted_workspaces = ["{root}"]\n')
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(config))
    assert trusted_settings(str(root)) == ANY_FILE
