"""Who may begin a run, and with what."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import refusal
from mendgraph.graph.fleet.serving.admission import FrontDesk, RunRefusedError
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import StopReason

ANN = Tenant("ann", (), AgentContext(account="ann", max_steps=9), runs_at_once=2)
NOBODY = refusal("Nobody knows who asks: send the header Authorization: Bearer <token>.")


class Held:
    """Locks of a test: those in `taken` are others'."""

    def __init__(self, *taken: str, for_threads: bool = True, broken: bool = False) -> None:
        self.names, self.for_threads, self.broken = set(taken), for_threads, broken

    def take(self, name: str) -> bool:
        if self.broken:
            raise StoreError("The database is away.")
        free = name not in self.names
        self.names.add(name)
        return free

    def leave(self, name: str) -> None:
        self.names.discard(name)
        if name.startswith("thread"):
            raise StoreError("The connection was lost.")

    def keep(self) -> None: ...

    def close(self) -> None: ...


def desk(tmp_path: Path, locks: Held | None = None) -> FrontDesk:
    return FrontDesk(Tenants({"ann": ANN}, root="/"), lambda *_: str(tmp_path), locks or Held())


@pytest.mark.parametrize(
    "configurable",
    [
        {},
        {"langgraph_auth_user": None},
        {"langgraph_auth_user": {}},
        {"langgraph_auth_user": {"identity": "bob"}},
        {"langgraph_auth_user": {"identity": ["ann"]}},
        {"langgraph_auth_user": "ann"},
        {"user_id": "ann"},
    ],
)
def test_who_is_not_known_is_nobody(tmp_path: Path, configurable: dict[str, Any]) -> None:
    assert desk(tmp_path).user(configurable) == NOBODY


@pytest.mark.parametrize("user", [{"identity": "ann"}, SimpleNamespace(identity="ann")])
def test_servers_say_it_in_two_ways(tmp_path: Path, user: object) -> None:
    assert desk(tmp_path).user({"langgraph_auth_user": user}) is ANN


def test_a_turn_gets_its_context(tmp_path: Path) -> None:
    held = AgentContext(workspace=str(tmp_path.resolve()), account="ann", max_steps=3)
    assert desk(tmp_path).admit(ANN, {"workspace": "website", "max_steps": 3}) == held
    assert desk(tmp_path).admit(ANN, AgentContext(workspace="website", max_steps=3)) == held
    assert desk(tmp_path).admit(ANN, {"workspace": "a/b"}) == refusal(
        "'a/b' is no project's name: workspace is one name of A-Z a-z 0-9 . _ -, and no path."
    )
    assert desk(tmp_path).admit(ANN, None) == desk(tmp_path).admit(ANN, {})


def test_a_turn_goes_on_with_what_is_still_allowed(tmp_path: Path) -> None:
    its, stored = desk(tmp_path), AgentContext(account="ann", max_steps=9, workspace=str(tmp_path.resolve()))
    assert its.readmit(ANN, stored, "website") is stored
    others = stored.model_copy(update={"account": "bob"})
    assert its.readmit(ANN, others, "website") == refusal("This turn was begun by somebody else.")
    assert its.readmit(ANN, None, "website") == refusal("There is nothing to go on with: send a request.")
    said = "The server allows other things than when this turn began ({}): send a new request."
    wide, moved = (stored.model_copy(update=each) for each in ({"max_steps": 10}, {"workspace": "/elsewhere"}))
    assert its.readmit(ANN, wide, "website") == refusal(said.format("max_steps"))
    assert its.readmit(ANN, moved, "website") == refusal(said.format("workspace"))
    assert its.readmit(ANN, stored, "../x") == its.admit(ANN, {"workspace": "../x"})


def test_a_user_has_some_runs_at_once(tmp_path: Path) -> None:
    locks = Held("run 0 of ann", "thread t3")
    its = desk(tmp_path, locks)
    first, second, third = (its.place(ANN, thread) for thread in ("t1", "t2", "t3"))
    assert first.take() is None
    assert locks.names == {"run 0 of ann", "run 1 of ann", "thread t1", "thread t3"}
    with pytest.raises(RunRefusedError, match="Another run of this thread is at work"):
        third.take()  # which says nothing of places: that would be written into the thread
    third.leave()
    said = "ann has 2 runs at work on these servers, which is the most at once."
    assert second.take() == refusal(said, StopReason.WORKSPACE_BUSY)
    second.leave()
    first.leave()
    assert locks.names == {"run 0 of ann", "thread t3"}


def test_a_place_that_was_left_is_not_taken_any_more(tmp_path: Path) -> None:
    locks = Held()
    place = desk(tmp_path, locks).place(ANN, "t1")
    place.leave()
    assert place.take() is None
    assert locks.names == set()


def test_without_a_lock_nobody_begins(tmp_path: Path) -> None:
    place = desk(tmp_path, Held(broken=True)).place(ANN, "t1")
    with pytest.raises(RunRefusedError, match=r"The database is away\."):
        place.take()


def test_locks_of_files_are_not_for_threads(tmp_path: Path) -> None:
    locks = Held(for_threads=False)
    assert desk(tmp_path, locks).place(ANN, "t1").take() is None
    assert locks.names == {"run 0 of ann"}
