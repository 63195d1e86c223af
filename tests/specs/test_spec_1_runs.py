"""Document 1's success criteria (section 9) on whole runs of the machine."""

import tomllib
from pathlib import Path

import pytest

from mendgraph.graph.runs.events import Denied, HealingBegan
from mendgraph.nodes.records import JsonMap, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.runs.playing import changed_files
from tests.runs.scenario import Use, use
from tests.specs.test_spec_1_extraction import ONE_LINE_EACH
from tests.specs.test_spec_1_names import MODULES
from tests.specs.watched_runs import FILES, watch

DONE = Say("Done.")
EDIT = use(("edit_file", {"path": "calc.py", "old_str": "x = 1", "new_str": "x = 2"}))
CHANGED = {"calc.py": "x = 2\n"}
BROKEN = use(("edit_file", '{"path": }'))
BOTH = pytest.mark.parametrize("protocol", list(Protocol))


def changed(folder: Path) -> dict[str, str]:
    return changed_files(folder, FILES)


@BOTH
@pytest.mark.parametrize("failures", [1, 3])
def test_the_agent_heals_up_to_three_times_in_a_row(tmp_path: Path, protocol: Protocol, failures: int) -> None:
    events, result, model = watch(tmp_path, protocol, *[BROKEN] * failures, EDIT, DONE)
    assert len([event for event in events if isinstance(event, HealingBegan)]) == failures
    assert (result.outcome.kind, changed(tmp_path)) == (OutcomeKind.FINISHED, CHANGED)
    assert "INVALID_JSON_SYNTAX: JSON parse error: " in str(model.calls[failures].prompt.messages[-1]["content"])


@BOTH
def test_the_fourth_failure_ends_the_run_with_the_errors(tmp_path: Path, protocol: Protocol) -> None:
    _, result, model = watch(tmp_path, protocol, *[BROKEN] * 4, EDIT)
    outcome = result.outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.HEALING_EXHAUSTED)
    assert "INVALID_JSON_SYNTAX: JSON parse error: " in outcome.diagnostics[0]
    assert (len(model.calls), changed(tmp_path)) == (4, {})


@pytest.mark.parametrize(("line", "kind"), ONE_LINE_EACH[1:])
def test_each_failure_is_told_to_the_model_in_words_that_it_can_act_on(tmp_path: Path, line: str, kind: str) -> None:
    events, result, model = watch(tmp_path, Protocol.TEXT, Say(line), EDIT, DONE)
    [healing] = [event for event in events if isinstance(event, HealingBegan)]
    [error] = healing.errors
    assert (error.error_type.name, error.line_content) == (kind, line)
    told = str(model.calls[1].prompt.messages[-1]["content"])
    assert f"- {kind}: {error.details}" in told
    assert 'tool: TOOL_NAME({"param": "value"})' in told
    assert (result.outcome.kind, changed(tmp_path)) == (OutcomeKind.FINISHED, CHANGED)


def test_a_call_in_a_code_fence_runs(tmp_path: Path) -> None:
    call = 'tool: edit_file({"path": "calc.py", "old_str": "x = 1", "new_str": "x = 2"})'
    _, result, _ = watch(tmp_path, Protocol.TEXT, Say(f"I change it:\n```\n{call}\n```\nThen it is done."), DONE)
    assert (result.outcome.answer, changed(tmp_path)) == ("Done.", CHANGED)


