"""Whatever is done to a workspace's journal and runs, a file of its own and the shared store answer the same."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.persistence.store import RunRecord, Store
from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileEffect, FileState, RecordedChange
from mendgraph.nodes.execute_tools.journal.journal import CallKey, Journal, RecordedCall
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason

EXAMPLES = count()
START = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = [
    "",
    "a",
    "A",
    "_",
    "é",
    "\0",
    "x\0y",
    "\ue000",
    "\ue0000",
    "\ue000e",
    "%s ?",
    "\\x00",
    "'; --",
    "😀",
    "b" * 3_000,
]
THREADS = ["t", "w:t", "é\0\ue000", "T"]
NAMES = (
    "begin begin begin note end intend intend settle revert find step cut_off forget open changes backup turn turn"
    " end_turn take_up undone fork delete runs"
)
PATHS = ["a", "é/b", "\udcff"]
EFFECTS = ["read", "write", "execute", "undo"]


class Move(NamedTuple):
    """One thing that is done in one of two workspaces; `pick` chooses whatever else there is to choose."""

    name: str
    workspace: int
    thread: str
    step: int
    text: str
    pick: int


MOVES = st.lists(
    st.builds(
        Move,
        st.sampled_from(NAMES.split()),
        st.integers(0, 1),
        st.sampled_from(THREADS),
        st.integers(0, 2),
        st.sampled_from(TEXTS),
        st.integers(0, 999),
    ),
    min_size=8,
    max_size=40,
)


class Workspace:
    """One of two in a store. The numbers of calls are the store's affair: what is told has none."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root, self.moments = str(root), count()
        self.store = Store(self.root, now=lambda: START + timedelta(milliseconds=next(self.moments) // 2))
        self.journal = Journal(self.store.folder)
        self.calls: list[int] = []
        self.tokens: list[str] = []

    def begin(self, move: Move) -> None:
        """A call begins."""
        self.calls.append(self.journal.begin(key(move)))

    def intend(self, move: Move) -> None:
        """A change of one file, with or without what it held, on behalf of one of the calls."""
        if self.calls:
            self.tokens.append(f"k{len(self.tokens)}")
            before = FileState(f"s{move.step}", (None, 0o644)[move.pick % 2])
            effect = FileEffect(PATHS[move.step], before, FileState(("", "s1")[move.pick % 2], 0o600))
            call, backups = self.calls[move.pick % len(self.calls)], {f"s{move.step}": move.text.encode()}
            self.journal.intend(call, self.tokens[-1], [effect], backups, [PATHS[move.step]])

    def end_turn(self, move: Move) -> None:
        """The thread's turn ends in one way or another."""
        kind = (OutcomeKind.FINISHED, OutcomeKind.BUDGET_STOP)[move.pick % 2]
        told = {"message": move.text, "answer": move.text, "changed_files": (move.text,)}
        self.store.end_turn(move.thread, Outcome(kind=kind, reason=StopReason.ANSWERED, **told))

    def fork(self, move: Move) -> object:
        """A run goes on from the thread's, if there is one."""
        parent = self.store.run(move.thread)
        if not isinstance(parent, RunRecord):
            return parent.message
        return self.store.add_fork(f"{move.thread}+{len(self.store.runs())}", parent, move.step)  # type: ignore[func-returns-value]

    def delete(self, move: Move) -> None:
        """A run is forgotten. A file may give the numbers of its calls once more."""
        self.store.delete(move.thread)
        self.calls.clear()


def key(move: Move) -> CallKey:
    """The call that is meant."""
    return CallKey(
        move.thread, "ef"[move.pick % 2], move.step, move.pick % 3, "tool", EFFECTS[move.pick % len(EFFECTS)], "0"
    )


DO: dict[str, Callable[[Workspace, Move], object]] = {
    "begin": Workspace.begin,
    "note": lambda of, move: of.journal.note(key(move), move.text),
    "end": lambda of, move: of.journal.end((of.calls or [0])[-1], move.text),
    "intend": Workspace.intend,
    "settle": lambda of, move: of.journal.settle((of.tokens or [""])[-1], [*ChangeState][move.pick % len(ChangeState)]),
    "revert": lambda of, move: of.journal.revert(of.tokens[: move.pick % 3]),
    "find": lambda of, move: of.journal.find(move.thread, "ef"[move.pick % 2], move.step),
    "step": lambda of, move: of.journal.calls_of_step(move.thread, move.step),
    "cut_off": lambda of, move: of.journal.cut_off_commands((None, move.thread)[move.pick % 2], move.step),
    "forget": lambda of, move: of.journal.forget_outcomes(move.thread, move.step),
    "open": lambda of, _: of.journal.open_changes(),
    "changes": lambda of, move: of.journal.changes_of(move.thread, move.step),
    "backup": lambda of, move: of.journal.backup(f"s{move.step}"),
    "turn": lambda of, move: of.store.begin_turn(move.thread, move.text, AgentContext(workspace=of.root), "sync"),
    "end_turn": Workspace.end_turn,
    "take_up": lambda of, move: of.store.take_up(move.thread),
    "undone": lambda of, move: of.store.mark_undone(move.thread),
    "fork": Workspace.fork,
    "delete": Workspace.delete,
    "runs": lambda of, _: [{**vars(run), "stored_context": ""} for run in of.store.runs()],
}


def told(found: object) -> object:
    """What was found, without the numbers of calls."""
    if isinstance(found, RecordedChange):
        return found._replace(call=0)
    if isinstance(found, RecordedCall):
        return found._replace(call=0, changes=tuple(each._replace(call=0) for each in found.changes))
    if isinstance(found, list):
        return [*map(told, found)]
    if isinstance(found, dict):
        return {name: told(each) for name, each in found.items()}
    return found


def played(folder: Path, moves: list[Move]) -> list[object]:
    """What a store has answered to all moves in two workspaces."""
    folder.mkdir()
    with ExitStack() as stack:
        two = [Workspace(folder / name) for name in ("one", "two")]
        for each in two:
            stack.enter_context(closing(each.store))
        return [told(DO[move.name](two[move.workspace], move)) for move in moves]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_both_stores_answer_the_same(shared_store: str, tmp_path: Path, moves: list[Move]) -> None:
    folder = tmp_path / str(next(EXAMPLES))
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MENDGRAPH_STORE_URL", shared_store)
        shared = played(folder / "shared", moves)
        patch.delenv("MENDGRAPH_STORE_URL")
        own = played(folder / "own", moves)
    assert shared == own
