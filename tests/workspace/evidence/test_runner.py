"""The program as it is started, but without a sandbox; test_checks tests it in the sandbox."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from mendgraph.nodes.execute_tools.evidence import runner
from mendgraph.nodes.execute_tools.evidence.runner import LONGEST, answer
from tests.extent import slow
from tests.row_tables import rows


def example(source: str, want: str = "", kind: str = "value", raises: str | None = None, *flags: int) -> dict[str, Any]:
    options = [[flag, True] for flag in flags]
    return {"source": source, "want": want, "kind": kind, "raises": raises, "origin": "task", "options": options}


def doc(source: str, want: str = "", raises: str | None = None, *flags: int) -> dict[str, Any]:
    return example(f"{source}\n", f"{want}\n" if want else "", "output", raises, *flags)


def module(path: str, *groups: list[dict[str, Any]], text: str | None = None) -> dict[str, Any]:
    return {"path": path, "text": text, "groups": list(groups)}


def start(program: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p no:langsmith_plugin"}  # which takes a second to start
    return subprocess.run(
        program,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


class Bench:
    """A folder with modules."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, **files: str) -> None:
        for name, text in files.items():
            path = self.root / f"{name.replace('__', '/', 1)}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def run(self, *modules: dict[str, Any], seconds: float = 20.0) -> list[dict[str, Any]]:
        request = self.root.parent / "request.json"
        payload = {"root": str(self.root), "seconds": seconds, "modules": modules}
        request.write_text(json.dumps(payload))
        program = [sys.executable, "-I", "-B", runner.__file__, "examples", str(request)]
        done = start(program, self.root)
        assert done.stderr == ""
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results

    def results(self, code: str, *groups: list[dict[str, Any]], seconds: float = 20.0) -> list[list[str]]:
        self.put(mod=code)
        (entry,) = self.run(module("mod.py", *groups), seconds=seconds)
        assert entry["loaded"], entry
        results: list[list[str]] = entry["results"]
        return results


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "ws").mkdir()
    return Bench((tmp_path / "ws").resolve())


CODE = """
import os, sys, collections
class Box(Exception): pass
def add(a, b): return a - b
def pair(): return (1, 2.0)
def third(): return 0.1 + 0.2
def fail(): raise ValueError("no")
def box(): raise Box("shut")
def unknown(): return nothing_here
def asks(): return input()
def writes(): return open("/nowhere/at/all", "w")
def needs(): import no_such_module_at_all
def ends(): sys.exit(3)
def loud(): print("out"); print("err", file=sys.stderr); os.write(1, b"raw"); return 1
"""

NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all'"
NO_MODULE = "ModuleNotFoundError: No module named 'no_such_module_at_all'"
NOT_THERE = "NameError: name 'not_there' is not defined"
TRACEBACK = "Traceback (most recent call last):\nValueError: "
THIRDS = "0.6666666666666666"
EXAMPLES: list[tuple[dict[str, Any], list[Any]]] = [
    (example("add(2, 3)", "5"), ["different", "-1"]),
    (example("add(2, 3)", "-1"), ["passed", ""]),
    (example("pair()", "[1, 2]"), ["different", "(1, 2.0)"]),
    (example("third()", "0.3"), ["passed", ""]),
    (example("True", "1"), ["different", "True"]),
    (example("float('nan')", "float('nan')"), ["passed", ""]),
    (example("fail()", "1"), ["raised", "ValueError: no"]),
    (example("unknown()", "1"), ["raised", "NameError: name 'nothing_here' is not defined"]),
    (example("not_there()", "1"), ["unknown", NOT_THERE]),
    (example("add(1, 1)", "not_there"), ["unknown", NOT_THERE]),
    (example("asks()", "1"), ["unknown", "EOFError: EOF when reading a line"]),
    (example("writes()", "1"), ["unknown", NO_FILE]),
    (example("needs()", "1"), ["unknown", NO_MODULE]),
    (example("ends()", "1"), ["raised", "SystemExit: 3"]),
    (example("fail()", "ValueError", "raises"), ["passed", ""]),
    (example("box()", "ValueError", "raises"), ["raised", "mod.Box: shut"]),
    (example("add(1, 1)", "ValueError", "raises"), ["different", "0"]),
    (example("needs()", "ImportError", "raises"), ["passed", ""]),
    (example("loud()", "1"), ["passed", ""]),
    (example("'x' * 1000", "1"), ["different", "'" + "x" * (LONGEST - 1) + "..."]),
    (doc("add(2, 3)", "5"), ["different", "-1"]),
    (doc("add(2, 3)", "-1.0"), ["different", "-1"]),
    (doc("print('a  b')", "a b", None, 4), ["passed", ""]),
    (doc("print('a 1 b')", "a ... b"), ["different", "a 1 b"]),
    (doc("fail()", f"{TRACEBACK}no", "ValueError: no\n"), ["passed", ""]),
    (doc("fail()", f"{TRACEBACK}yes", "ValueError: yes\n"), ["raised", "ValueError: no"]),
    (doc("fail()", "1"), ["raised", "ValueError: no"]),
    (doc("not_there", "1"), ["unknown", NOT_THERE]),
    (doc("add.no", "1"), ["raised", "AttributeError: 'function' object has no attribute 'no'"]),
    (doc("x = 1"), ["passed", ""]),
    (doc("add(2, 3)"), ["unknown", "-1"]),
    (doc("['a', 'b']", '["a",\n "b"]'), ["passed", ""]),
    ({**example("2 / 3", "0.67"), "origin": "docstring"}, ["unknown", THIRDS]),
    ({**example("2 / 3", "0.66"), "origin": "docstring"}, ["different", THIRDS]),
    ({**example("iter([1])", "[1]"), "origin": "docstring"}, ["unknown", ANY]),
]


