import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.pages import PAGES, growth_of, plan_of, rewrite, rewritten
from benchmarks.scale.plan import IN_ONE_PROCESS, ONE_MACHINE, SHARED
from benchmarks.scale.run import MEASURED
from benchmarks.scale.tables import document
from tests.architecture.house import ROOT
from tests.benchmarks.scale.test_tables import measured

TOLD: dict[str, Any] = {
    "series": document([measured(IN_ONE_PROCESS), measured(ONE_MACHINE), measured(SHARED, commits=50)])
}
PAGE = "a\n<!-- scale: plan -->\nold\n<!-- end of scale: plan -->\nb\n"


def test_the_tables_of_a_page_are_made_anew() -> None:
    told = rewritten(PAGE, TOLD)
    assert told == f"a\n<!-- scale: plan -->\n\n{plan_of(TOLD)}\n<!-- end of scale: plan -->\nb\n"
    assert rewritten(told, TOLD) == told


@pytest.mark.parametrize("page", ["nothing\n", "<!-- scale: growth -->\nwithout an end\n"])
def test_a_page_without_their_places_stays(page: str) -> None:
    assert rewritten(page, TOLD) == page


def test_pages_are_rewritten_where_they_differ(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/scale.md").write_text(PAGE)
    assert rewrite(TOLD, tmp_path) == "rewritten: docs/scale.md"
    assert rewrite(TOLD, tmp_path) == "nothing to rewrite"


def test_the_tables_of_the_documents_are_those_of_the_measured_figures() -> None:
    told = json.loads(MEASURED.read_text("utf-8"))
    pages = {name: (ROOT / name).read_text("utf-8") for name in PAGES}
    assert {name: rewritten(page, told) == page for name, page in pages.items()} == dict.fromkeys(PAGES, True)
    both = "".join(pages.values())
    assert (growth_of(told) in both, plan_of(told) in both) == (True, True)
