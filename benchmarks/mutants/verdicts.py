"""What the tests say of the mutants of one file. It forks, and runs pytest in the forks.

A function's mutant takes its place in a fork of a process that has collected the tests. Those that call the function
are run, up to the first that fails; others do not see the change. Where the function was called while modules were
imported or tests collected, or where the mutant is of a module or class, the module is imported anew with all that
depends on it, and all its tests are run: slower, and the same as a change of the file.
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

from benchmarks.mutants.forks import Ending, Say, forked
from benchmarks.mutants.loading import (
    CALLED,
    Key,
    import_mutated,
    import_noting,
    key_of,
    loaded_caches,
    loaded_functions,
    mutated_code,
)
from benchmarks.mutants.mutation import Mutant
from tests.architecture.product import module_name

OPTIONS: Final = (
    *("-x", "-q", "--tb=no", "--hypothesis-profile=mutants", "--import-mode=importlib"),
    "--assert=plain",  # pytest would import our modules by itself, from their files, as they belong to a plugin of its
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "-p", "no:faulthandler"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
NOT_GREEN: Final = "not green"


class Verdict(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"


@dataclass(frozen=True)
class Judged:
    """A mutant, and which test noticed it; `by` is empty where none did."""

    mutant: Mutant
    verdict: Verdict
    by: str = ""


@dataclass(frozen=True)
class Place:
    """A source file and where its tests are run: `folder` is for what the tests write."""

    root: Path
    file: str
    source: str
    tests: tuple[str, ...]
    """The files of tests; the first is the file's own, where it has one."""
    folder: Path
    ahead: tuple[str, ...]
    """Modules that do not depend on this file, imported once for all of its mutants."""

    @property
    def path(self) -> str:
        """The file's absolute name, as its code objects have it."""
        return str(self.root / "mendgraph" / self.file)

    def arguments(self, files: Sequence[str]) -> list[str]:
        """How pytest is called for these files of tests."""
        tests = [str(self.root / file) for file in files]
        where = (
            f"--rootdir={self.root}",
            f"--basetemp={self.folder / 'tests'}",
            "-c",
            str(self.root / "pyproject.toml"),
        )
        return [*OPTIONS, *where, *tests]


@dataclass(frozen=True)
class Limits:
    """How long a mutant's tests may take: several times what they take with the original."""

    wall_s: float
    cpu_s: int


def judge(place: Place, mutants: Sequence[Mutant]) -> list[Judged]:
    """What the file's tests say of each of its mutants.

    Raises:
        RuntimeError: the tests are not green without any change, or could not be run.
    """
    ending = forked(lambda say: _judge_loaded(place, mutants, say))
    lines = [json.loads(line) for line in ending.said if line.startswith("{")]
    limits = next((Limits(**line["limits"]) for line in lines if "limits" in line), None)
    if limits is None or ending.status:
        problem = next((line["problem"] for line in lines if "problem" in line), f"status {ending.status}")
        raise RuntimeError(f"{', '.join(place.tests)}: {NOT_GREEN} without a mutant: {problem}")
    judged = {line["mutant"]: line for line in lines if "mutant" in line}
    rest = [number for number in range(len(mutants)) if number not in judged]
    if rest:
        ending = forked(lambda say: _judge_imported(place, mutants, rest, limits, say))
        judged |= {line["mutant"]: line for line in map(json.loads, ending.said)}
    return [Judged(each, Verdict(judged[n]["verdict"]), judged[n]["by"]) for n, each in enumerate(mutants)]


def _judge_loaded(place: Place, mutants: Sequence[Mutant], say: Say) -> None:
    _be_quiet(place.folder)
    import_noting(module_name(place.file), place.path, place.source)
    pytest.main(place.arguments(place.tests), plugins=[_Loaded(place, mutants, say)])


def _judge_imported(place: Place, mutants: Sequence[Mutant], which: Sequence[int], limits: Limits, say: Say) -> None:
    _be_quiet(place.folder)
    for name in place.ahead:
        importlib.import_module(name)
    gc.freeze()
    name = module_name(place.file)
    for number in which:
        text = mutants[number].applied(place.source)

        for tests in filter(None, (place.tests[:1], place.tests[1:])):  # its own first: the others take long to collect

            def run(say: Say, text: str = text, tests: Sequence[str] = tests) -> None:
                import_mutated(name, place.path, text)
                if pytest.main(place.arguments(tests), plugins=[_Telling(say)]):
                    say("pytest")

            ending = forked(run, limits.wall_s + 5, limits.cpu_s + 5)
            if ending.said or ending.status:
                break
        _tell(say, number, ending)


