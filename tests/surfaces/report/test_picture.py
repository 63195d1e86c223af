"""The picture of the machine: all of the table, in its place, with the run's counts."""

from itertools import pairwise

from mendgraph.graph.machine.routes import TRANSITIONS, Transition
from mendgraph.graph.report.picture import BOXES, HEIGHT, ROUTES, WIDTH, Route, draw

ACCEPTED = Transition("begin_turn", "accepted", "call_model")


def test_every_transition_of_the_table_is_drawn_once_and_no_other() -> None:
    assert set(ROUTES) == set(TRANSITIONS)
    assert sorted(edge["transition"] for edge in draw({}, {})["edges"]) == sorted(TRANSITIONS)


def test_lines_lead_from_their_source_to_their_target_along_the_axes() -> None:
    for transition, route in ROUTES.items():
        assert _touches(route.points[0], transition.source), transition
        assert _touches(route.points[-1], transition.target), transition
        assert all((x == u) != (y == v) for (x, y), (u, v) in pairwise(route.points)), transition
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in (*route.points, route.label)), transition


def _touches(point: tuple[int, int], name: str) -> bool:
    x, y, width, height = BOXES[name]
    within = abs(point[0] - x) <= width / 2 and abs(point[1] - y) <= height / 2
    return within and (abs(point[0] - x) == width / 2 or abs(point[1] - y) == height / 2)


def test_no_line_runs_through_a_node() -> None:
    def crosses(route: Route, name: str) -> bool:
        x, y, width, height = BOXES[name]
        return any(
            min(a, c) < x + width / 2 - 1
            and max(a, c) > x - width / 2 + 1
            and min(b, d) < y + height / 2 - 1
            and max(b, d) > y - height / 2 + 1
            for (a, b), (c, d) in pairwise(route.points)
        )

    assert [(each, name) for each, route in ROUTES.items() for name in BOXES if crosses(route, name)] == []


def test_way_of_a_run_lies_on_top_with_its_counts() -> None:
    picture = draw({ACCEPTED: 3}, {"begin_turn": 3, "call_model": 2}, "call_model")
    *others, last = picture["edges"]
    assert (last["transition"], last["count"]) == (ACCEPTED, 3)
    assert {edge["count"] for edge in others} == {0}
    shown = {node["label"]: (node["state"], node["count"]) for node in picture["nodes"] if node["state"] != "off"}
    assert shown == {"begin_turn": ("on", 3), "call_model": ("now", 2)}
