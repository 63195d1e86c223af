"""A process that is killed loses steps, as its durability says, but never what its model calls have cost."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason
from tests.runs.lost_calls_play import KILLED, TOKENS
from tests.runs.spending_play import book_of

ROOT = Path(__file__).parents[2]
DURABILITY = "exit"
"""What keeps least; the sweeps of `tests/crash` kill runs that keep each step."""
MOST_OUTPUT = 50
"""What is reserved for a reply, and charged where the process died in its call."""


def worked(folder: Path, *plays: tuple[str, str]) -> list[Outcome]:
    """The outcomes of the processes that were not killed; a play is the moves, and the request or ""."""
    workspace = folder / "workspace"
    workspace.mkdir()
    given = {"workspace": str(workspace), "max_output_tokens_per_call": MOST_OUTPUT, "max_calls_per_turn": 4}
    settings = json.dumps({**given, "durability": DURABILITY})
    outcomes = []
    for moves, request in plays:
        done = subprocess.run(
            [sys.executable, "-m", "tests.runs.lost_calls_play", settings, moves, *[request] * bool(request)],
            env={**os.environ, DATA_DIR_VARIABLE: str(folder / "data")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (KILLED if "d" in moves else 0, "")
        if "d" not in moves:
            outcomes.append(Outcome.model_validate_json(done.stdout))
    return outcomes


def counted(folder: Path, outcome: Outcome) -> tuple[int, int, int]:
    """The calls of the session and of the turn, and the session's output tokens. The book says the same."""
    entries, usage = book_of(folder / "data"), outcome.usage
    assert usage["total_calls"] == len(entries)
    assert usage["total_input_tokens"] == sum(entry["input_tokens"] for entry in entries)
    assert usage["total_output_tokens"] == sum(entry["output_tokens"] for entry in entries)
    return usage["total_calls"], usage["calls_in_current_turn"], usage["total_output_tokens"]


def test_calls_that_were_lost_before_the_first_checkpoint_are_charged(tmp_path: Path) -> None:
    [outcome] = worked(tmp_path, ("d", "Do it."), ("d", ""), ("a", ""))
    assert (outcome.kind, outcome.answer) == (OutcomeKind.FINISHED, "All is well.")
    assert counted(tmp_path, outcome) == (3, 3, 2 * MOST_OUTPUT + TOKENS[1])


def test_no_kill_gives_the_budget_of_a_turn_back(tmp_path: Path) -> None:
    plays = (("ca", "Do it."), ("cd", "Go on."), ("d", ""), ("d", ""), ("", ""))
    first, last = worked(tmp_path, *plays)
    assert (first.kind, last.kind, last.reason) == (
        OutcomeKind.FINISHED,
        OutcomeKind.BUDGET_STOP,
        StopReason.MAX_CALLS_PER_TURN,
    )
    assert counted(tmp_path, last) == (6, 4, 3 * TOKENS[1] + 3 * MOST_OUTPUT)
