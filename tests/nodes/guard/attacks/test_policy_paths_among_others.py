"""Calls that hide the path that matters: behind a kept result, inside another argument, under a rule of the user's."""

from dataclasses import replace
from typing import Any

import pytest

from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule, is_env_file
from mendgraph.nodes.guard.policy import GuardConfig, judge_call, judge_path, judge_reply
from mendgraph.nodes.records import Effect, ToolCall, ToolSpec, Verdict, VerdictKind


def spec(name: str, effect: Effect, *path_fields: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={}, effect=effect, path_fields=path_fields)


READ, RUN = spec("read_file", Effect.READ, "path"), spec("run_command", Effect.EXECUTE, "cwd")
AUTO = GuardConfig(mode="auto", root="/home/dev/project", leads_to=lambda path, _: path)


def call(tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="")


def judge(tool: ToolSpec, config: GuardConfig = AUTO, **arguments: Any) -> Verdict:
    return judge_call(call(tool.name, **arguments), tool, config, [], "beef")


def allowed(path: str) -> Verdict:
    return Verdict(kind=VerdictKind.ALLOW, path=path)


def test_the_paths_inside_are_those_of_the_call() -> None:
    patch = spec("apply_patch", Effect.WRITE)
    config = replace(AUTO, paths_of=lambda item: [item.arguments["patch"]])
    assert judge(patch, config, patch="a.py") == allowed("a.py")
    assert judge(patch, config, patch=".env").rule == "env_file"


@pytest.mark.parametrize("folder", ["src", "pyproject.toml"])
def test_a_person_is_asked_before_a_command_runs_with_the_folder_that_it_runs_in(folder: str) -> None:
    expected = Verdict(kind=VerdictKind.ASK, rule="ask_before_run", path=folder)
    assert judge(RUN, replace(AUTO, mode="ask"), cwd=folder) == expected


def test_a_path_after_a_kept_result_is_judged_like_any() -> None:
    assert judge(READ, path=["@result/3", ".env"]).rule == "env_file"
    assert judge(READ, path=["@result/3", "a.py"]) == allowed("a.py")


@pytest.mark.parametrize("before", [(), DEFAULT_GUARDRAIL_RULES])
def test_a_template_passes_the_env_check_in_any_rule_when_it_is_only_read(
    before: tuple[FileGuardrailRule, ...],
) -> None:
    rules = (*before, FileGuardrailRule("mine", "Mine", is_env_file))
    assert judge_path(".env.example", for_write=False, rules=rules) is None
    error = judge_path(".env.example", for_write=True, rules=rules)
    assert error is not None
    assert "Blocked by rule 'mine': Mine" in error.message


def test_a_signature_is_of_the_call_and_what_its_tool_is() -> None:
    seen: list[tuple[ToolCall, ToolSpec]] = []

    def signature_of(item: ToolCall, tool: ToolSpec) -> str:
        seen.append((item, tool))
        return "beef"

    item = call("read_file", path="a.py")
    assert judge_reply([item], AUTO, {"read_file": READ}, [], signature_of) == [allowed("a.py")]
    assert seen == [(item, READ)]
