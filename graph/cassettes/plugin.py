"""The pytest plugin: a test's conversation with a model is recorded once, and replayed for ever after.

    @pytest.mark.mendgraph_cassette
    def test_the_bug_is_repaired(tmp_path, mendgraph_cassette):
        result = run_task("Fix calc.py.", mendgraph_cassette.context(tmp_path))

`pytest --mendgraph-record` records; without it nothing is reached. It is loaded at every start of pytest, so that it
imports nothing beside pytest before a test asks for its cassette.
"""

import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from mendgraph.graph.cassettes.fixture import Cassette


FIXTURE: Final = "mendgraph_cassette"
"""The name of the fixture, and of the marker with its arguments."""

ARGUMENTS: Final = frozenset({"base_url", "model", "protocol", "edit_form", "allow_hosts"})
"""What the marker takes beside a name."""
_OPTION: Final = "--mendgraph-record"
_DATA_FOLDER: Final = "MENDGRAPH_DATA_DIR"
_PROVIDERS: Final = ("OPENAI", "ANTHROPIC", "GOOGLE", "MISTRAL", "GROQ", "DEEPSEEK", "OPENROUTER", "XAI", "COHERE")
"""Whose LangChain classes are not made without a key of theirs in the environment."""
_PLACEHOLDER: Final = "dummy-key"
"""What they get in a replay: nothing that is taken for a secret, and out of what the agent reads."""
_FIRST_WORD: Final = b"recorded_from:"
_NAMES: Final = "one marker of one test may give one, of letters, digits, '.', '_' and '-'"


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
        from mendgraph.graph.cassettes import fixture

        arguments = self._arguments(item)
        hosts = arguments.pop("allow_hosts", ())
        name = self._name(item)
        path = os.path.join(self.folder, *name.split("/"))
        shown = self._shown(name)
        owner = self._owners.get(name, item.nodeid)
        if owner != item.nodeid:
            self.fail(item, f"{shown} is also the cassette of {owner}: give one of the two another name")
        if self.mode == "all" or (self.mode == "missing" and not os.path.exists(path)):

            def find() -> fixture.Source:
                found = fixture.find_source(arguments)
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
        from mendgraph.graph.cassettes.cassette_file import folder_of

        ours = _cassettes_below(self.folder)
        whole = {folder_of(module) for module in self.whole}
        for name in ours:
            if os.path.dirname(name) in whole and name not in self.named:
                self.problems.append(f"{self._shown(name)} is not used by any test: delete it, or bring its test back")
        for name in ours if self.named else ():
            self.problems += self._secrets(name)
        return self.problems

    def _secrets(self, name: str) -> list[str]:
        from mendgraph.graph.cassettes.cassette_file import read_text, secrets_in
        from mendgraph.graph.cassettes.fixture import secrets_message

        text = read_text(os.path.join(self.folder, name))
        found = secrets_in(text) if isinstance(text, str) else []
        return [f"{self._shown(name)} must not be kept: {secrets_message(found)}"] if found else []

    def _shown(self, name: str) -> str:
        return os.path.relpath(os.path.join(self.folder, name), self.root).replace(os.sep, "/")

    def _module(self, path: str) -> str:
        return os.path.relpath(os.path.abspath(path), self.root).replace(os.sep, "/")

    def _name(self, item: pytest.Item) -> str:
        from mendgraph.graph.cassettes.cassette_file import cassette_name, is_name

        own = [name for mark in item.own_markers if mark.name == FIXTURE for name in _names(mark)]
        chosen = own[0] if own and is_name(own[0]) else ""
        return cassette_name(item.nodeid, chosen)

    def _arguments(self, item: pytest.Item) -> dict[str, Any]:
        """What the test's markers say beside a name, the nearest first; the test fails where they say nonsense."""
        from mendgraph.graph.cassettes.cassette_file import is_name

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


def _cassettes_below(folder: str) -> list[str]:
    """Our cassettes in `folder` and below, relative to it and with "/", sorted; no files of runs, or of other tools."""
    from mendgraph.nodes.execute_tools.store.user_files import open_regular

    found: list[str] = []
    for root, _, names in os.walk(folder):
        below = os.path.relpath(root, folder).replace(os.sep, "/")
        if re.search(r"/files/(before|after)(/|$)", below):
            continue
        for name in names:
            if name.endswith(".yaml") and not name.startswith("."):
                with suppress(OSError), open_regular(os.path.join(root, name)) as file:
                    found += [f"{below}/{name}"] if file.read(len(_FIRST_WORD)) == _FIRST_WORD else []
    return sorted(found)


def _names(mark: pytest.Mark) -> tuple[Any, ...]:
    """The names that a marker gives, by place or as `name`; more than one is a mistake."""
    return (*mark.args, *([mark.kwargs["name"]] if "name" in mark.kwargs else []))


