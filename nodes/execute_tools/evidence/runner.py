"""The program that runs examples and tests inside the sandbox. The agent never imports it.

The Python of the workspace (3.9 or newer) runs it, with the standard library only. `python -B runner.py tests REQUEST`
runs a test file in the folder of its project, with pytest if that is installed, else with unittest, including functions
`test_...` without parameters. The request is `{"root": "/workspace", "path": "test_a.py", "lines": {"a.py": [3, 4]},
"changed": ["Case.test_b"]}`. The answer has `passed` (a count), `failed` (messages by test), `near` (failing tests that
ran a changed line), `changed` (passing tests of the request, with the lines that they ran), `passing` (other tests),
their `lines`, `skipped`, and `error` (why nothing ran).

`python -I -B runner.py examples REQUEST` runs examples of modules. The request is a JSON file:

{"root": "/workspace", "seconds": 5.0, "modules": [{"path": "pkg/a.py", "text": "..." or null, "groups": [[...]]}]}

`text` replaces the file. Examples of a group share variables. The answer has an entry for each module:
`{"loaded": true, "results": [["passed", ""]], "lines": [3]}`, or `error` and `own`: whether its code is the reason.
"""

from __future__ import annotations

import ast
import doctest
import importlib.machinery
import importlib.util
import inspect
import io
import json
import math
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
import types
import unittest
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_COMPLETED = (0, 1, 2)  # pytest's exit codes where failures, if there are any, are reported one by one
_NOTHING_COLLECTED = 5
LONGEST_OUTPUT = 2_000  # characters of the output of a failing test
MOST_DETAILED = 20  # failing tests with more of their output than its end
MOST_NAMED = 400_000  # characters of the names of passing tests
LONGEST = 300  # characters of a value or an error message in the answer
MOST_AT_ONCE = 16  # processes of modules
MOST_MEMORY = 4_294_967_296  # bytes of address space of each module's process
UNDECIDED = (ImportError, OSError, EOFError, MemoryError, SyntaxError)
"""Errors that may come from the sandbox: no network, no input, nothing to write to, another Python."""

Result = tuple[str, str]
"""A status (passed, different, raised, endless, unknown), and the value or the error."""


class TextLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def path_stats(self, path: Any) -> Any:
        """Raise OSError, so that no compiled file is used."""
        raise OSError(path)

    def get_data(self, _path: Any) -> bytes:
        return self.text.encode()


class TextFinder:
    """Loads the text if an import finds the file."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module of this name if its file is the one."""
        tail = name.rpartition(".")[2]

        for folder in sys.path if path is None else path:
            for file in (os.path.join(folder, tail, "__init__.py"), os.path.join(folder, tail + ".py")):
                if file == self.path:
                    return self.spec(name)
                if os.path.isfile(file):
                    return None
        return None

    def spec(self, name: str) -> importlib.machinery.ModuleSpec | None:
        folders = None
        if self.path.endswith("/__init__.py"):
            folders = [os.path.dirname(self.path)]

        loader = TextLoader(name, self.path, self.text)
        return importlib.util.spec_from_file_location(
            name, self.path, loader=loader, submodule_search_locations=folders
        )


class Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Return whether it is the same, or the same value in other quotes or on other lines."""
        passed = super().check_output(want, got, optionflags)
        with suppress(Exception):  # most outputs are no literals
            return passed or repr(ast.literal_eval(want)) == repr(ast.literal_eval(got))
        return passed


class Recorder(doctest.DocTestRunner):
    def __init__(self, tell: Any, path: str) -> None:
        super().__init__(Checker(), verbose=False)
        self.tell = tell
        self.path = path

    def report_start(self, *_: Any) -> None:
        self.tell("began", "")

    def report_success(self, *_: Any) -> None:
        self.tell("passed", "")

    def report_failure(self, *details: Any) -> None:
        """See `Result`; the last argument is the output, with the traceback of an error."""
        example, got = details[-2:]
        got = got.strip()
        if "Traceback (most recent call last):" in got:
            self.tell("raised", got.splitlines()[-1][:LONGEST])
        elif example.want:
            self.tell("different", shortened(got))
        else:  # the example shows no value
            self.tell("unknown", shortened(got))

    def report_unexpected_exception(self, *details: Any) -> None:
        self.tell(*raised(details[-1][1], self.path))


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, floats except for their last digits; True and 1 are not."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other))  # noqa: B905 - Python 3.9
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def may_be_meant(example: dict[str, Any], got: Any) -> bool:
    """Return whether documentation may mean the value: an iterator, or a rounded number."""
    rounded = isinstance(got, float) and f"{got:.{len(example['want'].rpartition('.')[2])}f}" == example["want"]
    return example["origin"] == "docstring" and (rounded or hasattr(got, "__next__"))


def raised(error: BaseException, path: str) -> Result:
    """Return the result of an unexpected exception, unknown if the code under test may not be the reason."""
    last = [frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    elsewhere = not last or (last[0] != path and isinstance(error, (NameError, AttributeError)))
    is_asked = bool(last) and last[0].startswith("<") and isinstance(error, AttributeError)

    if isinstance(error, UNDECIDED) or (elsewhere and not is_asked):
        return ("unknown", words(error))
    return ("raised", words(error))


def words(error: BaseException) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()[:LONGEST]


def shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST] + "..."


def packages(root: str, path: str) -> tuple[str, list[str]]:
    """Return the folder of the outermost package of the file, and the parts of the module's name."""
    folder, file = os.path.split(os.path.join(root, path))
    parts = [] if file == "__init__.py" else [file[:-3]]
    while folder.startswith(root + "/") and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    return folder, parts