class _Loaded:
    """Takes the place of pytest's loop over the tests: once as they are, then once for each mutant, in forks."""

    def __init__(self, place: Place, mutants: Sequence[Mutant], say: Say) -> None:
        self._place = place
        self._mutants = mutants
        self._say = say

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        ahead = set(CALLED)
        if session.testsfailed or not session.items:
            self._say(json.dumps({"problem": "the tests cannot be collected"}))
            return True
        gc.unfreeze()  # what a conftest may have frozen is not seen either
        functions, caches = loaded_functions(self._place.path), loaded_caches(str(self._place.root))
        gc.freeze()
        unchanged = self._unchanged(session, caches)
        if unchanged is None:
            return True
        limits, callers = unchanged
        self._say(json.dumps({"limits": vars(limits)}))
        tests = list(session.items)
        for number, mutant in enumerate(self._mutants):
            key = key_of(mutant, self._place.source, functions)
            if key is None or key in ahead:
                continue
            code = mutated_code(mutant.applied(self._place.source), self._place.path, key)
            if code is None or any(len(code.co_freevars) != len(each.__code__.co_freevars) for each in functions[key]):
                continue  # it cannot take their place, so it is imported instead
            session.items = [each for each in tests if each.nodeid in callers.get(key, set())] or list(tests)
            ending = forked(_tests(session, functions[key], code), limits.wall_s, limits.cpu_s)
            _tell(self._say, number, ending)
            killer = ending.said[0] if ending.said else ""
            tests.sort(key=lambda each: each.nodeid != killer)  # what noticed one change, notices the next as well
        return True

    def _unchanged(self, session: pytest.Session, caches: Sequence[Any]) -> tuple[Limits, dict[Key, set[str]]] | None:
        """How long the tests may take, and which of them call which function; None where one of them fails."""
        calls = _Calls(caches)
        plain = forked(_tests(session))
        session.config.pluginmanager.register(calls)
        noted = forked(_tests(session, told=lambda say: say(json.dumps(calls.found))))
        session.config.pluginmanager.unregister(calls)
        if plain.said or plain.status or noted.status or not noted.said or not noted.said[0].startswith("["):
            problem = " ".join([*plain.said, *noted.said]) or f"status {plain.status} and {noted.status}"
            self._say(json.dumps({"problem": problem}))
            return None
        callers: dict[Key, set[str]] = {}
        everything = {each.nodeid for each in session.items}
        for test, name, line in json.loads(noted.said[0]):
            callers.setdefault((name, line), set()).update({test} if test else everything)
        return Limits(wall_s=10 + 5 * plain.wall_s, cpu_s=math.ceil(1 + 3 * plain.cpu_s)), callers


def _tests(
    session: pytest.Session,
    functions: Sequence[FunctionType] = (),
    code: CodeType | None = None,
    told: Callable[[Say], None] = lambda _: None,
) -> Callable[[Say], None]:
    """What runs the session's tests in a fork, with this code for the functions, and says which test failed first."""

    def run(say: Say) -> None:
        for function in functions:
            function.__code__ = code or function.__code__
        session.config.pluginmanager.register(_Telling(say))
        _pytest.main.pytest_runtestloop(session)
        told(say)

    return run


class _Calls:
    """Which test calls which function: a list of the test (empty for what several share), the name and the line."""

    def __init__(self, caches: Sequence[Any]) -> None:
        self._caches = caches
        self.found: list[tuple[str, str, int]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        for each in self._caches:
            each.cache_clear()  # else a test that asks again calls nothing
        CALLED.clear()
        result = yield
        self.found += [(item.nodeid, *key) for key in sorted(CALLED)]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = set(CALLED)
        CALLED.clear()
        result = yield
        self.found += [("", *key) for key in sorted(CALLED)]
        CALLED.update(before)
        return result


class _Telling:
    """Says which test failed first."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._say(report.nodeid)
            os._exit(0)


def _tell(say: Say, number: int, ending: Ending) -> None:
    by = ending.said[0] if ending.said else ""
    verdict = Verdict.TIMEOUT if not ending.in_time else Verdict.KILLED if by or ending.status else Verdict.SURVIVED
    say(json.dumps({"mutant": number, "verdict": verdict, "by": by}))


def _be_quiet(folder: Path) -> None:
    """What the tests print is nobody's; what they write by a relative name is in a folder of theirs."""
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
