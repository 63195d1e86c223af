"""Real malformed and misplaced replies of the embedded 1.5B model, each compared with the verdict of a careful reader.

`real_replies.json` holds them unchanged, recorded while four harnesses worked on the tasks of
`benchmarks/real_model/`. The verdicts were written by reading each reply, not by running the code: what may run
(`calls`, `edits` with the first line of each), what has to be asked again, why and as what (`taken_for`: a call that
cannot run, a repetition of earlier text, a claim instead of work), and what is an answer. Whether a call is wise
is not judged here: guard and the tools do that. On unchanged files, words are no answer to a request that asks for a
change or reports a fault. Where the code reads a reply in another way, `differs` says how and why.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from mendgraph.nodes.heal.corrective_prompt import DEFAULT_SELF_HEALING_CONFIG
from mendgraph.nodes.heal.node import heal
from mendgraph.nodes.parse.answers import TurnFacts
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.reading import Reader
from mendgraph.nodes.records import (
    CallError,
    EditForm,
    ExtractionError,
    ExtractionErrorType,
    JsonMap,
    ModelReply,
    Profile,
    Protocol,
    Reading,
    ToolCall,
)
from mendgraph.nodes.small_model.answers import AnswerFacts, answer_error
from mendgraph.nodes.small_model.block_form import ShownBlocks
from tests.rules.parse.readings import REGISTRY, WRITING

CASES: Final[list[dict[str, Any]]] = json.loads(Path(__file__).with_name("real_replies.json").read_text("utf-8"))
DIFFERING: Final = [case for case in CASES if "differs" in case]
LONGEST: Final = 1_500
"""Characters of a reply that is taken up; none was cut."""

BLOCK_HARNESSES: Final = frozenset({"mendgraph", "aider"})
"""Those that ask for a path and a fenced block; the others offer native tools."""

FOREIGN_TOOLS: Final = {
    "list_files": frozenset[str](),
    "read_file": frozenset({"path"}),
    "write_file": frozenset({"path", "content"}),
    "edit_file": frozenset({"path", "old_string", "new_string"}),
}
"""The arguments of the tools that the other harnesses offered: all are texts, and none may be left out."""


TAKEN_FOR: Final = {ExtractionErrorType.INVALID_ANSWER: "repetition", ExtractionErrorType.UNFOUNDED_CLAIM: "words"}
"""What a reply is asked again as; with any other error it was meant as a call."""


def foreign_arguments(tool: str, arguments: JsonMap) -> JsonMap | list[str]:
    """As the registry's `validate` for our tools."""
    wrong = sorted(FOREIGN_TOOLS[tool] ^ arguments.keys())
    wrong += [name for name, value in arguments.items() if not isinstance(value, str)]
    return [f"{name} is wrong" for name in wrong] or arguments


def reader_of(case: dict[str, Any]) -> Reader:
    """How the reply is read: in the form that its harness asked for, with what the model knew when it wrote it."""
    turn = TurnFacts(changed=tuple(case.get("changed", ())))
    facts = AnswerFacts(case["request"], settled=bool(turn.changed))
    judge = partial(answer_error, facts=facts)
    if case["harness"] in BLOCK_HARNESSES:
        return Reader(
            profile=Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS),
            known_tools=REGISTRY.names(),
            validate=REGISTRY.validate,
            check_answer=lambda _: [],
            writing_tools=WRITING,
            turn=turn,
            judge_answer=judge,
            blocks=ShownBlocks(tuple(case["shown"]), case["request"]),
        )
    return Reader(
        profile=Profile(protocol=Protocol.NATIVE, edit_form=EditForm.REPLACE),
        known_tools=frozenset(case["tools"]),
        validate=foreign_arguments,
        check_answer=lambda _: [],
        writing_tools=frozenset({"write_file", "edit_file"}),
        turn=turn,
        judge_answer=judge,
    )


def verdict_of(case: dict[str, Any]) -> dict[str, Any]:
    """The verdict of `parse` and, if nothing can run, of `heal`, in the terms of the data."""
    reader = reader_of(case)
    state = parse({"reply": ModelReply(text=case["reply"]), "step": 0}, reader)
    if state["reading"] is Reading.ANSWER:
        return {"answer": True}
    items: list[ToolCall | CallError] = state["items"]
    errors: list[ExtractionError] = state["errors"]
    if state["reading"] is Reading.MALFORMED:
        healed = heal({**state, "profile": reader.profile}, DEFAULT_SELF_HEALING_CONFIG)  # type: ignore[typeddict-item]
        items = items if healed.get("reading") is Reading.CALLS else []
    calls_read = [item for item in items if isinstance(item, ToolCall) and not item.implied]
    edits = [call.arguments for call in calls_read if call.tool == "edit_blocks"]
    calls = [[call.tool, json.loads(call.raw_arguments)] for call in calls_read if call.tool != "edit_blocks"]
    verdict: dict[str, Any] = {}
    if calls:
        verdict["calls"] = calls
    if edits:
        verdict["edits"] = [[edit["path"], edit["content"].partition("\n")[0]] for edit in edits]
    errors = [*([] if calls_read else errors), *(item.error for item in items if isinstance(item, CallError))]
    if errors:
        verdict["taken_for"] = TAKEN_FOR.get(errors[0].error_type, "call")
    return verdict


def without_reason(verdict: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in verdict.items() if key != "asks_again"}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_real_reply_gets_the_verdict_of_a_careful_reader(case: dict[str, Any]) -> None:
    expected = case["differs"]["verdict"] if "differs" in case else case["verdict"]
    assert verdict_of(case) == without_reason(expected)


@pytest.mark.parametrize("case", DIFFERING, ids=[case["name"] for case in DIFFERING])
def test_reply_with_a_documented_difference_gets_that_verdict(case: dict[str, Any]) -> None:
    assert without_reason(case["differs"]["verdict"]) != without_reason(case["verdict"])
    assert case["differs"]["why"]


def test_recorded_replies_are_many_complete_and_varied() -> None:
    assert len(CASES) >= 60
    assert len({case["shape"] for case in CASES}) >= 12
    assert len({case["reply"] for case in CASES}) == len({case["name"] for case in CASES}) == len(CASES)
    ambiguous = [
        case["name"] for case in CASES if ("asks_again" in case["verdict"]) != ("taken_for" in case["verdict"])
    ]
    assert ambiguous == []
    assert [case["name"] for case in CASES if not 0 < len(case["reply"]) <= LONGEST] == []
