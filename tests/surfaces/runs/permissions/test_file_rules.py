"""The user's file rules and `denied_paths` apply to each tool and each program of a run."""

from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

import pytest

from mendgraph import DEFAULT_GUARDRAIL_RULES, AgentContext, FileGuardrailRule
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.tool_play import DONE, PlayedRun, play, reads
from tests.workspace_files import write_files

Call = tuple[str, dict[str, Any]]
Check = Callable[[Path], bool]

SALARIES = "Ann,100\n"
FILES = {"private/salaries.csv": SALARIES, "notes.txt": "Ann is here.\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", FILES)
    (tmp_path / "root/link.csv").symlink_to("private/salaries.csv")
    return tmp_path / "root"


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
PATTERNS = ("private/", "/private", "./private", "PRIVATE", "*.csv", "**/sal*s.csv", "p*/*")
TOO_LONG = "a" * 91
NO_PATTERNS = ("!a", "#a", "~/a", "../a", "a/../b", "", ".", "/", " a", "a\\b", "a\nb", TOO_LONG)


def calls_on_salaries(root: Path) -> tuple[Call, ...]:
    """Each tool that reads or changes a file, and each way to name it."""
    return (
        ("read_file", {"path": "private/salaries.csv"}),
        ("read_file", {"path": f"{root}/private/salaries.csv"}),
        ("read_file", {"path": "link.csv"}),
        ("edit_file", {"path": "private/salaries.csv", "old_str": "100", "new_str": "999"}),
        ("write_file", {"path": "private/salaries.csv", "content": ""}),
        ("delete_file", {"path": "private/salaries.csv"}),
        ("move_file", {"path": "private/salaries.csv", "target": "open.txt"}),
    )


def results_of(run: PlayedRun) -> list[str]:
    """The result of each call, as sent to the model."""
    return [message.text for message in run.result.messages if message.type == "tool"]


@slow
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_rule_for_an_absolute_path_blocks_each_tool(root: Path, check: Callable[[Path], Check]) -> None:
    calls = calls_on_salaries(root)
    searches: tuple[Call, ...] = (("search_files", {"pattern": "Ann"}), ("glob_files", {"pattern": "*.csv"}))
    *blocked, matches, named = results_of(
        play(root, use(*calls, *searches), DONE, rules=private(check(root)), offer="all")
    )
    assert ["Blocked by rule 'private': Salaries" in text for text in blocked] == [True] * len(calls)
    assert (root / "private/salaries.csv").read_text() == SALARIES
    assert "notes.txt" in matches
    assert "100" not in matches
    assert "private/salaries.csv" not in named


@pytest.mark.parametrize("pattern", PATTERNS)
def test_denied_paths_apply_to_each_tool(root: Path, pattern: str) -> None:
    calls = calls_on_salaries(root)
    blocked = results_of(play(root, use(*calls), DONE, denied_paths=(pattern,), offer="all"))
    assert ["Blocked by rule 'denied_paths'" in text for text in blocked] == [True] * len(calls)
    assert (root / "private/salaries.csv").read_text() == SALARIES


@needs_sandbox
def test_programs_can_neither_see_nor_change_what_a_rule_blocks(root: Path, tmp_path: Path) -> None:
    """In the workspace, and in a readable folder outside it."""
    write_files(tmp_path / "data", {"private/a.txt": "Ann\n", "open.txt": "Bob\n"})
    script = (
        "cat notes.txt private/salaries.csv; echo 1 > private/salaries.csv; rm -rf private;"
        f" cat {tmp_path}/data/open.txt {tmp_path}/data/private/a.txt; echo 1 > new.private"
    )
    command = use(("run_command", {"argv": ["sh", "-c", script]}))
    settings: dict[str, Any] = {"allowed_programs": ("sh",), "readable_folders": (str(tmp_path / "data"),)}
    rules = private(lambda path: "private" in path.parts or path.suffix == ".private")
    ways: tuple[dict[str, Any], ...] = ({"rules": rules}, {"denied_paths": ("private", "*.private")})
    for more in ways:
        run = play(root, command, DONE, **settings, **more)
        [text] = results_of(run)
        assert "Ann is here" in text
        assert "100" not in text
        assert (root / "private/salaries.csv").read_text() == SALARIES
        if "rules" in more:
            assert "Bob" in text
            assert "Ann\\n" not in text
            assert "new.private" in run.result.changed_files
            (root / "new.private").unlink()


def test_rule_receives_a_resolved_absolute_path(root: Path) -> None:
    paths: list[Path] = []

    def remember(path: Path) -> bool:
        paths.append(path)
        return False

    more: tuple[Call, ...] = (("list_files", {"path": "."}), ("write_file", {"path": "new/a.txt", "content": "x"}))
    play(root, use(*calls_on_salaries(root), *more), DONE, rules=private(remember))
    assert {type(path) for path in paths} == {PosixPath}
    assert all(path == path.resolve() for path in paths)
    assert {root / "private/salaries.csv", root / "new/a.txt"} <= {*paths}


def test_exception_in_a_rule_denies_the_path_with_the_name_of_the_rule(root: Path) -> None:
    rules = private(lambda path: bool(path.name == "notes.txt" and 1 // 0))
    denied, content = results_of(play(root, reads("notes.txt", "private/salaries.csv"), DONE, rules=rules))
    assert "Blocked by rule 'private': Salaries (its check raised ZeroDivisionError)" in denied
    assert "Ann,100" in content


def test_async_rule_denies_and_the_message_says_that_it_is_never_awaited(root: Path) -> None:
    async def check(path: Path) -> bool:
        return path.name == "notes.txt"

    [text] = results_of(play(root, reads("notes.txt"), DONE, rules=private(check)))  # type: ignore[arg-type]
    assert "Blocked by rule 'private': Salaries (its check is async, and no rule is awaited)" in text


def test_pattern_that_can_never_match_is_refused() -> None:
    for pattern in NO_PATTERNS:
        with pytest.raises(ValueError, match=r"names no files below the workspace|no pattern may have"):
            AgentContext(denied_paths=(pattern,))


def test_absolute_pattern_in_the_workspace_denies_that_file(root: Path, tmp_path: Path) -> None:
    """A shell expands `--deny ~/project/private` to it; also if the workspace is named by a link."""
    (tmp_path / "linked").symlink_to(root)
    for workspace in (root, tmp_path / "linked"):
        for named in (root, workspace):
            pattern = f"{named}/private"
            [text] = results_of(play(workspace, reads("private/salaries.csv"), DONE, denied_paths=(pattern,)))
            assert "Blocked by rule 'denied_paths'" in text
    assert AgentContext(workspace=str(root), denied_paths=(f"{root}/a/*.csv",)).denied_paths == ("/a/*.csv",)
    with pytest.raises(ValueError, match="names no files below the workspace"):
        AgentContext(workspace=str(root), denied_paths=(str(root),))


def test_two_hundred_long_patterns_all_apply(root: Path) -> None:
    patterns = (f"sal*{'?' * 82}.csv", "p*/s*.csv", *(f"{number:03}*{'x' * 80}" for number in range(198)))
    [text] = results_of(play(root, reads("private/salaries.csv"), DONE, denied_paths=patterns))
    assert "Blocked by rule 'denied_paths'" in text
