"""Rules of the user's and `denied_paths` hold for each tool and each program of a run."""

from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

import pytest

from mendgraph import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.nodes.records import JsonMap, Protocol
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.sandboxes import needs_sandbox
from tests.workspace_files import write_files

Call = tuple[str, JsonMap]
Check = Callable[[Path], bool]

SALARIES = "Ann,100\n"
FILES = {"private/salaries.csv": SALARIES, "notes.txt": "Ann is here.\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", FILES)
    (tmp_path / "root/link.csv").symlink_to("private/salaries.csv")
    return tmp_path / "root"


def run(
    root: Path, *calls: Call, rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES, **settings: Any
) -> RunResult:
    """The result of a run that makes these calls one after the other."""
    model = ScriptedModel([*(message_of(use(call), Protocol.NATIVE) for call in calls), Say("Done.")])
    settings = {"evidence": False, "read_ahead": False, "protocol": "native", **settings}
    with Session(AgentContext(workspace=str(root), **settings), model=model, rules=rules) as session:
        session.work("Do it")
        return session.result()


def results(result: RunResult) -> list[str]:
    return [str(message.content) for message in result.messages if message.type == "tool"]


def private(check: Check) -> tuple[FileGuardrailRule, ...]:
    return (*DEFAULT_GUARDRAIL_RULES, FileGuardrailRule("private", "Salaries", check))


