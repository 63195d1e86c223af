"""The pytest plugin: a test's conversation with a model is recorded once, and replayed from then on.

    @pytest.mark.mendgraph_cassette
    def test_the_bug_is_repaired(tmp_path, mendgraph_cassette):
        result = run_task("Fix calc.py.", mendgraph_cassette.context(tmp_path))

`pytest --mendgraph-record` records; otherwise no host is reached. Every pytest session loads this module, so it imports
the rest of the package when a test requests its cassette.
"""

import os
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from mendgraph.graph.cassettes.fixture import Cassette


FIXTURE: Final = "mendgraph_cassette"
"""The name of the fixture and of the marker."""

_OPTION: Final = "--mendgraph-record"
_DATA_FOLDER: Final = "MENDGRAPH_DATA_DIR"
_PROVIDERS: Final = ("OPENAI", "ANTHROPIC", "GOOGLE", "MISTRAL", "GROQ", "DEEPSEEK", "OPENROUTER", "XAI", "COHERE")
"""Providers whose LangChain classes require a key in the environment."""
_PLACEHOLDER: Final = "dummy-key"
"""Their key in a replay, which is not treated as a secret."""


class CassetteSession:
    """The cassettes of a pytest session, or of one of its workers."""

    def __init__(self, root: str, folder: str, mode: str) -> None:
        """`folder` holds the cassettes; `mode` is "all" or "missing" to record, "" to replay."""
        self.root = root
        self.folder = folder
        self.mode = mode
        self.recorded: list[str] = []
        self._owners: dict[str, str] = {}

    def register(self, items: Iterable[pytest.Item]) -> None:
        """Register the cassettes of all collected tests, including those that will be deselected."""
        for item in items:
            if FIXTURE in getattr(item, "fixturenames", ()):
                self._owners.setdefault(self._name(item), item.nodeid)

    def open(self, item: pytest.Item) -> "Cassette":
        """Open the cassette of a test, which fails if there is none or it cannot be used."""
        from mendgraph.graph.cassettes.cassette_file import CassetteFile, read
        from mendgraph.graph.cassettes.fixture import (
            RecordedCassette,
            ReplayedCassette,
            Source,
            find_source,
            read_marker,
        )

        arguments = read_marker(_marker_arguments(item))
        if isinstance(arguments, str):
            _fail(f"the marker {FIXTURE} is wrong: {arguments}")

        name = self._name(item)
        path = os.path.join(self.folder, *name.split("/"))
        relative_path = os.path.relpath(path, self.root).replace(os.sep, "/")
        owner = self._owners.get(name, item.nodeid)

        if owner != item.nodeid:
            _fail(f"{relative_path} is also the cassette of {owner}: rename one of the two")

        exists = os.path.exists(path)
        if self.mode == "all" or (self.mode == "missing" and not exists):

            def find() -> Source:
                source = find_source(arguments)
                if isinstance(source, str):
                    _fail(f"{relative_path} cannot be recorded: {source}")
                return source

            return RecordedCassette(path, relative_path, find)

        if not exists:
            _fail(f"there is no cassette {relative_path}: record it with `pytest {_OPTION}=missing`")

        cassette = read(path, relative_path)
        if not isinstance(cassette, CassetteFile):
            _fail(cassette.message)

        return ReplayedCassette(path, relative_path, cassette, arguments.allow_hosts)

    def _name(self, item: pytest.Item) -> str:
        from mendgraph.graph.cassettes.cassette_file import cassette_name

        return cassette_name(item.nodeid, str(_marker_arguments(item).get("name", "")))


def _fail(problem: str) -> NoReturn:
    """Fail a test without a traceback."""
    pytest.fail(problem, pytrace=False)


def _marker_arguments(item: pytest.Item) -> dict[str, Any]:
    """Return the arguments of the test's markers, of which the nearest takes precedence; a name is the test's own."""
    arguments: dict[str, Any] = {}
    for mark in item.iter_markers(FIXTURE):
        named = dict(zip(("name", "a second name"), mark.args, strict=False))
        arguments = {**mark.kwargs, **named, **arguments}

    return arguments


# --- Hooks


_PASSED: Final = pytest.StashKey[bool]()
_CASSETTE: Final = pytest.StashKey["Cassette"]()
_SESSION: Final = pytest.StashKey[CassetteSession]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; their values need a "=", as in `--mendgraph-record tests/` the folder names tests."""
    group = parser.getgroup("mendgraph", "cassettes: recorded conversations with a model")
    options: dict[str, Any] = {"action": "store_const", "dest": "mendgraph_record", "default": ""}
    group.addoption(_OPTION, f"{_OPTION}=all", const="all", help="record the selected tests again", **options)
    group.addoption(f"{_OPTION}=missing", const="missing", help="record those that do not exist yet", **options)
    parser.addini("mendgraph_cassettes", "folder of the cassettes, relative to the root directory", default="cassettes")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and open the session."""
    marker = f"{FIXTURE}(name=<the test's>, *, base_url, model, protocol, edit_form, allow_hosts)"
    config.addinivalue_line("markers", f"{marker}: replay the test's conversation with a model, or record it")
    folder = os.path.join(config.rootpath, config.getini("mendgraph_cassettes"))
    config.stash[_SESSION] = CassetteSession(str(config.rootpath), folder, config.getoption("mendgraph_record"))


@pytest.fixture
def mendgraph_cassette(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Cassette"]:
    """The test's recorded conversation: `context(workspace)` for mendgraph, `base_url` or `serve()` for others.

    Runs and spending are stored in a temporary folder unless MENDGRAPH_DATA_DIR is set.
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
    """Note whether the test has passed, and add the cassette's notes to a failure."""
    report = yield
    cassette = item.stash.get(_CASSETTE, None)

    if call.when == "call" and cassette is not None:
        item.stash[_PASSED] = report.passed and not hasattr(report, "wasxfail")
        if report.failed:
            report.sections += [(f"mendgraph cassette {cassette.name}", note) for note in cassette.notes()]

    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that has the marker but does not request the fixture."""
    if item.get_closest_marker(FIXTURE) is not None and FIXTURE not in getattr(item, "fixturenames", ()):
        _fail(f"the test is marked {FIXTURE}, so it needs the argument {FIXTURE}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Register all cassettes before tests are deselected."""
    config.stash[_SESSION].register(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the names that a worker of pytest-xdist has recorded."""
    node.config.stash[_SESSION].recorded += getattr(node, "workeroutput", {}).get("mendgraph", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the recorded names to the controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["mendgraph"] = session.config.stash[_SESSION].recorded


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the recorded cassettes."""
    recorded = sorted(config.stash[_SESSION].recorded)
    if recorded:
        terminalreporter.section("mendgraph cassettes")
        for name in recorded:
            terminalreporter.line(f"recorded {name}")
