import pytest

from benchmarks.mutants.run import _independent_of, choose, files_to_mutate, main, package_tests, parse
from tests.architecture.house import ROOT, is_pure


def test_files_are_chosen_by_pattern_among_the_pure_ones() -> None:
    assert files_to_mutate(["nodes/heal/h*.py", "graph/machine/routes.py"]) == [
        "graph/machine/routes.py",
        "nodes/heal/healing.py",
    ]
    assert files_to_mutate(["graph/runs/session.py", "README.md"]) == []
    every = files_to_mutate([])
    assert len(every) > 200
    assert all(is_pure(path) and (ROOT / path).is_file() for path in every)


def test_a_files_tests_are_those_of_its_package_and_the_attacks_on_it() -> None:
    found = package_tests("nodes/guard/policy.py")
    assert {"tests/nodes/guard/test_policy.py", "tests/nodes/guard/test_paths.py"} < set(found)
    assert "tests/nodes/guard/attacks/test_policy_paths_among_others.py" in found
    assert all(each.startswith("tests/nodes/guard/") for each in found)


def test_a_sample_is_of_all_files() -> None:
    files = ["nodes/loop_check/node.py", "nodes/loop_check/repetition.py"]
    every = choose(files, None)
    some = choose(files, 20)
    assert [each.file for each in some] == files
    assert sum(len(each.mutants) for each in some) == 20
    assert all(set(few.mutants) < set(all_.mutants) for few, all_ in zip(some, every, strict=True))


def test_modules_that_depend_on_the_mutated_one_are_not_imported_before_it() -> None:
    ahead = _independent_of("mendgraph.nodes.guard.policy")
    assert "mendgraph.nodes.records" in ahead
    assert "mendgraph.nodes.guard.paths" in ahead
    assert "mendgraph.nodes.guard.policy" not in ahead
    assert not {
        "mendgraph.graph.machine.build",
        "mendgraph.graph.runs.run",
        "mendgraph.graph.machine.bound_nodes",
        "mendgraph.graph.agent",
    } & set(ahead)


def test_the_bounds_of_the_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--jobs", "0"], ["--sample", "0"]):
        with pytest.raises(SystemExit) as ended:
            parse(arguments)
        assert ended.value.code == 2
        assert "--sample and --jobs are 1 at least" in capsys.readouterr().err


def test_a_name_of_no_pure_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph/runs/session.py", "x.py"]) == 2
    assert capsys.readouterr().err == "no pure file with tests is named graph/runs/session.py or x.py\n"
