"""`mendgraph config`, and how files reach a run at the command line."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph import cli
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from mendgraph.graph.terminal.turns import Setup
from mendgraph.nodes.execute_tools.store.user_files import SETTINGS_FILE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "user.toml"))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "user.toml").touch()
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line; a run that would begin says its context, as JSON."""

    def started(setup: Setup, *_: Any) -> int:
        sys.stdout.write(setup.context.model_dump_json())
        return 0

    monkeypatch.setattr("mendgraph.graph.terminal.turns.run_once", started)
    monkeypatch.setattr("mendgraph.graph.terminal.chat.chat", started)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def context_of(shown: str) -> AgentContext:
    return AgentContext.model_validate_json(shown)


@pytest.mark.parametrize("words", [["Mend it."], ["chat"]])
def test_options_win_over_files_and_files_over_defaults(words: list[str], root: Path, run: Run) -> None:
    (root.parent / "user.toml").write_text('max_steps = 9\nmodel = "m"\nproject_notes = false\n')
    (root / SETTINGS_FILE).write_text('max_steps = 5\nmode = "ask"\n')
    code, out, err = run("--mode", "read-only", *words)
    wanted = AgentContext(workspace=".", mode="read-only", max_steps=5, model="m", project_notes=False)
    assert (code, context_of(out), err) == (0, wanted, "")
    _, out, _ = run("--no-workspace-config", "--project-notes", *words)
    assert context_of(out) == AgentContext(workspace=".", max_steps=9, model="m")


def test_more_calls_in_a_turn_do_not_raise_a_files_limit_of_the_session(root: Path, run: Run) -> None:
    (root.parent / "user.toml").write_text("max_calls_per_session = 40\n")
    for calls, session in (("20", 40), ("50", 50)):
        _, out, _ = run("--max-calls", calls, "Mend it.")
        assert context_of(out).max_calls_per_session == session


@pytest.mark.parametrize("words", [["Mend it."], ["chat"], ["config"], ["config", "show"], ["config", "check"]])
def test_where_a_file_is_wrong_nothing_is_run_and_all_of_it_is_told(words: list[str], root: Path, run: Run) -> None:
    (root / SETTINGS_FILE).write_text('modle = "m"\nmax_steps = 0\n')
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "mendgraph: .mendgraph.toml:1: there is no setting modle: did you mean mode or model?"
    assert second.startswith("mendgraph: .mendgraph.toml:2: max_steps should be greater than or equal to 1. It means:")


def test_programs_are_told_in_an_object(root: Path, run: Run) -> None:
    (root / SETTINGS_FILE).write_text('modle = "m"\n')
    code, out, _ = run("Mend it.", "--json")
    message = "there is no setting modle: did you mean mode or model?"
    problem = {"file": SETTINGS_FILE, "line": 1, "column": 0, "field": "modle", "message": message}
    assert (code, json.loads(out)["error"]) == (
        2,
        {"code": "usage_error", "message": f"{SETTINGS_FILE}:1: {message}", "problems": [problem]},
    )
    code, out, _ = run("Mend it.", "--json-lines")
    assert (code, json.loads(out)["event"]) == (2, "error")


def test_a_cloned_repository_asks_for_nothing_without_trust(root: Path, run: Run) -> None:
    (root / SETTINGS_FILE).write_text('base_url = "https://evil.example/v1"\nallowed_programs = ["sh"]\n')
    code, out, err = run("Mend it.")
    assert (code, out, len(err.splitlines())) == (2, "", 2)
    assert run("--no-workspace-config", "Mend it.")[0] == 0
    code, out, _ = run("config", "trust")
    assert (code, out.splitlines()) == (
        0,
        [
            "trusted .mendgraph.toml as it is now; it sets",
            'base_url = "https://evil.example/v1"',
            'allowed_programs = ["sh"]',
        ],
    )
    _, out, _ = run("Mend it.")
    assert context_of(out).allowed_programs == ("sh",)
    assert run("config", "trust", "--forget")[:2] == (0, ".mendgraph.toml of this folder is not trusted any more\n")
    assert run("Mend it.")[0] == 2


def test_what_is_wrong_or_not_there_is_not_trusted(root: Path, run: Run) -> None:
    code, _, err = run("config", "trust")
    assert (code, err) == (2, "mendgraph: There is no .mendgraph.toml in this folder to trust.\n")
    (root / SETTINGS_FILE).write_text("x")
    assert run("config", "trust")[0] == 2
    assert run("config", "trust", "--forget")[0] == 0


def test_every_setting_is_shown_with_where_it_comes_from(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    (root.parent / "user.toml").write_text('model = "m"\nbase_url = "http://other/v1"\n')
    (root / SETTINGS_FILE).write_text("\nmax_steps = 5\n")
    told = json.loads(run("--role", "reader", "config", "show", "--json")[1])
    user = str(root.parent / "user.toml")
    assert told["files"] == [user, SETTINGS_FILE]
    assert told["settings"].keys() == AgentContext.model_fields.keys()
    named = {name: told["settings"][name] for name in ("model", "base_url", "max_steps", "role", "mode")}
    assert named == {
        "model": {"value": "m", "origin": user, "line": 1},
        "base_url": {"value": "http://127.0.0.1:1/v1", "origin": "OPENAI_BASE_URL", "line": 0},
        "max_steps": {"value": 5, "origin": SETTINGS_FILE, "line": 2},
        "role": {"value": "reader", "origin": "command line", "line": 0},
        "mode": {"value": "auto", "origin": "default", "line": 0},
    }
    shown = run("config")[1]
    assert run("config", "show")[1] == shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines()}
    assert rows["max_steps"] == ["max_steps", "5", f"{SETTINGS_FILE}:2"]
    assert rows["seed"] == ["seed", "-", "default"]


def test_files_are_checked_and_nothing_else(root: Path, run: Run, tmp_path: Path) -> None:
    assert run("config", "check")[:2] == (0, f"{root.parent}/user.toml is fine: 0 settings\n")
    (root / SETTINGS_FILE).write_text('model = "m"\n')
    assert run("config", "check")[1].splitlines()[1] == ".mendgraph.toml is fine: 1 setting (model)"
    (tmp_path / "other.toml").write_text('max_steps = 1\nmode = "ask"\n')
    code, out, _ = run("config", "check", str(tmp_path / "other.toml"))
    assert (code, out) == (0, f"{tmp_path}/other.toml is fine: 2 settings (max_steps, mode)\n")
    told = json.loads(run("config", "check", "--json", str(tmp_path / "other.toml"))[1])
    assert told == {"files": [{"file": f"{tmp_path}/other.toml", "settings": ["max_steps", "mode"]}]}
    assert run("config", "check", str(tmp_path / "none.toml"))[0] == 2
    os.mkfifo(tmp_path / "pipe.toml")
    assert run("config", "check", str(tmp_path / "pipe.toml"))[0] == 2


def test_what_a_file_says_cannot_steer_the_screen(root: Path, run: Run) -> None:
    (root / SETTINGS_FILE).write_bytes(b'"a\\u001b]0;x\\u0007\\u202e" = 1\nmodel = "x\\u001b[31m\\ny"\n')
    _, out, err = run("config", "check")
    assert out == ""
    assert "\x1b" not in err
    assert "\u202e" not in err
    (root / SETTINGS_FILE).write_bytes(b'model = "x\\u001b[31m\\ny"\n')
    assert "\x1b" not in run("config", "trust")[1]
    assert "\x1b" not in run("config", "show")[1]