def load(root: str, path: str, text: str | None) -> types.ModuleType:
    """Import the module of the file under its own name."""
    top, parts = packages(root, path)
    file = os.path.join(root, path)
    sys.path[:0] = list(dict.fromkeys([top, root, os.path.join(root, "src")]))
    sys.path.append(os.path.dirname(file))

    if text is None:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            text = stream.read()

    finder = TextFinder(file, text)
    sys.meta_path.insert(0, finder)
    name = ".".join(parts)
    is_taken = not parts or parts[0] in sys.modules or parts[0] in getattr(sys, "stdlib_module_names", ())

    if not is_taken and all(part.isidentifier() for part in parts):
        module = importlib.import_module(name)
        if getattr(module, "__file__", None) == file:
            return module

    spec = finder.spec("checked_module")
    if spec is None or spec.loader is None:
        raise ImportError(path)

    module = importlib.util.module_from_spec(spec)
    sys.modules["checked_module"] = module
    spec.loader.exec_module(module)
    return module


def run_group(examples: list[dict[str, Any]], module: types.ModuleType, tell: Any, path: str) -> None:
    names = dict(vars(module))

    if examples[0]["kind"] != "output":
        for example in examples:
            tell("began", "")
            sys.stdout = io.StringIO()
            tell(*value_result(example, names, path))
        return

    lines: list[doctest.Example] = []
    for example in examples:
        options = {int(flag): on for flag, on in example["options"]}
        lines.append(doctest.Example(example["source"], example["want"], example["raises"], options=options))

    test = doctest.DocTest(lines, names, "example", None, None, None)
    Recorder(tell, path).run(test, out=lambda _: None, clear_globs=False)


def value_result(example: dict[str, Any], names: dict[str, Any], path: str) -> Result:
    """Return the result of an example that expects a value or an error."""
    kind = example["kind"]
    want = example["want"]

    try:
        got = eval(compile(example["source"].strip(), "<example>", "eval"), names)  # noqa: S307 - that is the task
    except BaseException as error:  # noqa: BLE001 - whatever the code does is a result
        if kind == "raises" and any(error_class.__name__ == want for error_class in type(error).__mro__):
            return ("passed", "")
        return raised(error, path)

    if kind == "raises":
        return ("different", shortened(repr(got)))

    try:
        expected = eval(compile(want.strip(), "<example>", "eval"), names)  # noqa: S307 - that is the task
        if same(got, expected):
            return ("passed", "")
        if may_be_meant(example, got):
            return ("unknown", shortened(repr(got)))
        return ("different", shortened(repr(got)))
    except BaseException as error:  # noqa: BLE001 - the same
        return ("unknown", words(error))


def child(root: str, module: dict[str, Any], out: int) -> None:
    """Load one module, run its examples, and write each result as a line to `out`."""
    own_process = os.getpid()

    def tell(status: str, text: str) -> None:
        if os.getpid() == own_process:  # not from a fork of the code
            os.write(out, json.dumps([status, text]).encode() + b"\n")

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    sys.stdout = sys.stderr = io.StringIO()
    with suppress(ValueError):  # there is a lower bound already
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))

    file = os.path.join(root, module["path"])
    trace = Trace({file: module.get("lines", [])})

    try:
        loaded = load(root, module["path"], module["text"])
    except BaseException as error:  # noqa: BLE001 - whatever the code does is a result
        last = [frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:]]
        is_own = last == [file] and not isinstance(error, (SystemExit, AttributeError, *UNDECIDED))
        tell("own" if is_own else "foreign", words(error))
        return
    tell("loaded", "")
    for group in module["groups"]:
        run_group(group, loaded, tell, file)

    for number in sorted(trace.executed.get(file, ())):
        tell("line", str(number))
    tell("ended", "")


