import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.real_model.rivals import environments
from benchmarks.real_model.rivals.environments import RIVALS, command, prepare
from tests.architecture.product import ROOT

FOLDER = ROOT / "benchmarks" / "real_model" / "rivals"


class Uv:
    """Stands for uv: notes what it is told, and makes the folder of an environment."""

    def __init__(self, fails: str = "") -> None:
        self.told: list[list[str]] = []
        self._fails = fails

    def run(self, step: Sequence[str], **_: object) -> SimpleNamespace:
        self.told.append([str(part) for part in step])
        if self._fails in step[1:]:
            return SimpleNamespace(returncode=2, stderr="no such version\n")
        if step[1] == "venv":
            Path(step[-2]).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(returncode=0, stderr="")


def prepared(monkeypatch: pytest.MonkeyPatch, folder: Path, uv: Uv) -> str | None:
    monkeypatch.setattr(environments, "find_uv", lambda: "uv")
    monkeypatch.setattr(subprocess, "run", uv.run)
    return prepare("aider", folder)


def test_an_environment_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = Uv()
    assert [prepared(monkeypatch, tmp_path, uv) for _ in range(2)] == [None, None]
    assert [step[1] for step in uv.told] == ["venv", "pip"]
    assert uv.told[1][-3:-1] == ["-r", str(FOLDER / "aider.txt")]


def test_an_environment_of_older_requirements_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "aider").mkdir()
    (tmp_path / "aider" / ".requirements").write_text("older", "utf-8")
    uv = Uv()
    assert prepared(monkeypatch, tmp_path, uv) is None
    assert [step[1] for step in uv.told] == ["venv", "pip"]


@pytest.mark.parametrize("fails", ["venv", "pip"])
def test_an_environment_that_cannot_be_made_is_told_and_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    assert prepared(monkeypatch, tmp_path, Uv(fails)) == f"`uv {fails}` failed: no such version"
    assert not (tmp_path / "aider" / ".requirements").exists()


def test_without_uv_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "find_uv", lambda: None)
    assert prepare("aider", tmp_path) == "uv is needed to make it: `make setup` brings one"


@pytest.mark.parametrize("name", RIVALS)
def test_each_rival_has_its_adapter_and_exact_versions(name: str, tmp_path: Path) -> None:
    lines = (FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.\[\]-]+==[\w.+]+( ;.*)?", line)] == []
    program = command(name, tmp_path)
    assert program[0] == str(tmp_path / name / "bin" / "python")
    assert (FOLDER / f"{program[-1].rpartition('.')[2]}.py").is_file()