def test_result_of_each_example_is_reported(bench: Bench) -> None:
    results = bench.results(CODE, *[[case] for case, _ in EXAMPLES])
    wrong = [
        (case["source"], answer) for (case, result), answer in zip(EXAMPLES, results, strict=True) if answer != result
    ]
    assert wrong == []


def test_forked_process_reports_no_results(bench: Bench) -> None:
    code = "import os\nV = os.fork()\nif V: os.waitpid(V, 0)\n"
    assert bench.results(code, [example("V > 0", "True")]) == [["passed", ""]]


def test_examples_share_names_only_within_their_group(bench: Bench) -> None:
    results = bench.results("", [doc("x = 1"), doc("x", "1")], [doc("x", "1")])
    assert results == [["passed", ""], ["passed", ""], ["unknown", "NameError: name 'x' is not defined"]]


@slow
def test_endless_example_is_reported_and_the_rest_is_unknown(bench: Bench) -> None:
    code = "def f():\n    while True: pass\n"
    results = bench.results(code, [example("1", "1")], [example("f()", "1")], [example("1", "1")], seconds=0.7)
    assert results == [["passed", ""], ["endless", ""], ["unknown", ""]]


def test_address_space_of_a_process_is_limited_to_4_gib(bench: Bench) -> None:
    limit = doc("resource.getrlimit(resource.RLIMIT_AS)", "(4294967296, 4294967296)")
    assert bench.results("import resource\n", [limit]) == [["passed", ""]]


COUNTED = """
import os, time
def count(folder="{}"):
    own, most, end = os.path.join(folder, str(os.getpid())), 0, time.monotonic() + 2
    open(own, "w").close()
    while most < 17 and time.monotonic() < end:
        most = max(most, len(os.listdir(folder)))
        time.sleep(0.02)
    os.remove(own)
    return most
"""


