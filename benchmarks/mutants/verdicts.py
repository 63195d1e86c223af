"""Run the tests of one file against its mutants, with pytest in forked processes.

Usually, the code of a function is replaced in a fork of a process that has collected the tests, and the tests that call
the function run up to the first failure. If the function was called during imports or collection, or if the mutant
changes a module or class, the module and its dependents are imported again, and all tests run. That is slower, but
equals a change of the file.
"""

import gc
import importlib
import json
import math
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import _pytest.main
import pytest

from benchmarks.mutants.forks import ForkResult, Send, run_in_fork
from benchmarks.mutants.loading import (
    CALLED,
    Key,
    import_mutated,
    import_traced,
    key_of,
    loaded_caches,
    loaded_functions,
    mutated_code,
)
from benchmarks.mutants.mutation import Mutant
from tests.architecture.product import module_name

OPTIONS: Final = (
    *("-x", "-q", "--tb=no", "--hypothesis-profile=mutants", "--import-mode=importlib"),
    "--assert=plain",  # with rewritten assertions, pytest would import mendgraph's modules from their files
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "-p", "no:faulthandler"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


class Verdict(StrEnum):
    """The result of the tests for a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"


@dataclass(frozen=True)
class MutantResult:
    """A mutant and the test that noticed it; `test` is empty for a survivor."""

    mutant: Mutant
    verdict: Verdict
    test: str = ""


@dataclass(frozen=True)
class SourceFile:
    """A source file and its tests, which write to `folder`."""

    root: Path
    file: str
    source: str
    tests: tuple[str, ...]
    """The test files. If there is one that is named after the file, it is the first."""
    folder: Path
    independent_modules: tuple[str, ...]
    """Modules that do not depend on this file, which are imported once for all of its mutants."""

    @property
    def path(self) -> str:
        """The absolute path of the file, as in its code objects."""
        return str(self.root / "mendgraph" / self.file)

    def arguments(self, files: Sequence[str]) -> list[str]:
        """Return pytest's arguments for these test files."""
        return [
            *OPTIONS,
            f"--rootdir={self.root}",
            f"--basetemp={self.folder / 'tests'}",
            "-c",
            str(self.root / "pyproject.toml"),
            *(str(self.root / file) for file in files),
        ]


@dataclass(frozen=True)
class Limits:
    """The time limits of a mutant's tests: a multiple of the time without a mutant."""

    wall_s: float
    cpu_s: int


def judge_mutants(file: SourceFile, mutants: Sequence[Mutant]) -> list[MutantResult]:
    """Run the file's tests against each of its mutants.

    Raises:
        RuntimeError: The tests fail without a mutant, or cannot run.
    """
    fork = run_in_fork(lambda send: _judge_loaded(file, mutants, send))
    messages = [json.loads(line) for line in fork.lines if line.startswith("{")]

    limits = next((Limits(**message["limits"]) for message in messages if "limits" in message), None)
    if limits is None or fork.status:
        problem = next((message["problem"] for message in messages if "problem" in message), f"status {fork.status}")
        raise RuntimeError(f"{', '.join(file.tests)}: the tests fail without a mutant: {problem}")

    verdicts = {message["mutant"]: message for message in messages if "mutant" in message}
    remaining = [number for number in range(len(mutants)) if number not in verdicts]
    if remaining:
        fork = run_in_fork(lambda send: _judge_imported(file, mutants, remaining, limits, send))
        for message in map(json.loads, fork.lines):
            verdicts[message["mutant"]] = message

    results = []
    for number, mutant in enumerate(mutants):
        message = verdicts[number]
        results.append(MutantResult(mutant, Verdict(message["verdict"]), message["test"]))
    return results


def _judge_loaded(file: SourceFile, mutants: Sequence[Mutant], send: Send) -> None:
    """Test the mutants whose code can be replaced in a loaded function."""
    _redirect_output(file.folder)
    import_traced(module_name(file.file), file.path, file.source)
    pytest.main(file.arguments(file.tests), plugins=[_MutantLoop(file, mutants, send)])


def _judge_imported(
    file: SourceFile, mutants: Sequence[Mutant], numbers: Sequence[int], limits: Limits, send: Send
) -> None:
    """Test the mutants with these numbers, whose module is imported again."""
    _redirect_output(file.folder)
    for module in file.independent_modules:
        importlib.import_module(module)
    gc.freeze()

    name = module_name(file.file)
    # The first test file is tried alone, because the others are slow to collect.
    groups = [tests for tests in (file.tests[:1], file.tests[1:]) if tests]
    for number in numbers:
        text = mutants[number].apply(file.source)
        for tests in groups:

            def run(send: Send, text: str = text, tests: Sequence[str] = tests) -> None:
                import_mutated(name, file.path, text)
                if pytest.main(file.arguments(tests), plugins=[_FirstFailure(send)]):
                    send("pytest")

            fork = run_in_fork(run, limits.wall_s + 5, limits.cpu_s + 5)
            if fork.lines or fork.status:
                break
        _send_verdict(send, number, fork)


class _MutantLoop:
    """A plugin that replaces pytest's loop over the tests: one without a mutant, then one for each mutant, in forks."""

    def __init__(self, file: SourceFile, mutants: Sequence[Mutant], send: Send) -> None:
        self._file = file
        self._mutants = mutants
        self._send = send

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        early_calls = set(CALLED)
        if session.testsfailed or not session.items:
            self._send(json.dumps({"problem": "the tests cannot be collected"}))
            return True

        gc.unfreeze()  # frozen objects are missing from `gc.get_objects`
        functions = loaded_functions(self._file.path)
        caches = loaded_caches(str(self._file.root))
        gc.freeze()

        control = self._run_control(session, caches)
        if control is None:
            return True
        limits, callers = control
        self._send(json.dumps({"limits": vars(limits)}))

        tests = list(session.items)
        for number, mutant in enumerate(self._mutants):
            key = key_of(mutant, self._file.source, functions)
            if key is None or key in early_calls:
                continue
            code = mutated_code(mutant.apply(self._file.source), self._file.path, key)
            if code is None or not _can_replace(code, functions[key]):
                continue

            session.items = [test for test in tests if test.nodeid in callers.get(key, set())] or list(tests)
            fork = run_in_fork(_run_tests(session, functions[key], code), limits.wall_s, limits.cpu_s)
            _send_verdict(self._send, number, fork)
            killer = fork.lines[0] if fork.lines else ""
            tests.sort(key=lambda test: test.nodeid != killer)  # it is likely to notice the next mutant as well
        return True

    def _run_control(self, session: pytest.Session, caches: Sequence[Any]) -> tuple[Limits, dict[Key, set[str]]] | None:
        """Run the tests without a mutant; return the limits and the tests that call each function, None on failure."""
        plain = run_in_fork(_run_tests(session))

        calls = _Calls(caches)
        session.config.pluginmanager.register(calls)
        traced = run_in_fork(_run_tests(session, finish=lambda send: send(json.dumps(calls.calls))))
        session.config.pluginmanager.unregister(calls)

        has_calls = bool(traced.lines) and traced.lines[0].startswith("[")
        if plain.lines or plain.status or traced.status or not has_calls:
            problem = " ".join([*plain.lines, *traced.lines]) or f"status {plain.status} and {traced.status}"
            self._send(json.dumps({"problem": problem}))
            return None

        callers: dict[Key, set[str]] = {}
        all_tests = {test.nodeid for test in session.items}
        for test, name, line in json.loads(traced.lines[0]):
            callers.setdefault((name, line), set()).update({test} if test else all_tests)
        return Limits(wall_s=10 + 5 * plain.wall_s, cpu_s=math.ceil(1 + 3 * plain.cpu_s)), callers


def _can_replace(code: CodeType, functions: Sequence[FunctionType]) -> bool:
    """Whether the code can replace that of the functions: they must have the same number of free variables."""
    return all(len(code.co_freevars) == len(function.__code__.co_freevars) for function in functions)


def _run_tests(
    session: pytest.Session,
    functions: Sequence[FunctionType] = (),
    code: CodeType | None = None,
    finish: Callable[[Send], None] = lambda _: None,
) -> Callable[[Send], None]:
    """Return a function for a fork: it replaces the code, runs the tests, and sends the first failure."""

    def run(send: Send) -> None:
        for function in functions:
            function.__code__ = code or function.__code__
        session.config.pluginmanager.register(_FirstFailure(send))
        _pytest.main.pytest_runtestloop(session)
        finish(send)

    return run


class _Calls:
    """A plugin that records the calls of functions by tests: the test, the function's name and its line.

    The test is empty for calls of fixtures that several tests share.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self._caches = caches
        self.calls: list[tuple[str, str, int]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        for cached_function in self._caches:
            cached_function.cache_clear()  # otherwise a cached result would hide a call
        CALLED.clear()
        result = yield
        self.calls += [(item.nodeid, *key) for key in sorted(CALLED)]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = set(CALLED)
        CALLED.clear()
        result = yield
        self.calls += [("", *key) for key in sorted(CALLED)]
        CALLED.update(before)
        return result


class _FirstFailure:
    """A plugin that sends the first failing test and exits."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._send(report.nodeid)
            os._exit(0)


def _send_verdict(send: Send, number: int, fork: ForkResult) -> None:
    test = fork.lines[0] if fork.lines else ""
    if not fork.in_time:
        verdict = Verdict.TIMEOUT
    elif test or fork.status:
        verdict = Verdict.KILLED
    else:
        verdict = Verdict.SURVIVED
    send(json.dumps({"mutant": number, "verdict": verdict, "test": test}))


def _redirect_output(folder: Path) -> None:
    """Discard the output of the tests, and change to `folder`, where they write files with relative names."""
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
