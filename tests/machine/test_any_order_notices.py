"""Machines that are broken on purpose: the checks of the plays in any order find each of them in a short play."""

from collections.abc import Callable
from typing import Any

import pytest

from mendgraph.graph.machine import guard_runtime, routes
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.guard.node import judge_step
from mendgraph.nodes.language import history
from mendgraph.nodes.records import Protocol, Verdict, VerdictKind
from tests.machine.alphabet import DENIED, READ
from tests.machine.any_order import RING, AnyOrder


class Native(AnyOrder):
    """A play in the native protocol, step by step."""

    profile = (Protocol.NATIVE, "auto")

    def reply(self, letter: str, kill: tuple[str, int] | None = None) -> None:
        """The model replies, and perhaps the process is killed on the way."""
        self.say(letter=letter, way="invoke", after=(), kill=kill)


def guard_allows_everything(patch: pytest.MonkeyPatch) -> None:
    def judged(*given: Any, **more: Any) -> Any:
        update = judge_step(*given, **more)
        allowed = Verdict(kind=VerdictKind.ALLOW)
        return update | {"verdicts": [v if v.rule == "malformed" else allowed for v in update["verdicts"]]}

    patch.setattr(guard_runtime, "judge_step", judged)


def no_way_through_guard(patch: pytest.MonkeyPatch) -> None:
    bypass = [each._replace(target="execute_tools") if each.label == "calls" else each for each in routes.TRANSITIONS]
    patch.setattr(routes, "TRANSITIONS", bypass)


def ledger_forgets(patch: pytest.MonkeyPatch) -> None:
    """What a killed process has spent, and what the checkpoints do not hold."""
    patch.setattr(
        "mendgraph.nodes.call_model.ledger.charge_lost",
        lambda spending, _, number: spending.model_copy(update={"booked": number}),
    )


def ledger_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(routes, "exhausted_limit", lambda *_: None)
    patch.setattr(ledger, "exhausted_limit", lambda *_: None)


def effects_happen_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "find", lambda *_: None)


def results_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mendgraph.nodes.loop_check.node.settle_exchange", lambda *given: history.settle_exchange(*given)[:1])


def asks_nobody(play: Native) -> None:
    play.reply(DENIED.name)


def reads(play: Native) -> None:
    play.reply(READ.name)


def reads_often(play: Native) -> None:
    for _ in range(4):
        play.reply(READ.name)


def is_killed_in_each_call(play: Native) -> None:
    play.undisturbed = False  # what the killed calls have spent ends it early
    for _ in range(4):
        play.reply(READ.name, ("model", 1))


def is_killed_after_an_effect(play: Native) -> None:
    play.reply(RING.name, ("journal ended", 1))
    play.resume(way="invoke", after=(), kill=None)


BROKEN: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Native], None], str], ...] = (
    (guard_allows_everything, asks_nobody, "may be touched"),
    (no_way_through_guard, reads, "no edge from parse to execute_tools"),
    (ledger_forgets, is_killed_in_each_call, "calls, and"),
    (ledger_is_not_asked, reads_often, "calls, and"),
    (effects_happen_twice, is_killed_after_an_effect, "times, and allowed"),
    (results_are_lost, reads, "results of|reply to nothing|before the results"),
)


def played(course: Callable[[Native], None]) -> None:
    """One request, this course, and an end."""
    play, limits = Native(), {"mode": "auto", "max_calls_per_session": 3}
    try:
        play.begin(limits=limits, forks=False)
        play.request(text="Mend calc.py.", way="invoke")
        course(play)
    finally:
        play.teardown()


@pytest.mark.parametrize(("broken", "course", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_machine_is_noticed(
    broken: Callable[[pytest.MonkeyPatch], None],
    course: Callable[[Native], None],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        played(course)


@pytest.mark.parametrize("course", dict.fromkeys(course for _, course, _ in BROKEN), ids=lambda course: course.__name__)
def test_the_machine_passes_the_same_plays(course: Callable[[Native], None]) -> None:
    played(course)