# --- What pytest calls


_PASSED: Final = pytest.StashKey[bool]()
_CASSETTE: Final = pytest.StashKey["Cassette"]()
_SESSION: Final = pytest.StashKey[CassetteSession]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option's value stands behind `=`, never apart: `--mendgraph-record tests/` names a folder of tests."""
    group = parser.getgroup("mendgraph", "cassettes: recorded conversations with a model")
    options: dict[str, Any] = {"action": "store_const", "dest": "mendgraph_record", "default": ""}
    group.addoption(_OPTION, f"{_OPTION}=all", const="all", help="record the selected tests' cassettes anew", **options)
    group.addoption(f"{_OPTION}=missing", const="missing", help="record those that do not exist yet", **options)
    parser.addini("mendgraph_cassettes", "folder of the cassettes, relative to the root directory", default="cassettes")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and begin to keep account."""
    marker = f"{FIXTURE}(name=<the test's>, *, base_url, model, protocol, edit_form, allow_hosts)"
    config.addinivalue_line("markers", f"{marker}: replay the test's conversation with a model, or record it")
    folder = os.path.join(config.rootpath, config.getini("mendgraph_cassettes"))
    base = config.invocation_params.dir
    selected = [os.path.join(base, str(each)) for each in config.invocation_params.args]
    config.stash[_SESSION] = CassetteSession(
        str(config.rootpath), folder, config.getoption("mendgraph_record"), selected
    )


@pytest.fixture
def mendgraph_cassette(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Cassette"]:
    """The test's recorded conversation: `context(workspace)` for mendgraph, `base_url` or `serve()` for others.

    Runs and spending are kept in a folder of the test's own, unless MENDGRAPH_DATA_DIR names one.
    """
    session = request.config.stash[_SESSION]
    cassette = session.open(request.node)
    request.node.stash[_CASSETTE] = cassette
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get(_DATA_FOLDER):
            patch.setenv(_DATA_FOLDER, str(tmp_path_factory.mktemp("mendgraph")))
        for name in () if cassette.recording else _PROVIDERS:
            if not os.environ.get(f"{name}_API_KEY"):
                patch.setenv(f"{name}_API_KEY", _PLACEHOLDER)
        try:
            yield cassette
        finally:
            cassette.close()
    if request.node.stash.get(_PASSED, False):
        problem = cassette.problem()
        if problem:
            pytest.fail(problem, pytrace=False)
        if cassette.recording:
            session.recorded.append(cassette.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test has passed, and show what its cassette refused beside a failure."""
    report = yield
    cassette = item.stash.get(_CASSETTE, None)
    if call.when == "call" and cassette is not None:
        item.stash[_PASSED] = report.passed and not hasattr(report, "wasxfail")
        if report.failed:
            report.sections += [(f"mendgraph cassette {cassette.name}", note) for note in cassette.notes()]
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker alone does nothing, which nobody means."""
    if item.get_closest_marker(FIXTURE) is not None and FIXTURE not in getattr(item, "fixturenames", ()):
        problem = f"the test is marked {FIXTURE}, so it has to take the argument {FIXTURE}"
        item.config.stash[_SESSION].fail(item, problem)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which cassettes there are tests for, before any is deselected."""
    config.stash[_SESSION].note(items)


class _Collected:
    """Hears of each module, in a session that has one."""

    def __init__(self, session: CassetteSession) -> None:
        self._session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note the modules that were collected without an error."""
        if report.passed and report.nodeid.endswith(".py"):
            self._session.note_module(report.nodeid)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Look at what is collected, unless pytest collects less than there is: then nothing can be called unused."""
    config = session.config
    if not (config.getoption("lf", False) or config.getoption("pyargs", False)):
        config.pluginmanager.register(_Collected(config.stash[_SESSION]), "mendgraph-collected")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear what a worker of pytest-xdist knows; one that crashed tells nothing."""
    told = getattr(node, "workeroutput", {}).get("mendgraph")
    if told:
        node.config.stash[_SESSION].hear(told)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Tell the controller, or fail the session for cassettes that nobody uses or that hold secrets."""
    config = session.config
    account = config.stash[_SESSION]
    if hasattr(config, "workeroutput"):
        config.workeroutput["mendgraph"] = account.told()
        return
    finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    if finished and not config.getoption("collectonly", False) and account.finish():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was recorded, and why the session has failed."""
    account = config.stash[_SESSION]
    lines = [*(f"recorded {name}" for name in sorted(account.recorded)), *account.problems]
    if lines:
        terminalreporter.section("mendgraph cassettes", red=bool(account.problems), bold=bool(account.problems))
        for line in lines:
            terminalreporter.line(line)
