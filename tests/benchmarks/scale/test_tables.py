from benchmarks.scale.figures import Point
from benchmarks.scale.tables import Measured, document, lines_table, measured_of, points_table


def measured(name: str = "threads", *, commits: int = 0, latency_s: float = 0.5, base: int = 100) -> Measured:
    """Three points on lines: 2 MB, 0.1 s and 0.2 MB for each run."""
    return Measured(name, latency_s, tuple(_point(runs, runs * commits, base) for runs in (1, 10, 20)))


def _point(runs: int, commits: int, base: int) -> Point:
    return Point(
        runs,
        wall_s=5.0,
        cpu_s=runs / 10,
        base=base,
        memory=runs * 2e6,
        threads=runs * 3,
        handles=runs * 4,
        store_bytes=runs * 2e5,
        calls=runs * 5,
        input_tokens=runs * 1_000,
        output_tokens=runs * 9,
        connections=4,
        database_cpu_s=runs / 50,
        commits=commits,
        log_bytes=runs * 10_000,
    )


def test_a_row_for_each_number_of_runs() -> None:
    assert points_table(measured()).splitlines()[0::4] == [
        "| threads | runs/s | wall s | of the least | CPU ms/run | memory MB | threads | handles | KB/run |",
        "| 20 | 4.00 | 5.00 | 2.00 x | 100 | 40 | 60 | 80 | 200 |",
    ]


def test_a_shared_store_has_columns_of_its_own() -> None:
    head, _, first, *_ = points_table(measured(commits=50)).splitlines()
    assert head.endswith("| KB/run | connections | server CPU ms/run | writes/run |")
    assert first.endswith("| 200 | 4 | 20 | 50 |")


def test_what_nobody_could_measure_is_a_dash() -> None:
    assert "| 4.00 | 5.00 | - | 100 | - | - | - | 200 |" in points_table(measured(latency_s=0, base=0))


def test_the_line_of_growth() -> None:
    told = lines_table([measured(), Measured("two", 0.5, measured().points[:2])])
    assert told.splitlines()[2:] == [
        "| threads | memory MB | 0.00 + 2.0000 n | 0.00 | 1.0000 |",
        "| threads | CPU s | 0.00 + 0.1000 n | 0.00 | 1.0000 |",
        "| threads | store MB | 0.00 + 0.2000 n | 0.00 | 1.0000 |",
    ]


def test_figures_come_back_from_plain_data() -> None:
    assert measured_of(document([measured(commits=3)])) == [measured(commits=3)]


def test_what_gets_worse_is_told_with_the_series() -> None:
    first, second, last = measured().points
    bad = Measured("bad", 0.5, (first, last, second))
    assert (measured().problems(), bad.problems()) == (
        [],
        ["bad: 10 runs at once come to 2.00 runs/s, fewer ones to 4.00"],
    )
