"""What a pytest session knows of its cassettes: which there are tests for, and which of them nobody uses.

It imports nothing heavy: pytest loads it at every start. Under pytest-xdist each worker has its own, and hands what it
knows to the controller's, which alone has a last word.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

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
        self._narrowed = {self._module(each.partition("::")[0]) for each in arguments if "::" in each}

    def note(self, items: Iterable[pytest.Item]) -> None:
        """Note the cassettes of collected tests, whether or not they will be selected."""
        self.named |= {self._name(item) for item in items if FIXTURE in getattr(item, "fixturenames", ())}

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
        shown = os.path.relpath(path, self.root).replace(os.sep, "/")
        if self.mode == "all" or (self.mode == "missing" and not os.path.exists(path)):
            found = source.find_source(arguments)
            if isinstance(found, str):
                pytest.fail(f"{shown} cannot be recorded: {found}", pytrace=False)
            return fixture.RecordedCassette(path, shown, found)
        cassette = fixture.load(path, shown)
        if isinstance(cassette, str):
            pytest.fail(cassette, pytrace=False)
        return fixture.ReplayedCassette(path, shown, cassette, hosts)

    def told(self) -> dict[str, list[str]]:
        """What a worker tells its controller."""
        return {"named": sorted(self.named), "whole": sorted(self.whole), "recorded": self.recorded}

    def hear(self, told: dict[str, list[str]]) -> None:
        """Take what a worker has told."""
        self.named |= set(told["named"])
        self.whole |= set(told["whole"])
        self.recorded += told["recorded"]

    def finish(self) -> list[str]:
        """What fails the session: cassettes that nobody uses, and those that hold secrets."""
        if not os.path.isdir(self.folder):
            return []
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
        own = [mark.args[0] for mark in item.own_markers if mark.name == FIXTURE and mark.args]
        chosen = own[0] if own and is_name(own[0]) else ""
        return cassette_name(item.nodeid, chosen)

    def _arguments(self, item: pytest.Item) -> dict[str, Any]:
        """What the test's markers say beside a name, the nearest first; the test fails where they say nonsense."""
        said: dict[str, Any] = {}
        for mark in item.iter_markers(FIXTURE):
            if mark.args and (mark not in item.own_markers or len(mark.args) > 1 or not is_name(mark.args[0])):
                pytest.fail(f"{mark.args!r} is no name of a cassette: {_NAMES}", pytrace=False)
            unknown = sorted(set(mark.kwargs) - ARGUMENTS)
            if unknown:
                known = ", ".join(sorted(ARGUMENTS))
                pytest.fail(f"the marker {FIXTURE} takes {known}, not {', '.join(unknown)}", pytrace=False)
            said = {**mark.kwargs, **said}
        hosts = said.get("allow_hosts", ())
        if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
            pytest.fail(f"allow_hosts of the marker {FIXTURE} is a list of host names, not {hosts!r}", pytrace=False)
        return said


_NAMES: Final = "one marker of one test may give one, of letters, digits, '.', '_' and '-'"
