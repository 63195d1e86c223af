"""What can be seen of the compiled graph without running it. The invariants are listed in CONTRIBUTING.md."""

from collections.abc import Iterable, Mapping

from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.routes import NODES
from mendgraph.nodes.records import OutcomeKind

START, END = "__start__", "__end__"
TERMINALS = [kind.value for kind in OutcomeKind]
Arrows = Mapping[str, frozenset[str]]


def arrows(machine: Machine) -> Arrows:
    drawn = machine.get_graph()
    return {node: frozenset(edge.target for edge in drawn.edges if edge.source == node) for node in drawn.nodes}


def reachable(graph: Arrows, start: str, without: Iterable[str] = ()) -> set[str]:
    """The nodes that can be reached from a node without passing any of `without`."""
    closed = set(without)
    visited: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - visited - closed
        visited |= new
        waiting += new
    return visited


def problems(graph: Arrows) -> list[str]:
    """The problems of a machine with these arrows; none for the machine as designed."""
    nodes = set(graph) - {START, END}
    messages = [f"{node} is never reached" for node in sorted(nodes - reachable(graph, START))]
    messages += [f"{node} never ends" for node in sorted(nodes) if END not in reachable(graph, node)]
    messages += [f"{node} leads on to {graph[node]}" for node in TERMINALS if graph[node] != {END}]
    if "execute_tools" in reachable(graph, START, without=["guard"]):
        messages.append("execute_tools is reached without guard")
    messages += [
        f"{node} leads to execute_tools" for node in sorted(nodes - {"guard"}) if "execute_tools" in graph[node]
    ]
    messages += [
        f"{node} turns in a circle without a model call"
        for node in sorted(nodes - {"call_model"})
        if node in reachable(graph, node, without=["call_model"])
    ]
    asking = sorted(node for node in nodes - {"begin_turn"} if "call_model" in graph[node])  # a first call is checked
    messages += [f"{node} calls the model and never stops" for node in asking if "BUDGET_STOP" not in graph[node]]
    if "BUDGET_STOP" not in graph["call_model"]:
        messages.append("call_model cannot refuse a call that does not fit")
    return messages


def test_compiled_graph_passes_the_static_checks() -> None:
    graph = arrows(build_graph())
    assert set(graph) - {START, END} == set(NODES)
    assert problems(graph) == []


def test_unsound_graph_fails_the_static_checks() -> None:
    planted: list[tuple[str, set[str], str]] = [
        ("parse", {"execute_tools", "guard", "heal", "FINISHED"}, "parse leads to execute_tools"),
        ("loop_check", {"call_model", "FINISHED", "SYSTEM_ERROR"}, "loop_check calls the model"),
        ("call_model", {"parse", "SYSTEM_ERROR"}, "call_model cannot refuse"),
        ("heal", {"parse", "guard", "BUDGET_STOP", "SYSTEM_ERROR"}, "heal turns in a circle"),
        ("FINISHED", {"call_model"}, "FINISHED leads on"),
        ("parse", {"guard", "FINISHED"}, "heal is never reached"),
        ("execute_tools", {"execute_tools"}, "execute_tools never ends"),
    ]
    sound = arrows(build_graph())
    for node, targets, problem in planted:
        messages = problems({**sound, node: frozenset(targets)})
        assert any(message.startswith(problem) for message in messages), problem