def start(root: str, module: dict[str, Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    number = os.fork()

    if number == 0:
        try:
            os.close(reader)
            child(root, module, writer)
        finally:
            os._exit(0)
    os.close(writer)
    return number, reader


def answer(lines: bytes, count: int, *, ended: bool) -> dict[str, Any]:
    """Return the entry of the answer for the output of a process, which may be cut off unless it has `ended`."""
    messages: list[list[str]] = list(map(json.loads, lines.split(b"\n")[:-1]))
    status, text = messages[0] if messages else ("foreign", "")
    if status != "loaded":
        return {"loaded": False, "own": status == "own", "error": text, "results": []}

    results: list[list[str]] = []
    lines_run: list[int] = []
    for status, text in messages:
        if status == "line":
            lines_run.append(int(text))
        elif status not in ("loaded", "began", "ended"):
            results.append([status, text])

    if status == "began" and not ended and len(results) < count:
        results.append(["endless", ""])

    results += [["unknown", ""]] * (count - len(results))
    return {"loaded": True, "own": True, "error": "", "results": results[:count], "lines": lines_run}


def run(request: dict[str, Any]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + request["seconds"]
    modules = request["modules"]
    counts = [sum(map(len, module["groups"])) for module in modules]
    contents = [b""] * len(modules)
    running: dict[int, tuple[int, int]] = {}  # by the pipe of each: which module, and its process
    started = 0

    while (running or started < len(modules)) and time.monotonic() < deadline:
        while len(running) < MOST_AT_ONCE and started < len(modules):
            number, reader = start(request["root"], modules[started])
            running[reader] = (started, number)
            started += 1

        for reader in select.select(list(running), [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = os.read(reader, 65_536)
            place, number = running[reader]
            contents[place] += chunk

            if not chunk:
                del running[reader]
                end(number, reader)

    unended = {place for place, _ in running.values()}
    for reader, (_, number) in running.items():
        end(number, reader)
    return [answer(contents[place], count, ended=place not in unended) for place, count in enumerate(counts)]


def end(number: int, reader: int) -> None:
    os.close(reader)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


class Trace:
    """Records which of some lines are executed in this process, and the tests that execute any (`near`).

    Lines of tests that are `changed` are recorded for each test in `by_test`, others in `executed`.
    """

    def __init__(self, lines: dict[str, list[int]], changed: Sequence[str] = ()) -> None:
        self.lines = {os.path.realpath(path): frozenset(numbers) for path, numbers in lines.items() if numbers}
        self.executed: dict[str, set[int]] = {}
        self.near: set[str] = set()
        self.changed = frozenset(changed)
        self.by_test: dict[str, dict[str, set[int]]] = {}
        self.test = ""
        monitoring = getattr(sys, "monitoring", None)

        if not self.lines:
            return

        if monitoring is None:
            sys.settrace(self.called)
            threading.settrace(self.called)
        else:
            monitoring.use_tool_id(monitoring.PROFILER_ID, "mendgraph")
            monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.LINE, self.monitored)
            monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.LINE)

    def called(self, frame: Any, *_: Any) -> Any:
        if frame.f_code.co_filename in self.lines:
            return self.traced
        return None

    def traced(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            self.monitored(frame.f_code, frame.f_lineno)
        return self.traced

    def monitored(self, code: types.CodeType, line: int) -> Any:
        if line not in self.lines.get(code.co_filename, ()):
            if hasattr(sys, "monitoring"):
                return sys.monitoring.DISABLE
            return None

        if key_of(self.test) in self.changed:
            lines_run = self.by_test.setdefault(self.test, {})
        else:
            lines_run = self.executed

        lines_run.setdefault(code.co_filename, set()).add(line)
        self.near.add(self.test)
        return None


class Tests(unittest.TestResult):
    """The result of each test: a plugin of pytest, and the result of unittest; paths are relative to `root`."""

    def __init__(self, trace: Trace, root: str) -> None:
        super().__init__()
        self.trace, self.root = trace, root
        self.passing = list[str]()
        self.failed = dict[str, str]()
        self.skips: Counter[str] = Counter()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.trace.test = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.passing.append(report.nodeid)

        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid, report.longreprtext)
        elif report.skipped and not hasattr(report, "wasxfail"):
            reason = ""
            if isinstance(report.longrepr, tuple):
                reason = report.longrepr[2]

            self.skips[reason.replace("Skipped: ", "", 1)] += 1

    def fail(self, test: str, output: str) -> None:
        longest = LONGEST_OUTPUT if len(self.failed) < MOST_DETAILED else LONGEST
        self.failed.setdefault(test, output.replace(f"{self.root}/", "")[-longest:])

    def startTest(self, test: Any) -> None:  # noqa: N802 - unittest's name
        self.trace.test = name_of(test)
        super().startTest(test)

    def addSuccess(self, test: Any) -> None:  # noqa: N802 - unittest's name
        self.passing.append(name_of(test))

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802 - unittest's name
        self.fail(name_of(test), f"UNEXPECTED SUCCESS: {name_of(test)}")


def name_of(test: Any) -> str:
    """Return the name in the file: `Case.test_a`, or `test_a` for a function."""
    return str(test.id()).replace("checked_tests.", "", 1)


def key_of(test: str) -> str:
    """Return the name of a test in the form of a request: `Case.test_a`, or `test_a` for a function."""
    name = (test.partition(".py::")[2] or test).partition("[")[0]
    return ".".join(name.replace("::", ".").split(".")[-2:])


def run_tests(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tests of one file and return the answer."""
    root = request["root"]
    path = request["path"]
    file = os.path.relpath(os.path.join(root, path))
    changed = request["lines"]
    sys.path[:0] = [os.getcwd(), os.path.abspath("src"), os.path.dirname(os.path.join(root, path)), root]
    trace = Trace({os.path.join(root, name): numbers for name, numbers in changed.items()}, request["changed"])
    trace.test = path  # the name of a file that cannot be loaded
    tests = Tests(trace, root)

    if importlib.util.find_spec("pytest") is None:
        runner = "unittest"
        error = with_unittest(file, tests)
    else:
        runner = "pytest"
        error = with_pytest(file, tests)

    if tests.skips and not tests.passing:
        error = ""
    places = {name: os.path.realpath(os.path.join(root, name)) for name in changed}

    def lines(executed: dict[str, set[int]]) -> dict[str, list[int]]:
        return {name: sorted(executed.get(place, ())) for name, place in places.items()}

    passing: list[str] = []
    changed_tests: dict[str, dict[str, list[int]]] = {}
    for name in dict.fromkeys(tests.passing):
        if name in tests.failed:
            continue
        if key_of(name) in trace.changed:
            changed_tests[name] = lines(trace.by_test.get(name, {}))
        else:
            passing.append(name)
    return {
        "name": f"{runner} {path}",
        "error": error,
        "passed": len(passing) + len(changed_tests),
        "failed": tests.failed,
        "lines": lines(trace.executed),
        "near": [test for test in tests.failed if test in trace.near],
        "passing": passing[: MOST_NAMED // max(map(len, [*passing, "-"]))],
        "changed": changed_tests,
        "skipped": sum(tests.skips.values()),
        "skip_reason": shortened(max(tests.skips, key=tests.skips.__getitem__, default="")),
    }


def with_pytest(file: str, tests: Tests) -> str:
    """Run the tests in this process without coverage and xdist; return why they cannot be run."""
    import pytest

    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist"):
        options += ["-n", "0"]
    if importlib.util.find_spec("pytest_cov"):
        options.append("--no-cov")

    code = int(pytest.main([*options, file], plugins=[tests]))

    if code in _COMPLETED or tests.failed:
        return ""
    if code == _NOTHING_COLLECTED:
        return "it has no tests"
    return f"pytest could not start (exit code {code})"


def with_unittest(file: str, tests: Tests) -> str:
    """Run the tests in this process, without those that need pytest; return why they cannot be run."""
    spec = importlib.util.spec_from_file_location("checked_tests", file)
    if spec is None or spec.loader is None:
        return "it is not Python"

    module = importlib.util.module_from_spec(spec)
    sys.modules["checked_tests"] = module

    try:
        spec.loader.exec_module(module)
    except Exception:  # noqa: BLE001 - whatever the code does is a result
        tests.fail(file, traceback.format_exc(limit=-3))
        return ""

    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    skipped = 0

    for name, value in vars(module).items():
        if name.startswith("test") and inspect.isfunction(value):
            needs_loop = inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
            if inspect.signature(value).parameters or needs_loop:
                skipped += 1
            else:
                suite.addTest(unittest.FunctionTestCase(value))
        elif name.startswith("Test") and inspect.isclass(value) and not issubclass(value, unittest.TestCase):
            skipped += sum(method.startswith("test") for method in vars(value))

    if not suite.countTestCases():
        return "it has no tests that unittest can run, and pytest is not installed"

    suite.run(tests)
    tests.skips["pytest is not installed"] += skipped
    for test, details in (*tests.errors, *tests.failures):
        tests.fail(name_of(test), f"FAIL: {name_of(test)}\n{details}")

    tests.skips.update(reason for _, reason in tests.skipped)
    tests.skips = +tests.skips
    return ""


def main(kind: str, path: str) -> None:
    """Write the answer to the standard output; the output of the code goes to the standard error."""
    with open(path, encoding="utf-8") as file:
        request = json.load(file)

    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        answers: Any = run_tests(request) if kind == "tests" else run(request)
        out.write(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
