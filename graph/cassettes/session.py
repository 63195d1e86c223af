"""What a pytest session knows of its cassettes: which there are tests for, and which of them nobody uses.

It imports nothing heavy: pytest loads it at every start. Under pytest-xdist each worker has its own, and hands what it
knows to the controller's, which alone has a last word.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from graph.cassettes.naming import cassette_name, is_name, unused

if TYPE_CHECKING:
    from graph.cassettes.fixture import Cassette

FIXTURE: Final = "mendgraph_cassette"
"""The name of the fixture, and of the marker with its arguments."""

ARGUMENTS: Final = frozenset({"base_url", "model", "protocol", "edit_form", "allow_hosts"})
"""What the marker takes beside a name."""


class CassetteSession:
    """The account of one session, or of one worker of it."""

    def __init__(self, root: str, folder: str, mode: str, arguments: Iterable[str]) -> None:
        """`folder` has the cassettes; `mode` is "all", "missing" or "" for replay; `arguments` may select tests."""
        self.root, self.folder, self.mode = root, folder, mode
        self.named: set[str] = set()
        self.whole: set[str] = set()
        self.recorded: list[str] = []
        self.problems: list[str] = []
        self._owners: dict[str, str] = {}
        self._narrowed = {self._module(each.partition("::")[0]) for each in arguments if "::" in each}

    def note(self, items: Iterable[pytest.Item]) -> None:
        """Note the cassettes of collected tests, whether or not they will be selected."""
        for item in items:
            if FIXTURE in getattr(item, "fixturenames", ()):
                self._owners.setdefault(self._name(item), item.nodeid)
        self.named |= set(self._owners)

    def note_module(self, module: str) -> None:
        """Note a module, relative to the root directory, all of whose tests were collected."""
        if module not in self._narrowed:
            self.whole.add(module)

    def open(self, item: pytest.Item) -> "Cassette":
        """The cassette of a test; the test fails here where there is none, or none that can be used."""
        from graph.cassettes import fixture, source

        arguments = self._arguments(item)
        hosts = arguments.pop("allow_hosts", ())
        name = self._name(item)
        path = os.path.join(self.folder, *name.split("/"))
        shown = self._shown(name)
        owner = self._owners.get(name, item.nodeid)
        if owner != item.nodeid:
            self.fail(item, f"{shown} is also the cassette of {owner}: give one of the two another name")
        if self.mode == "all" or (self.mode == "missing" and not os.path.exists(path)):

            def find() -> source.Source:
                found = source.find_source(arguments)
                return self.fail(item, f"{shown} cannot be recorded: {found}") if isinstance(found, str) else found

            return fixture.RecordedCassette(path, shown, find)
        cassette = fixture.load(path, shown)
        if isinstance(cassette, str):
            self.fail(item, cassette)
        return fixture.ReplayedCassette(path, shown, cassette, hosts)

    def fail(self, item: pytest.Item, problem: str) -> NoReturn:
        """Fail a test for what is no fault of the agent; one that is expected to fail does not hide it."""
        if item.get_closest_marker("xfail") is not None:
            self.problems.append(f"{item.nodeid}: {problem}")
        pytest.fail(problem, pytrace=False)

    def told(self) -> dict[str, list[str]]:
        """What a worker tells its controller."""
        sets = {"named": sorted(self.named), "whole": sorted(self.whole)}
        return {**sets, "recorded": self.recorded, "problems": self.problems}

    def hear(self, told: dict[str, list[str]]) -> None:
        """Take what a worker has told."""
        self.named |= set(told["named"])
        self.whole |= set(told["whole"])
        self.recorded += told["recorded"]
        self.problems += told["problems"]

    def finish(self) -> list[str]:
        """What fails the session: cassettes that nobody uses, that hold secrets, or that an expected failure hides."""
        if not os.path.isdir(self.folder):
            return self.problems
        from graph.cassettes.library import cassettes_below, is_ours

        ours = [name for name in cassettes_below(self.folder) if is_ours(os.path.join(self.folder, name))]
        for name in unused(ours, self.named, self.whole):
            self.problems.append(f"{self._shown(name)} is not used by any test: delete it, or bring its test back")
        for name in ours if self.named else ():
            self.problems += self._secrets(name)
        return self.problems

    def _secrets(self, name: str) -> list[str]:
        from graph.cassettes.cassette_file import secrets_in
        from graph.cassettes.fixture import told_of_secrets
        from graph.cassettes.library import read_text

        text = read_text(os.path.join(self.folder, name))
        found = secrets_in(text) if isinstance(text, str) else []
        return [f"{self._shown(name)} must not be kept: {told_of_secrets(found)}"] if found else []

    def _shown(self, name: str) -> str:
        return os.path.relpath(os.path.join(self.folder, name), self.root).replace(os.sep, "/")

    def _module(self, path: str) -> str:
        return os.path.relpath(os.path.abspath(path), self.root).replace(os.sep, "/")

    def _name(self, item: pytest.Item) -> str:
        own = [name for mark in item.own_markers if mark.name == FIXTURE for name in _names(mark)]
        chosen = own[0] if own and is_name(own[0]) else ""
        return cassette_name(item.nodeid, chosen)

    def _arguments(self, item: pytest.Item) -> dict[str, Any]:
        """What the test's markers say beside a name, the nearest first; the test fails where they say nonsense."""
        said: dict[str, Any] = {}
        for mark in item.iter_markers(FIXTURE):
            names = _names(mark)
            if names and (mark not in item.own_markers or len(names) > 1 or not is_name(names[0])):
                self.fail(item, f"{names!r} is no name of a cassette: {_NAMES}")
            unknown = sorted(set(mark.kwargs) - ARGUMENTS - {"name"})
            if unknown:
                known = ", ".join(sorted(ARGUMENTS | {"name"}))
                self.fail(item, f"the marker {FIXTURE} takes {known}, not {', '.join(unknown)}")
            said = {**mark.kwargs, **said}
        said.pop("name", None)
        hosts = said.get("allow_hosts", ())
        if not isinstance(hosts, (list, tuple, set, frozenset)) or not all(isinstance(host, str) for host in hosts):
            self.fail(item, f"allow_hosts of the marker {FIXTURE} is a list of host names, not {hosts!r}")
        return said


_NAMES: Final = "one marker of one test may give one, of letters, digits, '.', '_' and '-'"


def _names(mark: pytest.Mark) -> tuple[Any, ...]:
    """The names that a marker gives, by place or as `name`; more than one is a mistake."""
    return (*mark.args, *([mark.kwargs["name"]] if "name" in mark.kwargs else []))
