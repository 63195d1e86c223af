import json
from dataclasses import replace
from math import ceil

import pytest

from benchmarks.scale.pages import PAGES, growth_of, plan_of, rewritten
from benchmarks.scale.plan import ASSUMED, EMBEDDED, PerRun, need
from benchmarks.scale.run import MEASURED
from tests.architecture.product import ROOT

FIGURES = PerRun(
    cpu_s=0.1,
    memory=2e6,
    base=1e8,
    store=2e5,
    shared_store=1e5,
    server_cpu_s=0.05,
    commits=50,
    log_bytes=1e5,
    connections=20,
    input_tokens=10_000,
    output_tokens=200,
)


def test_what_a_day_needs() -> None:
    found = need(86_400, FIGURES, replace(ASSUMED, peak=2, call_s=1, busy=0.5, at_once=5, kept_days=10))
    assert vars(found) == pytest.approx(
        {
            "runs": 86_400,
            "rate": 1,
            "peak_rate": 2,
            "at_once": 10.2,
            "cores": 0.4,
            "processes": 3,
            "memory": 3e8 + 10.2 * 2e6,
            "store_a_day": 86_400 * 1e5,
            "store_kept": 864_000 * 1e5,
            "commits_s": 100,
            "log_s": 2e5,
            "server_cores": 0.2,
            "servers": 1,
            "connections": 15,
            "input_tokens_s": 20_000,
            "output_tokens_s": 400,
            "request_bytes_s": 80_000,
            "gpus": 1,
            "embedded_cores": ceil(4 * EMBEDDED.core_seconds),
        }
    )


def test_tables_of_the_documents_are_those_of_the_measured_figures() -> None:
    told = json.loads(MEASURED.read_text("utf-8"))
    pages = {name: (ROOT / name).read_text("utf-8") for name in PAGES}
    assert {name: rewritten(page, told) == page for name, page in pages.items()} == dict.fromkeys(PAGES, True)
    both = "".join(pages.values())
    assert (growth_of(told) in both, plan_of(told) in both) == (True, True)
