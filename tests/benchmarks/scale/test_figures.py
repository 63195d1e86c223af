from dataclasses import replace

import pytest

from benchmarks.scale.figures import Line, Point, bending, falling, line, middle

POINT = Point(1, 1.0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0)


def points(*told: tuple[int, float, float]) -> list[Point]:
    """Points of so many runs, seconds of wall time and MB."""
    return [replace(POINT, runs=runs, wall_s=wall_s, memory=memory * 1e6) for runs, wall_s, memory in told]


def test_a_line_and_its_worst_point() -> None:
    found = line([1, 2, 3], [3, 5, 7])
    assert (found, found.at(10)) == (Line(2, 1, 0, 1), 21)
    assert line([0, 1, 2], [0, 3, 0]).residual == pytest.approx(2)
    assert line([1, 2, 3], [4, 4, 4]) == Line(0, 4, 0, 1)


def test_the_middle_of_several_measurements() -> None:
    found = middle(points((5, 1, 10), (5, 9, 30), (5, 2, 20)))
    assert (found.runs, found.wall_s, found.memory, found.rate) == (5, 2, 20e6, 2.5)


def test_throughput_that_falls_is_told() -> None:
    assert falling(points((1, 1, 0), (10, 2, 0), (20, 4.1, 0))) is None
    assert falling(points((10, 2, 0), (20, 8, 0))) == "20 runs at once come to 2.50 runs/s, fewer ones to 5.00"


def test_memory_that_bends_is_told() -> None:
    straight = ((1, 1, 11), (50, 1, 60), (100, 1, 110))
    assert bending(points(*straight, (200, 1, 210))) is None
    assert bending(points(*straight, (200, 1, 150))) is None
    assert bending(points(*straight, (200, 1, 310))) == (
        "the last 100 runs took 200 MB, where the line of the others says 100 MB"
    )


def test_a_few_megabytes_are_no_bend_and_two_points_no_line() -> None:
    assert bending(points((1, 1, 1), (2, 1, 1), (3, 1, 8))) is None
    assert bending(points((1, 1, 1), (2, 1, 500))) is None
