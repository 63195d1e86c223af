"""The linters and the formatter of a project after edits: whole runs, with the programs in a sandbox."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mendgraph import Asked, Ended, undo_run
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.tool_play import PlayedRun, play, scripted_model, session
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import read_files, write_files

pytestmark = needs_sandbox

DONE = Say("Done.")
RUFF = {"pyproject.toml": '[tool.ruff]\nlint.select = ["F"]\n'}
MYPY = {"mypy.ini": "[mypy]\ncheck_untyped_defs = True\n"}
CALC = "import os\n\n\ndef add(a, b):\n    return a - b\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspaces have the linters of the environment of these tests."""
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)


def edit(old: str, new: str, path: str = "calc.py") -> tuple[str, JsonMap]:
    return "edit_file", {"path": path, "old_str": old, "new_str": new}


def write(path: str, text: str) -> tuple[str, JsonMap]:
    return "write_file", {"path": path, "content": text}


def run(root: Path, *replies: Use, files: dict[str, str], **more: Any) -> PlayedRun:
    write_files(root, {"calc.py": CALC, **files})
    return play(root, *replies, DONE, **{"diagnostics": True, "tool_timeout_s": 300.0, **more})


def data(played: PlayedRun) -> list[JsonMap]:
    """The data of the results of all calls."""
    assert all(result["ok"] for result in played.results)
    return [result["data"] for result in played.results]


def program(root: Path, name: str, script: str) -> None:
    """The only environment, that of the workspace, has this program."""
    del os.environ["VIRTUAL_ENV"]  # which the fixture restores
    path = root / ".venv/bin" / name
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@slow
def test_each_configured_linter_reports_what_is_new(tmp_path: Path) -> None:
    played = run(tmp_path, use(edit("a - b", "a + c")), files={**RUFF, **MYPY})
    new = ["calc.py:5: F821 Undefined name `c`", 'calc.py:5: error: Name "c" is not defined  [name-defined]']
    assert data(played)[0]["new_diagnostics"] == new
    assert list(played.outcome.verified.diagnostics) == new
    assert f"new diagnostics: {new[0]}" in played.outcome.message


def test_unconfigured_linter_does_not_run(tmp_path: Path) -> None:
    [result] = data(run(tmp_path, use(edit("a - b", "a + c")), files={}))
    assert {"new_diagnostics", "not_diagnosed"}.isdisjoint(result)


@slow
def test_only_the_last_edit_of_a_reply_is_linted(tmp_path: Path) -> None:
    played = run(tmp_path, use(edit("a - b", "a + c"), edit("import os", "c = 1")), files=RUFF)
    assert [result.get("new_diagnostics") for result in data(played)[:2]] == [None, None]
    assert played.outcome.verified.diagnostics == ()


@slow
def test_diagnostics_of_a_new_file_are_new_and_those_of_a_moved_file_are_not(tmp_path: Path) -> None:
    moved = use(("move_file", {"path": "calc.py", "target": "sums.py"}))
    played = run(tmp_path, moved, use(write("new.py", "import os\n")), files=RUFF)
    assert "new_diagnostics" not in data(played)[0]
    assert data(played)[1]["new_diagnostics"] == ["new.py:1: F401 `os` imported but unused"]


@slow
def test_moved_file_keeps_its_diagnostics_from_before_the_turn(tmp_path: Path) -> None:
    moved = use(("move_file", {"path": "calc.py", "target": "sums.py"}))
    played = run(tmp_path, use(edit("a - b", "a + c")), moved, files=RUFF)
    assert data(played)[1]["new_diagnostics"] == ["sums.py:5: F821 Undefined name `c`"]
    assert list(played.outcome.verified.diagnostics) == ["sums.py:5: F821 Undefined name `c`"]


@slow
def test_file_moved_and_changed_by_a_patch_has_only_new_diagnostics(tmp_path: Path) -> None:
    hunk = "*** Update File: calc.py\n*** Move to: sums.py\n@@\n-    return a - b\n+    return a + c\n"
    patch = use(("apply_patch", {"patch": f"*** Begin Patch\n{hunk}*** End Patch\n"}))
    played = run(tmp_path, patch, files=RUFF, edit_form="patch")
    assert data(played)[0]["new_diagnostics"] == ["sums.py:5: F821 Undefined name `c`"]


def test_linter_that_prints_too_much_is_given_up(tmp_path: Path) -> None:
    program(tmp_path, "ruff", "yes calc.py:1: old | head -c 1100000")
    played = run(tmp_path, use(edit("a - b", "a + c")), files=RUFF)
    assert data(played)[0]["not_diagnosed"] == ["ruff prints too much. It is not started again in this session."]


def test_tsc_is_not_started_for_a_config_with_only_references(tmp_path: Path) -> None:
    program(tmp_path, "tsc", "echo new.ts:1:1: error")
    solution = '{"files": [], "references": [{"path": "./tsconfig.app.json"}]}'
    played = run(tmp_path, use(write("new.ts", "x")), use(write("more.ts", "x")), files={"tsconfig.json": solution})
    [problem] = data(played)[0]["not_diagnosed"]
    assert problem.startswith("tsc checks nothing, as tsconfig.json only refers to other projects: list `tsc -b`")
    assert {"new_diagnostics", "not_diagnosed"}.isdisjoint(data(played)[1])


