"""Spec 4's actions and validators in whole runs."""

from pathlib import Path
from typing import Any

import pytest

from mendgraph import Effect, build_graph
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, use
from tests.surfaces.runs.tool_play import DONE, PROTOCOLS, play
from tests.vocabulary import Protocol


class Lookup:
    """Look a word up."""

    name = "lookup"
    effect = Effect.READ

    def execute(self, word: str) -> str:
        return f"{word}: a thing"


def write(content: str) -> Use:
    return use(("write_file", {"path": "new.txt", "content": content}))


def capitals(args: dict[str, Any]) -> dict[str, Any]:
    if not args["content"]:
        raise ValueError("content must be non-empty")
    return {**args, "content": args["content"].upper()}


def test_tool_validator_normalizes_arguments_and_its_error_goes_to_the_model(tmp_path: Path) -> None:
    run = play(tmp_path, write(""), write("x\n"), DONE, arg_validators={"write_file": capitals})
    assert run.outcome.changed_files == ("new.txt",)
    assert (tmp_path / "new.txt").read_text(encoding="utf-8") == "X\n"
    assert "content must be non-empty" in run.sent(1)


def test_file_rules_judge_the_arguments_returned_by_a_validator(tmp_path: Path) -> None:
    redirection = {"write_file": lambda args: {**args, "path": ".env"}}
    run = play(tmp_path, write("x\n"), DONE, arg_validators=redirection)
    assert run.rules == ["env_file"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("validators", "error"), [({"nope": capitals}, ValueError), ({"write_file": "no function"}, TypeError)]
)
def test_validator_for_an_unknown_tool_is_refused(validators: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"nope|arg_validators"):
        build_graph(arg_validators=validators)


def test_action_of_spec_4_can_be_used_as_a_tool(tmp_path: Path) -> None:
    run = play(tmp_path, use(("lookup", {"word": "cart"})), DONE, tools=(Lookup(),))
    assert "cart: a thing" in run.sent()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_terminal_invocation_ends_a_run_that_has_only_actions(tmp_path: Path, protocol: Protocol) -> None:
    """Any run accepts `final_answer`; it is offered to the model only if it is among the tools."""
    invocation = '{"tool": "lookup", "args": {"word": "cart"}, "terminal": true}'
    run = play(tmp_path, Say(invocation), Say("Never asked for."), only_tools=(Lookup(),), protocol=protocol)
    assert (run.outcome.kind, len(run.model.calls)) == ("FINISHED", 1)

    answer = '{"tool": "final_answer", "args": {"answer": "A thing."}, "terminal": true}'
    run = play(tmp_path, Say(answer), Say("Never asked for."), only_tools=(Lookup(),), protocol=protocol)
    assert (run.outcome.answer, len(run.model.calls)) == ("A thing.", 1)
    assert "final_answer" not in run.sent(0)


def test_response_format_without_final_answer_is_refused(tmp_path: Path) -> None:
    run = play(tmp_path, DONE, only_tools=(Lookup(),), response_format={"type": "integer"})
    assert (run.outcome.kind, len(run.model.calls)) == ("SYSTEM_ERROR", 0)
    assert "This agent has no tool final_answer, so no response_format can be asked for" in run.outcome.message
