"""What can be seen of the compiled graph without running it. The invariants are listed in CONTRIBUTING.md."""

import ast
from collections.abc import Iterable, Mapping

import pytest

from mendgraph.graph.machine import routes
from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.routes import NODES, TRANSITIONS
from mendgraph.nodes.records import OutcomeKind
from tests.architecture.product import walk

START, END = "__start__", "__end__"
TERMINALS = [kind.value for kind in OutcomeKind]
Arrows = Mapping[str, frozenset[str]]


def arrows(machine: Machine) -> Arrows:
    """Where each node of the compiled graph may lead."""
    drawn = machine.get_graph()
    return {node: frozenset(edge.target for edge in drawn.edges if edge.source == node) for node in drawn.nodes}


def reached(graph: Arrows, start: str, without: Iterable[str] = ()) -> set[str]:
    """What can be reached from a node, itself left out, on ways that pass none of `without`."""
    closed = set(without)
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found - closed
        found |= new
        waiting += new
    return found


def problems(graph: Arrows) -> list[str]:
    """What is wrong with a machine of these arrows; nothing where it is the one that was designed."""
    nodes = set(graph) - {START, END}
    found = [f"{node} is never reached" for node in sorted(nodes - reached(graph, START))]
    found += [f"{node} never ends" for node in sorted(nodes) if END not in reached(graph, node)]
    found += [f"{node} leads on to {graph[node]}" for node in TERMINALS if graph[node] != {END}]
    if "execute_tools" in reached(graph, START, without=["guard"]):
        found.append("execute_tools is reached without guard")
    found += [f"{node} leads to execute_tools" for node in sorted(nodes - {"guard"}) if "execute_tools" in graph[node]]
    found += [f"{node} turns in a circle without a model call" for node in circling(graph, without=["call_model"])]
    asking = {node for node in nodes if "call_model" in graph[node]}
    found += [
        f"{node} calls the model and never stops for the budget" for node in sorted(asking) if not stops(graph, node)
    ]
    if "BUDGET_STOP" not in graph["call_model"]:
        found.append("call_model cannot refuse a call that does not fit")
    return found


def circling(graph: Arrows, without: Iterable[str]) -> list[str]:
    """The nodes that lead back to themselves, without passing these."""
    closed = set(without)
    return sorted(node for node in graph if node not in closed and node in reached(graph, node, closed))


def stops(graph: Arrows, node: str) -> bool:
    """Whether what calls the model again may stop instead; a turn's first call has call_model's own check."""
    return node == "begin_turn" or "BUDGET_STOP" in graph[node]


def test_compiled_machine_is_sound() -> None:
    graph = arrows(build_graph())
    assert set(graph) - {START, END} == set(NODES)
    assert problems(graph) == []


PLANTED = {
    "guard is bypassed": ({"parse": {"execute_tools", "guard", "heal", "FINISHED"}}, "parse leads to execute_tools"),
    "a budget edge is gone": ({"loop_check": {"call_model", "FINISHED", "SYSTEM_ERROR"}}, "loop_check calls the model"),
    "no ledger": ({"call_model": {"parse", "SYSTEM_ERROR"}}, "call_model cannot refuse"),
    "a circle": ({"heal": {"parse", "guard", "BUDGET_STOP", "SYSTEM_ERROR"}}, "heal turns in a circle"),
    "an end that is none": ({"FINISHED": {"call_model"}}, "FINISHED leads on"),
    "a room without a door": ({"parse": {"guard", "FINISHED"}}, "heal is never reached"),
    "a trap": ({"execute_tools": {"execute_tools"}}, "execute_tools never ends"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_unsound_machine_is_noticed(name: str) -> None:
    changed, told = PLANTED[name]
    graph = {**arrows(build_graph()), **{node: frozenset(targets) for node, targets in changed.items()}}
    assert [problem for problem in problems(graph) if problem.startswith(told)]


def test_way_back_to_the_model_is_asked_for_in_one_place() -> None:
    """In the text of the routers: each word that leads there is said where the ledger allows it, but a turn's first.

    And nothing else asks the ledger.
    """
    words = {each.label for each in TRANSITIONS if each.target == "call_model"}
    asked: dict[str, bool] = {}
    said: dict[str, str] = {}
    pending: list[str] = []
    for node in walk("graph/machine/routes.py"):
        if isinstance(node, ast.FunctionDef):
            inner = [part for statement in node.body for part in ast.walk(statement)]
            asked[node.name] = any(isinstance(part, ast.Name) and part.id == "exhausted_limit" for part in inner)
            allowed = {ast.unparse(part.body): ast.unparse(part.test) for part in inner if isinstance(part, ast.IfExp)}
            spoken = [part for part in inner if isinstance(part, ast.Constant) and part.value in words]
            pending += [test for word, test in allowed.items() if word == "pending.edge"]
            said |= {str(part.value): allowed.get(ast.unparse(part), "") for part in spoken}
    ask = routes._may_call_again.__name__
    assert [name for name, does in asked.items() if does] == [ask]
    assert said == {"accepted": "", "ask again": f"{ask}(state)", "fresh or override": f"{ask}(state)"}
    assert pending == [f"{ask}(state)"]