@slow
def test_patch_is_diagnosed_and_formatted(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: calc.py\n@@\n-    return a - b\n+    return a+c\n*** End Patch\n"
    played = run(tmp_path, use(("apply_patch", {"patch": patch})), files=RUFF, edit_form="patch", format_edits=True)
    assert data(played)[0]["new_diagnostics"] == ["calc.py:5: F821 Undefined name `c`"]
    assert data(played)[0]["files"][0]["formatted"].startswith("by ruff format")
    assert "return a + c" in (tmp_path / "calc.py").read_text()


def test_linter_runs_in_the_sandbox_without_secrets_and_its_output_is_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-proj-" + "a1B2" * 12
    monkeypatch.setenv("OPENAI_API_KEY", key)
    shell_text = "$(touch written.txt 2>/dev/null || echo read-only) $OPENAI_API_KEY"
    program(tmp_path, "ruff", f'case "$(cat calc.py)" in *"+ c"*) echo "calc.py:5:1: E1 <{shell_text}> {key}";; esac')
    played = run(tmp_path, use(edit("a - b", "a + c")), files=RUFF)

    [line] = data(played)[0]["new_diagnostics"]
    assert line.startswith("calc.py:5: E1 <read-only >")
    assert key not in played.sent()
    assert not (tmp_path / "written.txt").exists()


def test_slow_linter_is_given_up_once(tmp_path: Path) -> None:
    program(tmp_path, "ruff", "sleep 30")
    edits = (use(edit("a - b", "a + c")), use(edit("a + c", "a + b")))
    played = run(tmp_path, *edits, files=RUFF, tool_timeout_s=1.5)
    [problem] = data(played)[0]["not_diagnosed"]
    assert problem.startswith("ruff took longer than 0.")
    assert problem.endswith(" s. It is not started again in this session.")
    assert "not_diagnosed" not in data(played)[1]


@slow
def test_failing_linter_is_reported_once_and_a_missing_one_never(tmp_path: Path) -> None:
    settings = {"pyproject.toml": "[tool.ruff]\nunknown-key = 1\n[tool.pyright]\n"}
    played = run(tmp_path, use(edit("a - b", "a + c")), use(edit("a + c", "a + b")), files=settings)
    [problem] = data(played)[0]["not_diagnosed"]
    assert problem.startswith("ruff fails: ")
    assert "unknown-key" in problem
    assert "not_diagnosed" not in data(played)[1]
    assert played.codes[:2] == ["ok", "ok"]


@slow
def test_number_of_diagnostics_is_limited(tmp_path: Path) -> None:
    played = run(tmp_path, use(write("new.py", "".join(f"x{n} = y{n}\n" for n in range(30)))), files=RUFF)
    assert len(data(played)[0]["new_diagnostics"]) == 11
    assert data(played)[0]["new_diagnostics"][-1] == "... and 20 more"


@slow
def test_formatted_edit_is_one_change_that_undo_restores(tmp_path: Path) -> None:
    played = run(tmp_path, use(edit("a - b", "a+b")), files=RUFF, diagnostics=False, format_edits=True)
    assert "+    return a + b" in data(played)[0]["formatted"]
    assert "return a + b" in (tmp_path / "calc.py").read_text()
    undo_run(played.result.run_id, workspace=tmp_path)
    assert read_files(tmp_path)["calc.py"] == CALC


@slow
def test_file_that_was_not_formatted_before_is_not_formatted(tmp_path: Path) -> None:
    loose = CALC.replace("a, b", "a,b")
    played = run(tmp_path, use(edit("a - b", "a+b")), files={**RUFF, "calc.py": loose}, format_edits=True)
    assert "formatted" not in data(played)[0]
    assert (tmp_path / "calc.py").read_text() == loose.replace("a - b", "a+b")


@slow
@pytest.mark.parametrize("output", ["", "echo", "echo 'def ((('"])
def test_formatter_that_loses_or_breaks_the_text_is_ignored(tmp_path: Path, output: str) -> None:
    program(tmp_path, "black", f"cat >/dev/null; {output}")
    patch = use(("apply_patch", {"patch": "*** Begin Patch\n*** Add File: two.py\n+y = 2\n*** End Patch\n"}))
    black = {"pyproject.toml": "[tool.black]\n"}
    run(tmp_path, use(write("new.py", "x = 1\n")), patch, files=black, edit_form="patch", format_edits=True)
    assert (tmp_path / "new.py").read_text() == "x = 1\n"
    assert (tmp_path / "two.py").read_text() == "y = 2\n"


@slow
def test_slow_formatter_and_linter_leave_time_for_the_edit(tmp_path: Path) -> None:
    program(tmp_path, "black", "sleep 0.5; cat")
    (tmp_path / ".venv/bin/ruff").symlink_to("black")
    settings = {"pyproject.toml": "[tool.black]\n[tool.ruff]\n", **{f"m{n}.py": "x = 1\n" for n in range(6)}}
    hunks = "".join(f"*** Update File: m{n}.py\n@@\n-x = 1\n+x = 2\n" for n in range(6))
    patch = use(("apply_patch", {"patch": f"*** Begin Patch\n{hunks}*** End Patch\n"}))
    played = run(tmp_path, patch, files=settings, edit_form="patch", format_edits=True, tool_timeout_s=4.0)
    assert played.codes[0] == "ok"
    assert len(played.outcome.changed_files) == 6


@slow
def test_person_approves_the_formatted_text(tmp_path: Path) -> None:
    write_files(tmp_path, {"calc.py": CALC, **RUFF})
    model = scripted_model(Protocol.NATIVE, use(edit("a - b", "a+b")), DONE)
    with session(tmp_path, model, mode="ask", format_edits=True) as opened:
        *_, question = opened.stream("Do it.")
        assert isinstance(question, Asked)
        assert "+    return a + b" in question.request["calls"][0]["preview"]["text"]
        *_, end = opened.answer("approve")

    assert isinstance(end, Ended)
    assert "return a + b" in (tmp_path / "calc.py").read_text()