@slow
def test_at_most_sixteen_processes_run_in_parallel(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    bench.put(mod=COUNTED.format(tmp_path / "running"))
    runs = bench.run(*[module("mod.py", [doc("count() <= 16", "True")])] * 17)
    assert [run["results"] for run in runs] == [[["passed", ""]]] * 17


def test_replacement_text_is_seen_by_every_importer(bench: Bench) -> None:
    bench.put(pkg____init__="", pkg__a="V = 1\n", pkg__b="from pkg.a import V\ndef f(): return V\n")
    groups = [[example("b.f()", "2")]]
    new = module("pkg/a.py", *groups, text="V = 2\nfrom pkg import b\n")
    old = module("pkg/a.py", [example("V", "1")])
    assert [run["results"] for run in bench.run(new, old)] == [[["passed", ""]], [["passed", ""]]]
    assert sorted(path.name for path in bench.root.rglob("*")) == ["__init__.py", "a.py", "b.py", "pkg"]


def test_file_that_does_not_exist_yet_is_loaded(bench: Bench) -> None:
    bench.put(pkg____init__="", pkg__a="V = 1\n", top="V = 3\n")
    runs = bench.run(
        module("pkg/new.py", [example("V", "1")], text="from .a import V\n"),
        module("scripts/new.py", [example("V", "3")], text="from top import V\n"),
    )
    assert [run["results"] for run in runs] == [[["passed", ""]], [["passed", ""]]]


def test_file_may_have_the_name_of_a_standard_module(bench: Bench) -> None:
    names, examples = ("types", "calendar", "not-a-name"), [example("V", "'ours'")]
    runs = bench.run(*[module(f"{name}.py", examples, text="V = 'ours'\n") for name in names])
    assert [run["results"] for run in runs] == [[["passed", ""]]] * 3


NOT_LOADED: list[tuple[str, bool, str]] = [
    ("x: List[int] = []\n", True, "NameError: name 'List' is not defined"),
    ("1 / 0\n", True, "ZeroDivisionError: division by zero"),
    ("import no_such_module\n", False, "ModuleNotFoundError: No module named 'no_such_module'"),
    ("import sys; sys.exit(1)\n", False, "SystemExit: 1"),
    ("import other\n", False, "NameError: name 'missing' is not defined"),
    ("import os; os.no_such_thing\n", False, "AttributeError: module 'os' has no attribute 'no_such_thing'"),
    ("input()\n", False, "EOFError: EOF when reading a line"),
    ("def f(:\n", False, "SyntaxError: invalid syntax"),
]


def test_import_error_says_whether_the_module_itself_is_at_fault(bench: Bench) -> None:
    bench.put(other="missing\n")
    runs = bench.run(*[module("mod.py", [example("1", "1")], text=code) for code, _, _ in NOT_LOADED])
    assert [(run["own"], run["error"]) for run in runs] == [(at_fault, error) for _, at_fault, error in NOT_LOADED]
    assert not any(run["loaded"] or run["results"] for run in runs)


BEGAN = b'["loaded", ""]\n["began", ""]\n'


@rows(
    (b"", True, (False, False, "", [])),
    (b'["own", "x"]\n', True, (False, True, "x", [])),
    (BEGAN + b'["passed", ""]\n["beg', True, (True, True, "", [["passed", ""], ["unknown", ""]])),
    (BEGAN, False, (True, True, "", [["endless", ""], ["unknown", ""]])),
)
def test_truncated_answer_counts_up_to_its_last_complete_line(
    lines: bytes, ended: bool, entry: tuple[object, ...]
) -> None:
    actual = answer(lines, 2, ended=ended)
    assert (actual["loaded"], actual["own"], actual["error"], actual["results"]) == entry


# --- Tests

PLAIN = "from app import add\ndef test_add(): assert add(2, 3) == 5\ndef test_needs(tmp_path): assert False\n"
UNIT = (
    "import unittest\nfrom app import add\n"
    "class Adding(unittest.TestCase):\n    def test_add(self): self.assertEqual(add(2, 3), 5)\n"
)
SKIPPED = "import unittest\ndef test_a(): pass\n@unittest.skip('')\ndef test_b(): pass\n"
RIGHT, WRONG = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"


OLD = (
    "import pytest\nfrom app import add\n@pytest.mark.parametrize('n', [1, 2])\ndef test_n(n): assert add(n, 1) == 3\n"
)
ASKED: dict[str, Any] = {"path": "test_app.py", "lines": {"app.py": [2]}, "changed": []}


def run_tests(root: Path, *, changed: Sequence[str] = (), unittest_only: bool = False) -> dict[str, Any]:
    (root.parent / "request.json").write_text(json.dumps({**ASKED, "root": str(root), "changed": [*changed]}))
    isolated = ["-S"] if unittest_only else []  # no installed package is seen
    program = [sys.executable, "-B", *isolated, runner.__file__, "tests", str(root.parent / "request.json")]
    report: dict[str, Any] = json.loads(start(program, root).stdout)
    return report


@slow
def test_tests_run_with_pytest_despite_options_of_the_project(bench: Bench) -> None:
    bench.put(app="def add(a, b):\n    return a + b\n", test_app=OLD + "def test_loud(): print('{}')\n")
    (bench.root / "pytest.ini").write_text("[pytest]\naddopts = --cov=app --cov-fail-under=100 -n 2\n")
    report = run_tests(bench.root)
    (failed,) = report.pop("failed").items()
    assert (failed[0], "assert 2 == 3" in failed[1]) == ("test_app.py::test_n[1]", True)
    assert report == {
        "name": "pytest test_app.py",
        "error": "",
        "passed": 2,
        "lines": {"app.py": [2]},
        "near": ["test_app.py::test_n[1]"],
        "passing": ["test_app.py::test_n[2]", "test_app.py::test_loud"],
        "changed": {},
        "skipped": 0,
        "skip_reason": "",
    }


@slow
@rows("pytest", "unittest")
def test_changed_tests_are_reported_with_their_lines_and_skips_are_counted(runner_module: str, bench: Bench) -> None:
    cases = (
        "import unittest\nfrom app import add\nclass Case(unittest.TestCase):\n"
        "    def test_old(self): self.assertEqual(add(2, 3), 5)\n"
        "    def test_new(self): self.assertEqual(add(0, 0), 0)\n"
        "    @unittest.skip('no docker')\n    def test_c(self): pass\n"
        "    @unittest.skip('no docker')\n    def test_d(self): pass\n"
        "    @unittest.expectedFailure\n    def test_e(self): self.fail()\n"
        "    @unittest.expectedFailure\n    def test_f(self): pass\n"
    )
    bench.put(app=RIGHT, test_app=cases)

    report = run_tests(bench.root, changed=["Case.test_new"], unittest_only=runner_module == "unittest")

    old, new, unexpected = (
        [f"Case.{name}" if runner_module == "unittest" else f"test_app.py::Case::{name}"]
        for name in ("test_old", "test_new", "test_f")
    )
    assert (report["passed"], report["passing"], report["changed"]) == (2, old, {new[0]: {"app.py": [2]}})
    assert (report["skipped"], report["skip_reason"], list(report["failed"])) == (2, "no docker", unexpected)


def test_test_that_needs_pytest_is_skipped_without_it(bench: Bench) -> None:
    tests = "async def test_a(): assert 0\ndef test_b(tmp_path): assert 0\ndef test_c(): pass\n"
    bench.put(app=RIGHT, test_app=f"{tests}class TestD:\n    def test_e(self): assert 0\n")

    report = run_tests(bench.root, unittest_only=True)

    assert (report["passed"], report["failed"]) == (1, {})
    assert (report["skipped"], report["skip_reason"]) == (3, "pytest is not installed")


@slow
def test_end_of_each_failure_is_reported_within_bounds(bench: Bench) -> None:
    parameters = "import pytest\n@pytest.mark.parametrize('n', range(22))\n"
    many = f"{parameters}def test_n(n): raise ValueError('x' * 5_000 + 'end')\n"
    bench.put(app="", test_app=many)

    failures = list(run_tests(bench.root)["failed"].values())

    assert all(len(failure) == 2_000 and failure.endswith("end") for failure in failures[:20])
    assert all(len(failure) == 300 and failure.endswith("end") for failure in failures[20:])


@slow
@rows(
    ("import no_such_module\n", "", ["test_app.py"], ""),
    ("x = 1\n", "", [], "it has no tests"),
    ("def test_a(): pass\n", "--no-such-option", [], "pytest could not start (exit code 4)"),
)
def test_file_that_pytest_cannot_run_says_why(
    tests: str, options: str, failed: list[str], error: str, bench: Bench
) -> None:
    bench.put(test_app=tests)
    (bench.root / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n")
    report = run_tests(bench.root)
    assert (list(report["failed"]), report["error"], report["passed"]) == (failed, error, 0)


HELPER = "def test_a(tmp_path): raise ValueError\ndef helper(): raise ValueError\n"


@slow
@rows(
    (WRONG, PLAIN, 0, ["test_add"]),
    (RIGHT, UNIT, 1, []),
    (WRONG, UNIT, 0, ["Adding.test_add"]),
    (RIGHT, SKIPPED, 1, []),
    (RIGHT, "import no_such_module\n", 0, ["test_app.py"]),
    (RIGHT, HELPER, 0, None),
)
def test_tests_run_with_unittest_if_pytest_is_missing(
    app: str, tests: str, passed: int, failed: list[str] | None, tmp_path: Path
) -> None:
    bench = Bench(tmp_path / "ws")
    bench.root.mkdir()
    bench.put(app=app, test_app=tests)
    report = run_tests(bench.root, unittest_only=True)
    why = "it has no tests that unittest can run, and pytest is not installed" if failed is None else ""
    actual = (report["name"], report["passed"], list(report["failed"]), report["error"])
    assert actual == ("unittest test_app.py", passed, failed or [], why)
    assert str(bench.root) not in str(report["failed"])
