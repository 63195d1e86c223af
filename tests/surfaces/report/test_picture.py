"""The picture of the machine: the whole transition table, with the run's counts."""

from itertools import pairwise

from mendgraph.graph.machine.routes import TRANSITIONS, Transition
from mendgraph.graph.report.picture import BOXES, HEIGHT, LINES, WIDTH, Line, draw

ACCEPTED = Transition("begin_turn", "accepted", "call_model")


def test_every_transition_of_the_table_is_drawn_once_and_no_other() -> None:
    assert set(LINES) == set(TRANSITIONS)
    assert sorted(edge["transition"] for edge in draw({}, {})["edges"]) == sorted(TRANSITIONS)


def test_lines_connect_source_and_target_along_the_axes() -> None:
    for transition, route in LINES.items():
        assert _touches(_points(route)[0], transition.source), transition
        assert _touches(_points(route)[-1], transition.target), transition
        assert all((x == u) != (y == v) for (x, y), (u, v) in pairwise(_points(route))), transition
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in (*_points(route), route.label)), transition


def _points(line: Line) -> list[tuple[int, int]]:
    pairs = [pair.split() for pair in line.path.removeprefix("M").split("L")]
    return [(int(x), int(y)) for x, y in pairs]


def _touches(point: tuple[int, int], name: str) -> bool:
    x, y, width, height = BOXES[name]
    within = abs(point[0] - x) <= width / 2 and abs(point[1] - y) <= height / 2
    return within and (abs(point[0] - x) == width / 2 or abs(point[1] - y) == height / 2)


def test_no_line_crosses_a_node() -> None:
    def crosses(route: Line, name: str) -> bool:
        x, y, width, height = BOXES[name]
        return any(
            min(a, c) < x + width / 2 - 1
            and max(a, c) > x - width / 2 + 1
            and min(b, d) < y + height / 2 - 1
            and max(b, d) > y - height / 2 + 1
            for (a, b), (c, d) in pairwise(_points(route))
        )

    assert [(edge, name) for edge, route in LINES.items() for name in BOXES if crosses(route, name)] == []


def test_path_of_a_run_is_on_top_with_counts() -> None:
    picture = draw({ACCEPTED: 3}, {"begin_turn": 3, "call_model": 2}, "call_model")
    *others, last = picture["edges"]
    assert (last["transition"], last["count"]) == (ACCEPTED, 3)
    assert {edge["count"] for edge in others} == {0}
    nodes = {node["label"]: (node["state"], node["count"]) for node in picture["nodes"] if node["state"] != "off"}
    assert nodes == {"begin_turn": ("on", 3), "call_model": ("now", 2)}
