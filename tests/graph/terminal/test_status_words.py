"""What the status line says: what is going on, and what is used of each limit, in as many cells as there are."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from graph.events import (
    Alerted,
    Asked,
    CallsRead,
    Compacted,
    Ended,
    Event,
    FellBack,
    HealingBegan,
    Paid,
    StepDone,
    Text,
    ToolStarted,
    Waiting,
)
from graph.terminal.status_words import Status, amount
from nodes.call_model.budget import APILimits
from nodes.call_model.limits import RunLimits
from nodes.records import Outcome, OutcomeKind, StopReason, ToolCall

PAID = Paid(1, "reply", "gpt-x", 12_300, 1_100, 0, 0.02, 1.5)
ENDED = Ended(Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done."))


def call(tool: str = "grep", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="{}")


def status(*events: Event, at_s: float = 0.0, **limits: Any) -> Status:
    begun = Status(RunLimits(**limits))
    begun.begin(0.0, {})
    for event in events:
        begun.note(event, at_s)
    return begun


def test_it_tells_each_count_against_its_limit() -> None:
    limits = {"max_cost_usd": 0.5, "max_seconds": 300.0, "max_steps": 20}
    told = status(PAID, StepDone((), ()), ToolStarted(call(pattern="def add", path="src")), **limits)
    assert told.words(200, 41.7) == (
        "step 2/20 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · $0.02/$0.50 · 41 s/300 s"
        " · running grep 'def add' in src"
    )


def test_what_has_no_limit_and_no_price_is_told_as_far_as_it_goes() -> None:
    free = status(replace(PAID, cost_usd=0.0))
    assert free.words(200, 41.0) == "step 1 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · 41 s · waiting for the model"
    unknown = status(replace(PAID, cost_usd=None), max_cost_usd=2.0)
    assert " · $?/$2.00 · " in unknown.words(200, 0)
    assert "$" not in status(replace(PAID, cost_usd=None)).words(200, 0)
    assert " · $0.0004 · " in status(replace(PAID, cost_usd=0.0004)).words(200, 0)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (99, "step 1 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · $0.02 · 41 s/300 s · running read_file src/ca…"),
        (79, "calls 1/10 · in 12.3k/100k · $0.02 · 41 s/300 s · running read_file src/calcul…"),
        (39, "41 s/300 s · running read_file src/cal…"),
        (19, "running read_file…"),
        (9, "running…"),
        (1, "…"),
    ],
)  # fmt: skip
def test_what_matters_less_goes_first_where_there_is_less_room(cells: int, words: str) -> None:
    told = status(PAID, ToolStarted(call("read_file", path="src/calculator.py")), max_seconds=300.0)
    assert told.words(cells, 41.0) == words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Text("Hello"), "the model is writing"),
        (Waiting(3.2, "Busy."), "trying again in 3 s"),
        (HealingBegan(2, ()), "asking again, attempt 2"),
        (FellBack("gpt-x", "local\x1b[2J", "Busy."), "asking local\\x1b[2J"),
        (CallsRead(()), "looking at the calls"),
        (ToolStarted(call("run_checks")), "running the checks"),
        (ToolStarted(call("final_answer", answer="x")), "looking at the answer"),
        (ToolStarted(call("run_command", argv=["make", "test"])), "running run_command make test"),
        (StepDone((), ()), "waiting for the model"),
        (Alerted("cost", "Dear.", 9.0, 3.0), "waiting for the model"),
        (Compacted(1, "cleared", 9, 3), "waiting for the model"),
    ],
)
def test_it_says_what_is_going_on(event: Event, words: str) -> None:
    assert status(event).words(200, 0).endswith(f" · 0 s · {words}")


@pytest.mark.parametrize("event", [Asked({}), ENDED])
def test_where_nothing_is_going_on_nothing_is_said_of_it(event: Event) -> None:
    assert status(event).words(200, 0).endswith(" · 0 s")


def test_a_wait_is_counted_down_until_something_happens() -> None:
    told = status(Waiting(3.2, "Busy."), at_s=1.0)
    assert told.words(200, 2.0).endswith("trying again in 2 s")
    assert told.words(200, 9.0).endswith("trying again in 0 s")
    told.note(Text("Hi"), 9.0)
    assert told.words(200, 9.0).endswith("the model is writing")


def test_the_local_model_is_being_loaded_while_the_call_waits_for_it() -> None:
    loading = [True]
    told = Status(RunLimits(), loading=lambda: loading[0])
    told.begin(0.0, {})
    assert told.words(200, 0).endswith("loading the local model")
    loading.clear()
    loading.append(False)
    assert told.words(200, 0).endswith("waiting for the model")


def test_a_reply_that_is_coming_counts_by_its_length_until_it_is_settled() -> None:
    told = status(Text("x" * 400))
    assert "out 100/50k" in told.words(200, 0)
    told.note(PAID, 0)
    assert "out 1.1k/50k" in told.words(200, 0)
    again = status(Text("x" * 400), Waiting(1.0, "It broke off."))
    assert "out 0/50k" in again.words(200, 0)


def test_a_run_that_is_to_stop_says_so_whatever_happens_next() -> None:
    told = status()
    told.stopping()
    told.note(ToolStarted(call()), 0)
    assert told.words(200, 0).endswith("stopping after the running step")


USED = {
    "total_calls": 95,
    "calls_in_current_turn": 4,
    "total_input_tokens": 60_000,
    "input_tokens_in_current_turn": 9_000,
    "total_output_tokens": 2_000,
    "output_tokens_in_current_turn": 1_500,
    "steps_in_current_turn": 3,
    "seconds_in_current_turn": 12.5,
    "cost_usd": 0.25,
}


def test_the_limit_that_is_nearer_is_told() -> None:
    told = Status(RunLimits(max_output_tokens_per_turn=5_000))
    told.begin(0.0, USED)
    assert told.words(200, 0) == (
        "step 1 · calls 95/100 · in 60k/100k · out 0/5k · $0.25 · 0 s · waiting for the model"
    )


def test_a_turn_that_is_taken_up_goes_on_counting() -> None:
    told = Status(RunLimits(api=APILimits(max_calls_per_session=200)))
    told.begin(100.0, USED, same_turn=True)
    assert told.words(200, 101.0) == (
        "step 4 · calls 4/10 · in 60k/100k · out 2k/50k · $0.25 · 13 s · waiting for the model"
    )
    told.begin(200.0, USED)
    assert told.words(200, 200.0).startswith("step 1 · calls 0/10 · in 60k/100k")


def test_the_time_in_which_a_person_is_asked_is_not_the_runs() -> None:
    told = status()
    told.pause(10.0)
    assert " · 10 s · " in told.words(200, 50.0)
    told.go_on(60.0)
    assert " · 12 s · " in told.words(200, 62.0)
    told.go_on(70.0)
    assert " · 1:20 min · " in told.words(200, 130.0)
    assert " · 2:46:40 h · " in told.words(200, 10_050.0)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"), (999, "999"), (1_000, "1k"), (1_100, "1.1k"), (12_345, "12.3k"), (99_949, "99.9k"), (99_950, "100k"),
        (100_000, "100k"), (999_499, "999k"), (999_500, "1M"), (1_234_567, "1.2M"), (2**53, "9007199255M"),
    ],
)  # fmt: skip
def test_counts_are_short(number: int, words: str) -> None:
    assert amount(number) == words


TARGETS = st.text(alphabet="ab漢é ./", max_size=60)


@given(TARGETS, st.integers(1, 200), st.integers(0, 10**7), st.floats(0, 10**6))
def test_it_is_never_wider_than_its_room(path: str, cells: int, tokens: int, now_s: float) -> None:
    paid = replace(PAID, input_tokens=tokens, output_tokens=tokens)
    told = status(paid, ToolStarted(call("read_file", path=path)), max_cost_usd=0.5)
    assert cell_len(told.words(cells, now_s)) <= cells
