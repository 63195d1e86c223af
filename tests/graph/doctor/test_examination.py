import os
import sys
import threading
from pathlib import Path

import pytest

from mendgraph.graph.doctor.examination import examine, made
from mendgraph.graph.doctor.findings import Finding, Status

NAMES = [
    *("packages", "model", "endpoint", "embedded model", "sandbox", "ripgrep"),
    *("git", "workspace", "data folder", "run database", "lock", "configuration", "terminal", "extras"),
]


def by_name(found: tuple[Finding, ...]) -> dict[str, Finding]:
    return {each.name: each for each in found}


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_looking_makes_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, root = tmp_path / "data", tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(data))
    found = by_name(examine(str(root), {"model": "m", "base_url": "http://127.0.0.1:9/v1"}, offline=True))
    assert list(found) == NAMES
    assert (found["endpoint"].status, found["endpoint"].found) == (Status.OFF, "not asked (--offline)")
    assert found["run database"].status is Status.OFF
    assert tree(tmp_path) == ["root"]


def test_one_check_that_breaks_or_hangs_leaves_the_others() -> None:
    hang = threading.Event()

    def hanging() -> Finding:
        hang.wait(60)
        return Finding("late", Status.OK, "")

    def leaving() -> Finding:
        raise SystemExit(3)

    fine = Finding("fine", Status.OK, "so")
    found = made({"late": hanging, "left": leaving, "fine": lambda: fine}, 0.5)
    hang.set()
    assert [each.status for each in found] == [Status.PROBLEM, Status.PROBLEM, Status.OK]
    assert found[0].found == "no answer within 0.5 s"
    assert "SystemExit" in found[1].found


def test_a_library_that_cannot_be_loaded_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mendgraph.graph.doctor.checks", None)
    monkeypatch.delattr("mendgraph.graph.doctor.checks")
    (found,) = examine(str(tmp_path), {})
    assert (found.name, found.status) == ("packages", Status.PROBLEM)


def test_secrets_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = "hunter2-hunter2-hunter2"
    monkeypatch.setenv("OPENAI_API_KEY", word)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:9/{word}/v1")
    found = examine(str(tmp_path), {"model": "m"}, offline=True)
    assert word not in repr(found)
    assert "a key from OPENAI_API_KEY" in by_name(found)["model"].found


def test_the_configuration_is_used_and_its_problems_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "config.toml"
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(own))
    own.write_text('model = "from-file"\nbase_url = "http://127.0.0.1:9/v1"\n', encoding="utf-8")
    found = by_name(examine(str(tmp_path), {}, offline=True))
    assert "from-file at http://127.0.0.1:9/v1" in found["model"].found
    assert (found["configuration"].status, os.path.basename(found["configuration"].found)) == (Status.OK, "config.toml")
    own.write_text("modle = 1\n", encoding="utf-8")
    wrong = by_name(examine(str(tmp_path), {}, offline=True))["configuration"]
    assert wrong.status is Status.PROBLEM
    assert "modle" in wrong.found


GOOD, OFF = Finding("a", Status.OK, "there"), Finding("d", Status.OFF, "not there")
WARN, BAD = Finding("b", Status.WARNING, "odd", "look"), Finding("c", Status.PROBLEM, "gone", "fetch it")
