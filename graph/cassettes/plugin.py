"""The pytest plugin: a test's conversation with a model is recorded once, and replayed for ever after.

    @pytest.mark.mendgraph_cassette
    def test_the_bug_is_repaired(tmp_path, mendgraph_cassette):
        result = run_task("Fix calc.py.", mendgraph_cassette.context(tmp_path))

`pytest --mendgraph-record` records; without it nothing is reached. It is loaded at every start of pytest, so that it
imports nothing beside pytest before a test asks for its cassette.
"""

import os
from collections.abc import Generator, Iterable, Iterator
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
_NAMES: Final = "one marker of one test may give one, of letters, digits, '.', '_' and '-'"


class CassetteSession:
    """The account of one session, or of one worker of it."""

    def __init__(self, root: str, folder: str, mode: str, *, foreign: bool = False) -> None:
        """`folder` has the cassettes; `mode` is "all", "missing" or "" for replay.

        `foreign`: cassettes of other projects are replayed as well.
        """
        self.root = root
        self.folder = folder
        self.mode = mode
        self._foreign = foreign
        self.recorded: list[str] = []
        self._owners: dict[str, str] = {}

    def note(self, items: Iterable[pytest.Item]) -> None:
        """Note whose the cassettes of collected tests are, whether or not they will be selected."""
        for item in items:
            if FIXTURE in getattr(item, "fixturenames", ()):
                self._owners.setdefault(self._name(item), item.nodeid)

    def open(self, item: pytest.Item) -> "Cassette":
        """The cassette of a test; the test fails here where there is none, or none that can be used."""
        from mendgraph.graph.cassettes import fixture

        arguments = self._arguments(item)
        hosts = arguments.pop("allow_hosts", ())
        name = self._name(item)
        path = os.path.join(self.folder, *name.split("/"))
        relative_path = os.path.relpath(path, self.root).replace(os.sep, "/")
        owner = self._owners.get(name, item.nodeid)

        if owner != item.nodeid:
            _fail(f"{relative_path} is also the cassette of {owner}: give one of the two another name")

        if self.mode == "all" or (self.mode == "missing" and not os.path.exists(path)):

            def find() -> fixture.Source:
                source = fixture.find_source(arguments)
                if isinstance(source, str):
                    return _fail(f"{relative_path} cannot be recorded: {source}")
                return source

            return fixture.RecordedCassette(path, relative_path, find)

        cassette = fixture.load(path, relative_path, foreign=self._foreign)
        if isinstance(cassette, str):
            _fail(cassette)

        return fixture.ReplayedCassette(path, relative_path, cassette, hosts)

    def _name(self, item: pytest.Item) -> str:
        from mendgraph.graph.cassettes.cassette_file import cassette_name, is_name

        names: list[Any] = []
        for mark in item.own_markers:
            if mark.name == FIXTURE:
                names += _names(mark)

        chosen = ""
        if names and is_name(names[0]):
            chosen = names[0]

        return cassette_name(item.nodeid, chosen)

    def _arguments(self, item: pytest.Item) -> dict[str, Any]:
        """What the test's markers say beside a name, the nearest first; the test fails where they say nonsense."""
        from mendgraph.graph.cassettes.cassette_file import is_name

        arguments: dict[str, Any] = {}

        for mark in item.iter_markers(FIXTURE):
            names = _names(mark)
            if names and (mark not in item.own_markers or len(names) > 1 or not is_name(names[0])):
                _fail(f"{names!r} is no name of a cassette: {_NAMES}")

            unknown = sorted(set(mark.kwargs) - ARGUMENTS - {"name"})
            if unknown:
                known_names = ", ".join(sorted(ARGUMENTS | {"name"}))
                _fail(f"the marker {FIXTURE} takes {known_names}, not {', '.join(unknown)}")

            arguments = {**mark.kwargs, **arguments}

        arguments.pop("name", None)
        hosts = arguments.get("allow_hosts", ())
        if not isinstance(hosts, (list, tuple, set, frozenset)) or not all(isinstance(host, str) for host in hosts):
            _fail(f"allow_hosts of the marker {FIXTURE} is a list of host names, not {hosts!r}")

        return arguments


def _fail(problem: str) -> NoReturn:
    """Fail a test for what is no fault of the agent."""
    pytest.fail(problem, pytrace=False)


def _names(mark: pytest.Mark) -> tuple[Any, ...]:
    """The names that a marker gives, by place or as `name`; more than one is a mistake."""
    if "name" in mark.kwargs:
        return (*mark.args, mark.kwargs["name"])

    return mark.args


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
    foreign = "also replay cassettes that vcrpy, pytest-recording or pydantic-ai has recorded"
    group.addoption("--mendgraph-foreign", action="store_true", help=foreign)
    parser.addini("mendgraph_cassettes", "folder of the cassettes, relative to the root directory", default="cassettes")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and begin to keep account."""
    marker = f"{FIXTURE}(name=<the test's>, *, base_url, model, protocol, edit_form, allow_hosts)"
    config.addinivalue_line("markers", f"{marker}: replay the test's conversation with a model, or record it")
    folder = os.path.join(config.rootpath, config.getini("mendgraph_cassettes"))
    mode = config.getoption("mendgraph_record")
    foreign = config.getoption("mendgraph_foreign")
    config.stash[_SESSION] = CassetteSession(str(config.rootpath), folder, mode, foreign=foreign)


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

        if not cassette.recording:
            for name in _PROVIDERS:
                if not os.environ.get(f"{name}_API_KEY"):
                    patch.setenv(f"{name}_API_KEY", _PLACEHOLDER)

        try:
            yield cassette
        finally:
            cassette.close()

    if request.node.stash.get(_PASSED, False):
        problem = cassette.problem()
        if problem:
            _fail(problem)

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
        _fail(f"the test is marked {FIXTURE}, so it has to take the argument {FIXTURE}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note whose each cassette is, before any test is deselected."""
    config.stash[_SESSION].note(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear what a worker of pytest-xdist has recorded; one that crashed tells nothing."""
    node.config.stash[_SESSION].recorded += getattr(node, "workeroutput", {}).get("mendgraph", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the controller what this worker has recorded."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["mendgraph"] = session.config.stash[_SESSION].recorded


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was recorded."""
    recorded = sorted(config.stash[_SESSION].recorded)
    if recorded:
        terminalreporter.section("mendgraph cassettes")
        for name in recorded:
            terminalreporter.line(f"recorded {name}")