@BOTH
@pytest.mark.parametrize(
    ("path", "rule"),
    [
        *((".env", "env_file"), ("server.pem", "private_key"), ("server.key", "private_key")),
        *(("credentials.json", "sensitive_config"), (".git/config", "git_internal"), ("id_rsa", "sensitive_config")),
    ],
)
def test_sensitive_files_cannot_be_edited(tmp_path: Path, protocol: Protocol, path: str, rule: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("x = 1\n", encoding="utf-8")
    edit = use(("edit_file", {"path": path, "old_str": "x = 1", "new_str": "x = 2"}))
    events, _, model = watch(tmp_path, protocol, edit, DONE)
    [denied] = [event for event in events if isinstance(event, Denied)]
    assert (denied.verdict.rule, file.read_text(encoding="utf-8")) == (rule, "x = 1\n")
    assert rule in str(model.calls[1].prompt.messages[-1]["content"])


@pytest.mark.parametrize("path", ["config.yaml", "settings.py", "pyproject.toml"])
def test_project_configuration_is_edited_where_nobody_is_asked(tmp_path: Path, path: str) -> None:
    (tmp_path / path).write_text("x: 1\n", encoding="utf-8")
    edit = use(("edit_file", {"path": path, "old_str": "x: 1", "new_str": "x: 2"}))
    events, _, _ = watch(tmp_path, Protocol.NATIVE, edit, DONE)
    assert [event for event in events if isinstance(event, Denied)] == []
    assert (tmp_path / path).read_text(encoding="utf-8") == "x: 2\n"


@BOTH
@pytest.mark.parametrize("path", ["/etc/passwd", "/usr/lib/os-release", "../../../../../../../../../../etc/passwd"])
def test_system_files_cannot_be_edited(tmp_path: Path, protocol: Protocol, path: str) -> None:
    edit = use(("edit_file", {"path": path, "old_str": "root", "new_str": "x"}))
    events, _, _ = watch(tmp_path, protocol, edit, DONE)
    assert len([event for event in events if isinstance(event, Denied)]) == 1


def looking(number: int) -> Use:
    """Each look is another action, so that no loop ends the run."""
    return use(("read_file", {"path": "long.txt", "start_line": number, "limit": 1}), usage=(50, 10))


@BOTH
@pytest.mark.parametrize(
    ("limits", "calls", "reason", "words"),
    [
        ({}, 10, StopReason.MAX_CALLS_PER_TURN, "max_calls_per_turn"),
        ({"max_calls_per_turn": 4}, 4, StopReason.MAX_CALLS_PER_TURN, "max_calls_per_turn"),
        ({"max_calls_per_session": 3}, 3, StopReason.MAX_CALLS_PER_SESSION, "max_calls_per_session"),
    ],
)
def test_calls_are_limited_and_the_user_is_told(
    tmp_path: Path, protocol: Protocol, limits: JsonMap, calls: int, reason: StopReason, words: str
) -> None:
    replies = [looking(number) for number in range(1, 20)]
    _, result, model = watch(tmp_path, protocol, *replies, settings=limits)
    outcome = result.outcome
    assert (outcome.kind, outcome.reason, len(model.calls)) == (OutcomeKind.BUDGET_STOP, reason, calls)
    assert words in outcome.message
    assert (outcome.usage["total_calls"], outcome.usage["total_output_tokens"]) == (calls, 10 * calls)


@BOTH
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_input_tokens_per_session": 5_000}, StopReason.MAX_INPUT_TOKENS),
        ({"max_output_tokens_per_session": 40}, StopReason.MAX_OUTPUT_TOKENS),
    ],
)
def test_tokens_are_limited(tmp_path: Path, protocol: Protocol, limits: JsonMap, reason: StopReason) -> None:
    replies = [use(*looking(number).calls, usage=(2_000, 15)) for number in range(1, 20)]
    _, result, _ = watch(tmp_path, protocol, *replies, settings=limits)
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeKind.BUDGET_STOP, reason)
    assert result.outcome.usage["total_input_tokens"] <= limits.get("max_input_tokens_per_session", 100_000)
    assert result.outcome.usage["total_output_tokens"] <= limits.get("max_output_tokens_per_session", 50_000)


def test_more_than_ninety_per_cent_of_the_pure_functions_are_covered() -> None:
    """The gate of the coverage report, and that it leaves none of their modules out."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    report = settings["tool"]["coverage"]["report"]
    assert report["fail_under"] > 90
    left_out = set(report["omit"])
    assert [module for module in MODULES if f"{module.replace('.', '/')}.py" in left_out] == []
