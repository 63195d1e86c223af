"""The machine as a picture: each transition of the table as a line, with the way of one run drawn over it. Pure.

The places are chosen by hand, as on the map of an underground: the usual way leads down the middle, corrections on its
left, and each end has a rail of its own on the right. What is drawn comes from `TRANSITIONS`: a transition
without a place raises, so that none can be forgotten.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from mendgraph.graph.machine.routes import NODES, TRANSITIONS, Transition
from mendgraph.graph.report.history import END, START
from mendgraph.nodes.records import JsonMap

WIDTH: Final = 970
HEIGHT: Final = 830


class Box(NamedTuple):
    """A node's place: its middle and its size, in pixels of the picture."""

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

Points = tuple[tuple[int, int], ...]


class Route(NamedTuple):
    """A line's corners from its source to its target, and where its label stands: the middle of its first letter."""

    points: Points
    label: tuple[int, int]


def _down(source: str, target: str) -> Route:
    above = BOXES[source]
    below = BOXES[target]
    start = above.y + above.height // 2
    end = below.y - below.height // 2

    return Route(((above.x, start), (above.x, end)), (above.x + 10, (start + end) // 2 + 4))


def _again(node: str, y: int) -> Route:
    """Out of a node to the right and back into it, a little lower."""
    edge = BOXES[node].x + BOXES[node].width // 2
    return Route(((edge, y), (edge + 18, y), (edge + 18, y + 8), (edge, y + 8)), (edge + 24, y + 8))


def _to_rail(source: str, y: int, terminal: str) -> Route:
    """To the right along y, then down the rail of an end."""
    box = BOXES[source]
    end = BOXES[terminal]
    edge = box.x + box.width // 2

    return Route(((edge, y), (end.x, y), (end.x, end.y - end.height // 2)), (edge + 8, y - 5))


def _under(port: int, y: int, terminal: str) -> Route:
    """From below the box of corrections to the right, under `parse`, then down a rail."""
    box = BOXES["heal"]
    end = BOXES[terminal]
    return Route(((port, box.y + 23), (port, y), (end.x, y), (end.x, end.y - 23)), (160, y - 5))


def _to_the_end(terminal: str) -> Route:
    box = BOXES[terminal]
    end = BOXES[END]
    return Route(((box.x, box.y + 23), (box.x, end.y), (end.x + end.width // 2, end.y)), (0, 0))


ROUTES: Final[Mapping[Transition, Route]] = {
    Transition(START, "", "begin_turn"): _down(START, "begin_turn"),
    Transition("begin_turn", "accepted", "call_model"): _down("begin_turn", "call_model"),
    Transition("begin_turn", "invalid request", "SYSTEM_ERROR"): _to_rail("begin_turn", 92, "SYSTEM_ERROR"),
    Transition("call_model", "replied", "parse"): _down("call_model", "parse"),
    Transition("call_model", "retry", "call_model"): _again("call_model", 193),
    Transition("call_model", "next model", "call_model"): _again("call_model", 207),
    Transition("call_model", "conversation shortened", "call_model"): _again("call_model", 221),
    Transition("call_model", "provider failed", "SYSTEM_ERROR"): _to_rail("call_model", 161, "SYSTEM_ERROR"),
    Transition("call_model", "budget exhausted", "BUDGET_STOP"): _to_rail("call_model", 181, "BUDGET_STOP"),
    Transition("parse", "calls", "guard"): Route(((400, 315), (400, 407)), (410, 332)),
    Transition("parse", "only malformed", "heal"): Route(((325, 292), (169, 292)), (180, 287)),
    Transition("parse", "an answer", "FINISHED"): _to_rail("parse", 292, "FINISHED"),
    Transition("heal", "ask again", "call_model"): Route(((106, 269), (106, 206), (325, 206)), (116, 244)),
    Transition("heal", "repaired locally", "guard"): Route(((70, 315), (70, 424), (325, 424)), (116, 419)),
    Transition("heal", "budget exhausted", "BUDGET_STOP"): _under(106, 384, "BUDGET_STOP"),
    Transition("heal", "exhausted", "SYSTEM_ERROR"): _under(142, 354, "SYSTEM_ERROR"),
    Transition("guard", "calls allowed", "execute_tools"): _down("guard", "execute_tools"),
    Transition("guard", "all denied", "loop_check"): Route(
        ((325, 442), (290, 442), (290, 630), (325, 630)), (186, 540)
    ),
    Transition("guard", "stopped by a person", "BUDGET_STOP"): _to_rail("guard", 430, "BUDGET_STOP"),
    Transition("execute_tools", "", "loop_check"): _down("execute_tools", "loop_check"),
    Transition("loop_check", "fresh or override", "call_model"): Route(
        ((325, 664), (22, 664), (22, 178), (325, 178)), (40, 659)
    ),
    Transition("loop_check", "answered", "FINISHED"): _to_rail("loop_check", 606, "FINISHED"),
    Transition("loop_check", "budget exhausted", "BUDGET_STOP"): _to_rail("loop_check", 629, "BUDGET_STOP"),
    Transition("loop_check", "still repeating", "SYSTEM_ERROR"): _to_rail("loop_check", 652, "SYSTEM_ERROR"),
    Transition("loop_check", "tries used up", "SYSTEM_ERROR"): _to_rail("loop_check", 675, "SYSTEM_ERROR"),
    Transition("loop_check", "workspace failed", "SYSTEM_ERROR"): _to_rail("loop_check", 698, "SYSTEM_ERROR"),
    **{Transition(end, "", END): _to_the_end(end) for end in ("FINISHED", "BUDGET_STOP", "SYSTEM_ERROR")},
}
"""Where each transition is drawn."""


def draw(edges: Mapping[Transition, int], visited: Mapping[str, int], at: str = "") -> JsonMap:
    """The machine with the way of a run: how often it took each edge and visited each node, and where it is now.

    The `kind` of a node is its look: node, end, start; its `state` says whether the run came by: on, off, now. Edges
    that were taken come last, so that they lie on top.
    """
    counts = {**visited, END: sum(count for edge, count in edges.items() if edge.target == END)}
    nodes = [_node_view(name, counts.get(name, 0), at) for name in (START, *NODES, END)]
    untaken = [edge for edge in TRANSITIONS if not edges.get(edge)]
    taken_edges = [edge for edge in TRANSITIONS if edges.get(edge)]
    lines = []

    for edge in (*untaken, *taken_edges):
        route = ROUTES[edge]
        path = "M" + "L".join(f"{x} {y}" for x, y in route.points)
        lines.append({"transition": edge, "path": path, "label": route.label, "count": edges.get(edge, 0)})

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
