"""The completion of a shell, as a person gets it at a terminal: Tab is pressed in a real bash."""

import shutil
from pathlib import Path

import pytest

from tests.graph.runs.run_plays import played, project
from tests.runs.tmux import COMMAND, Tmux, needs_tmux

BASH = shutil.which("bash")

pytestmark = [needs_tmux, pytest.mark.skipif(BASH is None, reason="bash is not installed: install it")]


def test_tab_completes_in_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    folder = project(tmp_path / "project")
    played(folder)
    before = _files(tmp_path / "data")
    path = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin", "PS1": "$ ", "MENDGRAPH_DATA_DIR": str(tmp_path / "data")}
    with Tmux(folder, "--norc", "--noprofile", "-i", environment=path, program=Path(str(BASH))) as tmux:
        tmux.wait("$")
        tmux.type('bind "set bell-style none"; eval "$(mendgraph --show-completion)"; echo re""ady', "Enter")
        tmux.wait("\nready")
        tmux.type("mendgraph --mode re", "Tab")
        tmux.wait("mendgraph --mode read-only")
        tmux.press("C-u")
        tmux.type("mendgraph --root pk", "Tab")
        shown = tmux.wait("mendgraph --root pkg/")
        tmux.press("C-u")
        tmux.type("exit", "Enter")
        tmux.exit_code()
    assert "Traceback" not in shown
    assert _files(tmp_path / "data") == before


def _files(folder: Path) -> dict[str, int]:
    """Every file with the time of its last change."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}
