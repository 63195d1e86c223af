"""One crew of two processes makes six runs: every one of them does its work, and all that was measured is there."""

import pytest

from benchmarks.scale.crew import Crew, NotDoneError, Series
from benchmarks.scale.server import endpoint


def test_a_crew_makes_its_runs_and_says_what_they_took() -> None:
    with endpoint(0.0) as url, Crew(Series("two", "threads", processes=2), url) as crew:
        point = crew.measure(6)
    assert (point.runs, point.calls, point.output_tokens) == (6, 30, 6 * 5 * 40)
    assert point.wall_s > 0
    assert point.cpu_s > 0
    assert point.store_bytes > 6 * 10_000
    assert point.input_tokens > 30 * 500
    assert point.threads >= 4


def test_a_run_that_cannot_do_its_work_makes_the_figures_worthless() -> None:
    with (
        pytest.raises(NotDoneError, match=r"warm-\d+ ended SYSTEM_ERROR: .*"),
        Crew(Series("one", "threads"), "http://127.0.0.1:9"),
    ):
        pass
