"""The picture of the machine: each transition as a line, with the path of one run drawn over it. Pure.

The usual path leads down the middle, corrections are on its left, and the lines to each terminal node share a column on
the right. A transition of `TRANSITIONS` without a line raises KeyError.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from mendgraph.graph.machine.routes import NODES, TRANSITIONS, Transition
from mendgraph.graph.report.history import END, START
from mendgraph.nodes.records import JsonMap

WIDTH: Final = 970
HEIGHT: Final = 830


class Box(NamedTuple):
    """The box of a node: its center and its size, in pixels."""

    x: int
    y: int
    width: int = 150
    height: int = 46


BOXES: Final[Mapping[str, Box]] = {
    START: Box(400, 26, 64, 28),
    "begin_turn": Box(400, 92),
    "call_model": Box(400, 190, height=84),
    "parse": Box(400, 292),
    "heal": Box(106, 292, 126),
    "guard": Box(400, 430),
    "execute_tools": Box(400, 530),
    "loop_check": Box(400, 650, height=116),
    "FINISHED": Box(650, 770, 116),
    "BUDGET_STOP": Box(775, 770, 116),
    "SYSTEM_ERROR": Box(900, 770, 116),
    END: Box(400, 812, 64, 28),
}


class Line(NamedTuple):
    """The line of a transition: its SVG path, and the place of its label, the baseline of its first letter."""

    path: str
    label: tuple[int, int]


_ROWS: Final = (
    ("__start__", "", "begin_turn", "M400 40L400 69", 410, 58),
    ("begin_turn", "accepted", "call_model", "M400 115L400 148", 410, 135),
    ("begin_turn", "invalid request", "SYSTEM_ERROR", "M475 92L900 92L900 747", 483, 87),
    ("call_model", "replied", "parse", "M400 232L400 269", 410, 254),
    ("call_model", "retry", "call_model", "M475 193L493 193L493 201L475 201", 499, 201),
    ("call_model", "next model", "call_model", "M475 207L493 207L493 215L475 215", 499, 215),
    ("call_model", "conversation shortened", "call_model", "M475 221L493 221L493 229L475 229", 499, 229),
    ("call_model", "provider failed", "SYSTEM_ERROR", "M475 161L900 161L900 747", 483, 156),
    ("call_model", "limit reached", "guard", "M325 216L250 216L250 433L325 433", 256, 250),
    ("call_model", "budget exhausted", "BUDGET_STOP", "M475 181L775 181L775 747", 483, 176),
    ("parse", "calls", "guard", "M400 315L400 407", 410, 332),
    ("parse", "only malformed", "heal", "M325 292L169 292", 180, 287),
    ("parse", "an answer", "FINISHED", "M475 292L650 292L650 747", 483, 287),
    ("heal", "ask again", "call_model", "M106 269L106 206L325 206", 116, 244),
    ("heal", "repaired locally", "guard", "M70 315L70 424L325 424", 116, 419),
    ("heal", "budget exhausted", "BUDGET_STOP", "M106 315L106 384L775 384L775 747", 160, 379),
    ("heal", "exhausted", "SYSTEM_ERROR", "M142 315L142 354L900 354L900 747", 160, 349),
    ("guard", "calls allowed", "execute_tools", "M400 453L400 507", 410, 484),
    ("guard", "all denied", "loop_check", "M325 442L290 442L290 630L325 630", 186, 540),
    ("guard", "limit raised", "call_model", "M325 415L225 415L225 226L325 226", 150, 262),
    ("guard", "stopped by a person", "BUDGET_STOP", "M475 430L775 430L775 747", 483, 425),
    ("execute_tools", "", "loop_check", "M400 553L400 592", 410, 576),
    ("loop_check", "fresh or override", "call_model", "M325 664L22 664L22 178L325 178", 40, 659),
    ("loop_check", "answered", "FINISHED", "M475 606L650 606L650 747", 483, 601),
    ("loop_check", "budget exhausted", "BUDGET_STOP", "M475 629L775 629L775 747", 483, 624),
    ("loop_check", "still repeating", "SYSTEM_ERROR", "M475 652L900 652L900 747", 483, 647),
    ("loop_check", "tries used up", "SYSTEM_ERROR", "M475 675L900 675L900 747", 483, 670),
    ("loop_check", "workspace failed", "SYSTEM_ERROR", "M475 698L900 698L900 747", 483, 693),
    ("FINISHED", "", "__end__", "M650 793L650 812L432 812", 0, 0),
    ("BUDGET_STOP", "", "__end__", "M775 793L775 812L432 812", 0, 0),
    ("SYSTEM_ERROR", "", "__end__", "M900 793L900 812L432 812", 0, 0),
)
LINES: Final[Mapping[Transition, Line]] = {
    Transition(source, on, target): Line(path, (x, y)) for source, on, target, path, x, y in _ROWS
}
"""The line of each transition, at places chosen by hand."""


def draw(edges: Mapping[Transition, int], visited: Mapping[str, int], at: str = "") -> JsonMap:
    """Return the picture: how often the run took each edge and visited each node, and the node that it is `at`.

    A node has a `kind` (node, end, start) and a `state` (on: visited, off: not visited, now). Edges that were taken
    come last, so that they lie on top.
    """
    counts = {**visited, END: sum(count for edge, count in edges.items() if edge.target == END)}
    nodes = [_node_view(name, counts.get(name, 0), at) for name in (START, *NODES, END)]
    untaken = [edge for edge in TRANSITIONS if not edges.get(edge)]
    taken_edges = [edge for edge in TRANSITIONS if edges.get(edge)]
    lines = []

    for edge in (*untaken, *taken_edges):
        lines.append({"transition": edge, **LINES[edge]._asdict(), "count": edges.get(edge, 0)})

    return {"nodes": nodes, "edges": lines, "width": WIDTH, "height": HEIGHT}


def _node_view(name: str, count: int, at: str) -> JsonMap:
    kind = "node"
    if name in {START, END}:
        kind = "start"
    elif name.isupper():
        kind = "end"

    state = "off"
    if name == at:
        state = "now"
    elif count:
        state = "on"

    label = {START: "start", END: "end"}.get(name, name)
    return {"label": label, "box": BOXES[name], "kind": kind, "state": state, "count": count}