CHECKS: dict[str, Callable[[Path], Check]] = {
    "is_relative_to": lambda root: lambda path: path.is_relative_to(root / "private"),
    "startswith": lambda root: lambda path: str(path).startswith(f"{root}/private"),
    "resolve": lambda root: lambda path: path.resolve().is_relative_to(root / "private"),
    "relative_to": lambda root: lambda path: path.relative_to(root).parts[:1] == ("private",),
    "stat": lambda _: lambda path: path.exists() and path.stat().st_size == len(SALARIES),
    "suffix": lambda _: lambda path: path.suffix == ".csv",
    "equality": lambda root: lambda path: path == root / "private/salaries.csv",
}
CALLS: dict[str, Call] = {
    "read": ("read_file", {"path": "private/salaries.csv"}),
    "read by its absolute path": ("read_file", {"path": "{root}/private/salaries.csv"}),
    "read by a link": ("read_file", {"path": "link.csv"}),
    "edit": ("edit_file", {"path": "private/salaries.csv", "old_str": "100", "new_str": "999"}),
    "write": ("write_file", {"path": "private/salaries.csv", "content": ""}),
    "delete": ("delete_file", {"path": "private/salaries.csv"}),
    "move": ("move_file", {"path": "private/salaries.csv", "target": "open.txt"}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_rule_that_judges_an_absolute_path_blocks_each_tool_of_a_run(
    root: Path, check: Callable[[Path], Check], call: Call
) -> None:
    arguments = {name: value.replace("{root}", str(root)) for name, value in call[1].items()}
    [text] = results(run(root, (call[0], arguments), rules=private(check(root))))
    assert "Blocked by rule 'private': Salaries" in text
    assert (root / "private/salaries.csv").read_text() == SALARIES


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_searches_do_not_show_what_a_rule_blocks(root: Path, check: Callable[[Path], Check]) -> None:
    calls = (("search_files", {"pattern": "Ann"}), ("glob_files", {"pattern": "*.csv"}))
    found, named = results(run(root, *calls, rules=private(check(root))))
    assert "notes.txt" in found
    assert "100" not in found
    assert "private/salaries.csv" not in named


@needs_sandbox
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_programs_neither_see_nor_change_what_a_rule_blocks(root: Path, check: Callable[[Path], Check]) -> None:
    script = "cat private/salaries.csv; echo 1 > private/salaries.csv; rm -rf private; echo done"
    command = ("run_command", {"argv": ["sh", "-c", script]})
    [text] = results(run(root, command, rules=private(check(root)), allowed_programs=("sh",)))
    assert "done" in text
    assert "Ann" not in text
    assert (root / "private/salaries.csv").read_text() == SALARIES


@needs_sandbox
def test_run_ends_whose_program_has_made_a_file_that_a_rule_blocks(root: Path) -> None:
    rules = private(lambda path: path.suffix == ".csv")
    command = ("run_command", {"argv": ["sh", "-c", "echo 1 > new.csv; echo 1 > new.txt"]})
    result = run(root, command, rules=rules, allowed_programs=("sh",), evidence=True)
    assert result.ok
    assert {"new.csv", "new.txt"} <= {*result.changed_files}
    assert len(results(result)) == 1


@needs_sandbox
def test_programs_do_not_see_what_a_rule_blocks_in_a_readable_folder(root: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "data", {"private/a.txt": "Ann\n", "open.txt": "Bob\n"})
    rules = private(lambda path: path.is_relative_to(tmp_path / "data/private"))
    command = ("run_command", {"argv": ["sh", "-c", f"cat {tmp_path}/data/open.txt {tmp_path}/data/private/a.txt"]})
    settings: JsonMap = {"allowed_programs": ("sh",), "readable_folders": (str(tmp_path / "data"),)}
    [text] = results(run(root, command, rules=rules, **settings))
    assert "Bob" in text
    assert "Ann" not in text


def test_rule_receives_a_resolved_absolute_path(root: Path) -> None:
    paths: list[Path] = []

    def remember(path: Path) -> bool:
        paths.append(path)
        return False

    calls = (*CALLS.values(), ("list_files", {"path": "."}), ("write_file", {"path": "new/a.txt", "content": "x"}))
    run(root, *calls, rules=private(remember))
    assert {type(path) for path in paths} == {PosixPath}
    assert all(path == path.resolve() for path in paths)
    assert {root / "private/salaries.csv", root / "new/a.txt"} <= {*paths}


def test_exception_in_a_rule_denies_the_path_by_the_name_of_the_rule(root: Path) -> None:
    rules = private(lambda path: bool(path.name == "notes.txt" and 1 // 0))
    read = ("read_file", {"path": "notes.txt"}), ("read_file", {"path": "private/salaries.csv"})
    denied, shown = results(run(root, *read, rules=rules))
    assert "Blocked by rule 'private': Salaries (its check raised ZeroDivisionError)" in denied
    assert "Ann,100" in shown


# --- denied_paths


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("pattern", ["private/", "/private", "./private", "PRIVATE", "*.csv", "**/sal*s.csv", "p*/*"])
def test_denied_paths_hold_for_each_tool(root: Path, pattern: str, call: Call) -> None:
    arguments = {name: value.replace("{root}", str(root)) for name, value in call[1].items()}
    [text] = results(run(root, (call[0], arguments), denied_paths=(pattern,)))
    assert "Blocked by rule 'denied_paths'" in text
    assert (root / "private/salaries.csv").read_text() == SALARIES


@needs_sandbox
def test_denied_paths_hold_for_programs_and_other_files_may_be_used(root: Path) -> None:
    command = ("run_command", {"argv": ["sh", "-c", "cat notes.txt private/*; rm -rf private"]})
    [text] = results(run(root, command, denied_paths=("salaries.csv",), allowed_programs=("sh",)))
    assert "Ann is here" in text
    assert "100" not in text
    assert (root / "private/salaries.csv").read_text() == SALARIES


@pytest.mark.parametrize("pattern", ["!a", "#a", "~/a", "../a", "a/../b", "", ".", "/", " a", "a\\b", "a\nb", "a" * 91])
def test_pattern_that_can_deny_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"names no files below the workspace|no pattern may have"):
        AgentContext(denied_paths=(pattern,))


def test_two_hundred_long_patterns_all_hold(root: Path) -> None:
    patterns = (f"sal*{'?' * 82}.csv", "p*/s*.csv", *(f"{number:03}*{'x' * 80}" for number in range(198)))
    [text] = results(run(root, CALLS["read"], denied_paths=patterns))
    assert "Blocked by rule 'denied_paths'" in text
