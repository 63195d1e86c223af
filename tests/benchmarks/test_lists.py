"""The benchmarks name existing parts of the product, and documents have their measured figures."""

import json
import pkgutil

from benchmarks.mutants.explanations import read_explanations, stale
from benchmarks.planted.faults import Fault, read_faults
from benchmarks.real_model.harness_mendgraph import WITHOUT
from benchmarks.scale.pages import PAGES, growth_tables, plan_tables, update_page
from benchmarks.scale.run import FIGURES_FILE
from tests.architecture.product import ROOT, text_of
from tests.extent import slow


def problem_of(fault: Fault) -> str:
    """Why this fault cannot be planted; "" where it can."""
    try:
        planted = fault.plant(text_of(fault.file))
        compile(planted, fault.file, "exec")
    except (ValueError, SyntaxError) as error:
        return f"{fault.name}: {error}"
    if planted == text_of(fault.file) or not (ROOT / fault.test).is_file():
        return f"{fault.name}: it changes nothing, or there is no {fault.test}"
    return ""


@slow
def test_planted_fault_changes_one_place_and_has_a_test_file() -> None:
    faults = read_faults()
    assert list(filter(None, map(problem_of, faults))) == []
    assert len({fault.name for fault in faults}) == len(faults)


def test_explained_mutant_refers_to_an_existing_line() -> None:
    explanations = read_explanations()
    sources = {explanation.file: text_of(explanation.file) for explanation in explanations}
    assert stale(explanations, sources, {}, []) == []


def test_function_removed_by_an_ablation_exists() -> None:
    for parts in WITHOUT.values():
        for target, _ in parts:
            pkgutil.resolve_name(target)


def test_tables_in_documents_match_the_measured_figures() -> None:
    figures = json.loads(FIGURES_FILE.read_text("utf-8"))
    pages = {name: text_of(name) for name in PAGES}
    assert [name for name, page in pages.items() if update_page(page, figures) != page] == []
    text = "".join(pages.values())
    assert (growth_tables(figures) in text, plan_tables(figures) in text) == (True, True)
