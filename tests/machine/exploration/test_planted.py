"""Tests of the tests: the checks of every edge detect faults that are planted in the routers.

A fault is planted in the text of `graph/machine/routes.py`, and the machine is built with the routers of that text.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from mendgraph.graph.machine import build
from tests.architecture.product import text_of
from tests.extent import slow
from tests.machine.exploration.alphabet import DENIED, FINAL, INVALID_JSON, LOOP, READ, Letter
from tests.machine.exploration.explorer import Explorer, explore
from tests.machine.exploration.invariants import check_edge
from tests.vocabulary import Protocol

PLANTED: dict[str, tuple[str, str]] = {
    "the budget is not asked": (
        'return exhausted_limit(state["spending"], state["context"].limits(state.get("profile"))) is None',
        "return True",
    ),
    "guard is bypassed": ('Transition("parse", "calls", "guard")', 'Transition("parse", "calls", "execute_tools")'),
    "what is denied runs": (
        'allowed = any(verdict.kind is VerdictKind.ALLOW for verdict in state["verdicts"])',
        "allowed = True",
    ),
    "what is allowed does not run": (
        'allowed = any(verdict.kind is VerdictKind.ALLOW for verdict in state["verdicts"])',
        "allowed = False",
    ),
    "a loop is no end": (
        "if verdict in LOOP_ENDS:",
        "if verdict in LOOP_ENDS and verdict is not LoopVerdict.PERSISTED:",
    ),
    "a malformed reply is an answer": (
        'return "only malformed"',
        'return "an answer"',
    ),
    "healing never ends": (
        """    if state.get("stop"):
        return "exhausted"
""",
        "",
    ),
}
LETTERS: tuple[Letter, ...] = (READ, LOOP, DENIED, INVALID_JSON, FINAL)
TIGHT = {"max_calls_per_turn": 4, "max_healing_attempts": 1, "repeat_window": 2, "loop_repeat_threshold": 2}


def planted(old: str, new: str) -> ModuleType:
    text = text_of("graph/machine/routes.py")
    assert text.count(old) == 1, "the place where a fault is planted is gone: plant it anew"
    module = ModuleType("planted_routes")
    exec(compile(text.replace(old, new), "planted_routes.py", "exec"), module.__dict__)  # noqa: S102 - our own text
    return module


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Build machines with this module's table and routers from now on."""
    monkeypatch.setattr(build, "routes", module)
    for node, router in list(build._ROUTERS.items()):
        planted: Callable[..., str] = getattr(module, router.__name__)
        planted.__annotations__ = get_type_hints(planted, vars(module))  # LangGraph looks for them in its own way
        monkeypatch.setitem(build._ROUTERS, node, planted)


def check(folder: Path) -> None:
    """All sequences to depth four, as `test_depth` checks them."""
    with Explorer(Protocol.TEXT, folder, LETTERS, TIGHT) as explorer:
        explore(explorer, 4, check_edge)


@slow
def test_unchanged_routers_pass_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, planted("class Transition", "class Transition"))
    check(tmp_path)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_in_the_routers_is_detected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, planted(*PLANTED[name]))
    with pytest.raises((AssertionError, IndexError)):  # IndexError: a node got input that it cannot have
        check(tmp_path)
