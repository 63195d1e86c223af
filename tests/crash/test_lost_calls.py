"""A process that is killed may lose steps, depending on its durability, but never the cost of its model calls."""

from pathlib import Path
from typing import Any

from mendgraph import Outcome
from tests.crash.fork_server import ForkServer
from tests.crash.lost_calls_play import DURABILITY, TOKENS
from tests.extent import slow
from tests.surfaces.spending.spending_play import book_of

MOST_OUTPUT = 50
"""What is reserved for a reply, and charged where the process died in its call."""
LEAST_OUTPUT = 2_048
"""What a lost call of a reasoning model is charged with at least, as docs/limits.md says."""


def run_plays(
    server: ForkServer, folder: Path, *plays: tuple[str, str], durability: str = DURABILITY, **settings: Any
) -> list[Outcome]:
    """The outcomes of the processes that were not killed; a play has moves, and the request or ""."""
    workspace = folder / "workspace"
    workspace.mkdir()
    limits = settings or {"max_output_tokens_per_call": MOST_OUTPUT, "max_calls_per_turn": 4}
    context = {"workspace": str(workspace), **limits}
    outcomes = []
    for moves, request in plays:
        argument = {"data": str(folder / "data"), "context": context, "moves": moves, "request": request}
        argument["durability"] = durability
        played = server.run("work", argument)
        assert played.killed == (not {"d", "w"}.isdisjoint(moves))
        if not played.killed:
            outcomes.append(Outcome.model_validate(played.value))
    return outcomes


def counts_of(folder: Path, outcome: Outcome) -> tuple[int, int, int]:
    """The calls of the session and of the turn, and the session's output tokens. The book says the same."""
    entries, usage = book_of(folder / "data"), outcome.usage
    assert usage["total_calls"] == len(entries)
    assert usage["total_input_tokens"] == sum(entry["input_tokens"] for entry in entries)
    assert usage["total_output_tokens"] == sum(entry["output_tokens"] for entry in entries)
    return usage["total_calls"], usage["calls_in_current_turn"], usage["total_output_tokens"]


def test_calls_lost_before_the_first_checkpoint_are_charged(server: ForkServer, tmp_path: Path) -> None:
    [outcome] = run_plays(server, tmp_path, ("d", "Do it."), ("d", ""), ("a", ""))
    assert (outcome.kind, outcome.answer) == ("FINISHED", "All is well.")
    assert counts_of(tmp_path, outcome) == (3, 3, 2 * MOST_OUTPUT + TOKENS[1])


def test_kill_does_not_give_back_the_budget_of_a_turn(server: ForkServer, tmp_path: Path) -> None:
    plays = (("ca", "Do it."), ("cd", "Go on."), ("d", ""), ("d", ""), ("", ""))
    first, last = run_plays(server, tmp_path, *plays)
    assert (first.kind, last.kind, last.reason) == (
        "FINISHED",
        "BUDGET_STOP",
        "max_calls_per_turn",
    )
    assert counts_of(tmp_path, last) == (6, 4, 3 * TOKENS[1] + 3 * MOST_OUTPUT)


def test_kills_in_calls_of_a_reasoning_model_leave_budget_for_its_answer(server: ForkServer, tmp_path: Path) -> None:
    """Its reply may be as long as the whole budget, which each call reserves."""
    plays = (("cd", "Do it."), ("d", ""), ("cd", ""), ("ca", ""))
    [outcome] = run_plays(server, tmp_path, *plays, reasoning_effort="low")
    assert (outcome.kind, outcome.answer) == ("FINISHED", "All is well.")
    assert counts_of(tmp_path, outcome) == (7, 7, 3 * LEAST_OUTPUT + 4 * TOKENS[1])


@slow
def test_process_killed_while_waiting_has_its_remaining_retries_left(server: ForkServer, tmp_path: Path) -> None:
    [outcome] = run_plays(server, tmp_path, ("bw", "Do it."), ("b", ""), durability="sync")
    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "provider_failed")
    assert outcome.diagnostics == ("provider error: rate_limited (3 tries)",)
    assert (outcome.usage["total_calls"], outcome.usage["total_input_tokens"]) == (3, 0)
