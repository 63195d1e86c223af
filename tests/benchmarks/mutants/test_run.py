import pytest

from benchmarks.mutants.run import _independent_of, files_to_mutate, main, package_tests
from tests.architecture.product import ROOT, is_pure


def test_files_are_chosen_by_pattern_among_the_pure_ones() -> None:
    assert files_to_mutate(["nodes/heal/h*.py", "graph/machine/routes.py"]) == [
        "graph/machine/routes.py",
        "nodes/heal/healing.py",
    ]
    assert files_to_mutate(["graph/runs/run.py", "README.md"]) == []
    every = files_to_mutate([])
    assert len(every) > 150
    assert all(is_pure(path) and (ROOT / path).is_file() for path in every)


def test_a_files_tests_are_those_of_its_package_and_the_attacks_on_it() -> None:
    found = package_tests("nodes/guard/policy.py")
    assert {"tests/nodes/guard/test_policy.py", "tests/nodes/guard/test_paths.py"} < set(found)
    assert all(each.startswith("tests/nodes/guard/") for each in found)


def test_modules_that_depend_on_the_mutated_one_are_not_imported_before_it() -> None:
    ahead = _independent_of("mendgraph.nodes.guard.policy")
    assert "mendgraph.nodes.records" in ahead
    assert "mendgraph.nodes.guard.file_rules" in ahead
    assert "mendgraph.nodes.guard.policy" not in ahead
    assert not {
        "mendgraph.graph.machine.build",
        "mendgraph.graph.runs.run",
        "mendgraph.graph.machine.bound_nodes",
        "mendgraph.graph.agent",
    } & set(ahead)


def test_a_name_of_no_pure_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph/runs/run.py", "x.py"]) == 2
    assert capsys.readouterr().err == "no pure file with tests is named graph/runs/run.py or x.py\n"
