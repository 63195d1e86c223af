from benchmarks.mutants.explanations import read_explanations, stale
from tests.architecture.product import ROOT


def test_every_explanation_is_of_a_line_that_is_there() -> None:
    explanations = read_explanations()
    sources = {each.file: (ROOT / each.file).read_text(encoding="utf-8") for each in explanations}
    assert stale(explanations, sources, {}, []) == []
