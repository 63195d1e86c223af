"""A run that a limit ends gives the model's own account of itself, for which a call was held back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.nodes.call_model.ledger import WRAP_UP_OUTPUT_TOKENS
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import (
    FinishReason,
    JsonMap,
    ModelReply,
    OutcomeKind,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopReason,
)
from tests.doubles.call_model import CallModel
from tests.runs.playing import set_clock

TASK = "Read the notes line by line."
ACCOUNT = "I read some lines.\nThe others are left."
SAID = "The model's account: I read some lines. The others are left."
USAGE = (2_000, 300)
TOLD = ModelReply(text=ACCOUNT, input_tokens=200, output_tokens=20)


class Reader(CallModel):
    """Reads line after line; asked for an account, without tools, it says `account`. Each reply costs `USAGE`."""

    def __init__(self, account: ModelReply | ProviderFailure = TOLD) -> None:
        self.account = account
        self.calls: list[Call] = []

    @property
    def asked(self) -> list[Call]:
        """The calls that asked for an account."""
        return [call for call in self.calls if "whose run ends now" in call.prompt.messages[0]["content"]]

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        self.calls.append(call)
        if self.asked and self.asked[-1] is call:
            return self.account
        on_text("I read on.")
        arguments = json.dumps({"path": "notes.txt", "start_line": len(self.calls), "limit": 1})
        tokens: JsonMap = {"input_tokens": USAGE[0], "output_tokens": USAGE[1]}
        if call.prompt.tools:
            native = RawCall(call_id=f"c{len(self.calls)}", tool="read_file", arguments=arguments)
            return ModelReply(calls=(native,), finish_reason=FinishReason.TOOL_CALLS, **tokens)
        return ModelReply(text=f"I read on.\ntool: read_file({arguments})", **tokens)


def ended(folder: Path, reader: Reader, **limits: Any) -> tuple[Any, str, str]:
    """The outcome, the last message, and what was shown while the model spoke."""
    (folder / "notes.txt").write_text("line\n" * 60, encoding="utf-8")
    context = AgentContext(workspace=str(folder), read_ahead=False, **{"max_calls_per_turn": 30, **limits})
    values: Any = {}
    shown = ""
    request: Any = {"messages": [("user", TASK)]}
    streamed: Any = build_graph(model=reader).stream(request, context=context, stream_mode=["custom", "values"])
    for mode, part in streamed:
        if mode == "values":
            values = part
        elif part["type"] == "text":
            shown += part["text"]
    return values["outcome"], values["messages"][-1].text, shown


PRICE: JsonMap = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0}
LIMITS: list[tuple[JsonMap, StopReason, int]] = [
    ({"max_calls_per_turn": 5}, StopReason.MAX_CALLS_PER_TURN, 4),
    ({"max_calls_per_session": 3}, StopReason.MAX_CALLS_PER_SESSION, 2),
    ({"max_steps": 2}, StopReason.MAX_STEPS, 2),
    ({"max_input_tokens_per_session": 20_000}, StopReason.MAX_INPUT_TOKENS, 8),
    ({"max_input_tokens_per_turn": 20_000}, StopReason.MAX_INPUT_TOKENS, 8),
    ({"max_output_tokens_per_session": 4_000}, StopReason.MAX_OUTPUT_TOKENS, 12),
    ({"max_output_tokens_per_turn": 4_000}, StopReason.MAX_OUTPUT_TOKENS, 12),
    ({"max_cost_usd": 0.03, **PRICE}, StopReason.MAX_COST, 12),
]
NAMES = ["turn calls", "session calls", "steps", "input", "turn input", "output", "turn output", "cost"]


@pytest.mark.parametrize("protocol", ["native", "text"])
@pytest.mark.parametrize(("limits", "reason", "calls"), LIMITS, ids=NAMES)
def test_a_run_that_a_limit_ends_tells_what_was_done(
    limits: JsonMap, reason: StopReason, calls: int, protocol: str, tmp_path: Path
) -> None:
    model = Reader()
    outcome, last, shown = ended(tmp_path, model, protocol=protocol, **limits)
    assert (outcome.kind, outcome.reason, outcome.account) == (OutcomeKind.BUDGET_STOP, reason, ACCOUNT)
    assert SAID in last.splitlines()
    assert (len(model.calls), len(model.asked), model.calls[-1]) == (calls + 1, 1, model.asked[0])
    assert outcome.usage["total_calls"] == calls + 1
    assert (outcome.usage["total_input_tokens"], outcome.usage["total_output_tokens"]) == (
        calls * USAGE[0] + 200,
        calls * USAGE[1] + 20,
    )
    asked = model.asked[0]
    assert (asked.prompt.tools, asked.max_output_tokens) == ((), WRAP_UP_OUTPUT_TOKENS)
    assert all(text in asked.prompt.messages[1]["content"] for text in (TASK, "read_file", f"Limit: {outcome.message}"))
    assert (shown.count("I read on."), "others are left" in shown) == (calls, False)  # the account is no answer
    for name, used in (
        ("max_calls_per_turn", outcome.usage["total_calls"]),
        ("max_input_tokens_per_session", outcome.usage["total_input_tokens"]),
        ("max_output_tokens_per_session", outcome.usage["total_output_tokens"]),
        ("max_cost_usd", outcome.usage["cost_usd"]),
    ):
        assert name not in limits or used <= limits[name]


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        ({"max_calls_per_turn": 5, "wrap_up": False}, 5),
        ({"max_steps": 2, "wrap_up": False}, 2),
        ({"max_calls_per_turn": 5, "model": "qwen2.5-coder-1.5b-instruct"}, 5),
        ({"max_calls_per_turn": 2}, 2),
        ({"max_calls_per_session": 1}, 1),
        ({"max_steps": 2, "max_calls_per_turn": 2}, 2),
        ({"max_output_tokens_per_session": 3_999}, 14),
    ],
    ids=["off", "off with steps", "small model", "two calls", "one call", "steps and calls", "few tokens"],
)
def test_where_nothing_is_held_back_no_call_is_made_for_it(limits: JsonMap, calls: int, tmp_path: Path) -> None:
    model = Reader()
    outcome, last, _ = ended(tmp_path, model, protocol="native", edit_form="replace", **limits)
    assert (outcome.kind, outcome.account, model.asked) == (OutcomeKind.BUDGET_STOP, "", [])
    assert (len(model.calls), outcome.usage["total_calls"]) == (calls, calls)
    assert "account" not in last
    assert "Changed files: none." in last.splitlines()


def test_what_is_left_is_used_although_nothing_was_held_back(tmp_path: Path) -> None:
    model = Reader()
    outcome, _, _ = ended(tmp_path, model, max_input_tokens_per_session=19_999)
    assert (outcome.reason, outcome.account, len(model.calls)) == (StopReason.MAX_INPUT_TOKENS, ACCOUNT, 10)
    assert outcome.usage["total_input_tokens"] == 18_200


NO_ACCOUNT: list[ModelReply | ProviderFailure] = [
    *(ProviderFailure(kind=kind, message="It failed.", retry_after_s=0.0) for kind in ProviderErrorKind),
    ModelReply(),
    ModelReply(text='tool: read_file({"path":"notes.txt"})'),
    ModelReply(calls=(RawCall(call_id="c", tool="read_file", arguments="{}"),)),
]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"max_calls_per_turn": 4}, StopReason.MAX_CALLS_PER_TURN), ({"max_steps": 3}, StopReason.MAX_STEPS)],
    ids=["calls", "steps"],
)
@pytest.mark.parametrize("account", NO_ACCOUNT)
def test_an_account_that_fails_changes_nothing_and_is_not_tried_again(
    account: ModelReply | ProviderFailure, limit: JsonMap, reason: StopReason, tmp_path: Path
) -> None:
    """Not even where there would be calls left for it."""
    model = Reader(account)
    outcome, last, _ = ended(tmp_path, model, **limit)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.BUDGET_STOP, reason)
    assert (outcome.account, len(model.calls), len(model.asked)) == ("", 4, 1)
    assert last.splitlines()[0] == f"BUDGET_STOP ({reason.value}): {outcome.message}"
    assert last.splitlines()[-1] == f"How to go on: {outcome.how_to_go_on}"


def test_time_that_is_over_and_a_day_or_account_that_is_full_leave_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "workspace"
    folder.mkdir()
    model = Reader()
    outcome, _, _ = ended(folder, model, max_tokens_per_day=12_000)
    assert (outcome.kind, outcome.reason, outcome.account) == (OutcomeKind.BUDGET_STOP, StopReason.DAY_LIMIT, "")
    assert (len(model.calls), model.asked) == (4, [])
    model = Reader()
    outcome, _, _ = ended(folder, model, account="a", max_tokens_per_account=12_000)
    assert (outcome.kind, outcome.reason, outcome.account) == (OutcomeKind.BUDGET_STOP, StopReason.ACCOUNT_LIMIT, "")
    assert (len(model.calls), model.asked) == (4, [])
    slow = Reader()
    set_clock(monkeypatch, seconds_per_call=5.0)
    outcome, _, _ = ended(folder, slow, max_seconds=12.0)
    assert (outcome.kind, outcome.reason, outcome.account) == (OutcomeKind.BUDGET_STOP, StopReason.WALL_CLOCK, "")
    assert (len(slow.calls), slow.asked) == (3, [])


def test_before_anything_was_done_there_is_nothing_to_tell(tmp_path: Path) -> None:
    model = Reader()
    outcome, _, _ = ended(tmp_path, model, max_input_tokens_per_session=100)
    assert (outcome.reason, outcome.account, model.calls) == (StopReason.MAX_INPUT_TOKENS, "", [])
