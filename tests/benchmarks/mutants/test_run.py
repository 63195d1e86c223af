import importlib
import sys
from pathlib import Path

import pytest

from benchmarks.mutants.loading import CALLED, import_noting
from benchmarks.mutants.run import _independent_of, files_to_mutate, main, package_tests
from benchmarks.mutants.verdicts import Place
from mendgraph.nodes.heal import healing
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


def test_files_tests_are_those_of_its_package_the_attacks_on_it_and_the_specs_that_name_it() -> None:
    found = package_tests("nodes/guard/policy.py")
    assert {"tests/nodes/guard/test_policy.py", "tests/nodes/guard/test_paths.py"} < set(found)
    assert all(each.startswith("tests/nodes/guard/") for each in found)
    assert "tests/specs/test_spec_1_extraction.py" in package_tests("nodes/heal/healing.py")


def test_what_is_changed_is_what_the_tests_import(tmp_path: Path) -> None:
    place = Place(ROOT, "nodes/heal/healing.py", "", (), tmp_path, ())
    assert place.path == healing.next_attempt.__code__.co_filename


def test_functions_note_that_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
if True:
    class A:
        @property
        def one(self):
            "What it is."
            return lambda: 1

        def two(self): ...
"""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    import_noting("a_noting_module", "a_noting_module.py", text)
    try:
        one = importlib.import_module("a_noting_module").A().one
        assert (one(), CALLED) == (1, {("A.one", 4)})
    finally:
        del sys.modules["a_noting_module"]
        CALLED.clear()


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


def test_name_of_no_pure_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph/runs/run.py", "x.py"]) == 2
    assert capsys.readouterr().err == "no pure file with tests is named graph/runs/run.py or x.py\n"
