"""Machines that are broken on purpose: the plays in any order find each of them, and within few examples."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from mendgraph.graph.machine import guard_runtime, routes
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.guard.node import judge_step
from mendgraph.nodes.language import history
from mendgraph.nodes.records import JsonMap, Protocol, Verdict, VerdictKind
from tests.machine.any_order import AnyOrder

quick = settings(
    max_examples=150,
    stateful_step_count=20,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class Free(AnyOrder):
    """Nobody is asked, so that effects come often."""

    profile = (Protocol.NATIVE, "auto")
    limits: ClassVar[JsonMap] = {"mode": "auto"}


class Asking(Free):
    """A person is asked for each effect."""

    limits: ClassVar[JsonMap] = {"mode": "ask"}


class Tight(Free):
    """A session of few calls."""

    limits: ClassVar[JsonMap] = {"max_calls_per_session": 3, "max_calls_per_turn": 2, "wrap_up": False}


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
        "mendgraph.nodes.call_model.paid_call.charge_lost",
        lambda spending, _, number: spending.model_copy(update={"booked": number}),
    )


def ledger_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(routes, "exhausted_limit", lambda *_: None)
    patch.setattr(ledger, "exhausted_limit", lambda *_: None)


def effects_happen_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "find", lambda *_: None)


def results_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mendgraph.nodes.loop_check.node.settle_exchange", lambda *given: history.settle_exchange(*given)[:1])


BROKEN: tuple[tuple[Callable[[pytest.MonkeyPatch], None], type[AnyOrder], str], ...] = (
    (guard_allows_everything, Asking, "may be touched|nobody approved it"),
    (no_way_through_guard, Free, "no edge from parse to execute_tools"),
    (ledger_forgets, Tight, "calls, and"),
    (ledger_is_not_asked, Tight, "calls, and"),
    (effects_happen_twice, Free, "times, and allowed|files: |history: "),
    (results_are_lost, Free, "results of|reply to nothing|before the results"),
)


@pytest.mark.parametrize(("broken", "played", "told"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_machine_is_noticed(
    broken: Callable[[pytest.MonkeyPatch], None], played: type[AnyOrder], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=told):
        run_state_machine_as_test(played, settings=quick)
