"""The pytest plugin: a test's conversation with a model is recorded once, and replayed for ever after.

    @pytest.mark.mendgraph_cassette
    def test_the_bug_is_repaired(tmp_path, mendgraph_cassette):
        result = run_task("Fix calc.py.", mendgraph_cassette.context(tmp_path))

`pytest --mendgraph-record` records; without it nothing is reached. It is loaded at every start of pytest, so that it
imports nothing beside pytest before a test asks for its cassette.
"""

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from graph.cassettes.session import FIXTURE, CassetteSession

if TYPE_CHECKING:
    from graph.cassettes.fixture import Cassette

_OPTION: Final = "--mendgraph-record"
_DATA_FOLDER: Final = "MENDGRAPH_DATA_DIR"
_PROVIDERS: Final = ("OPENAI", "ANTHROPIC", "GOOGLE", "MISTRAL", "GROQ", "DEEPSEEK", "OPENROUTER", "XAI", "COHERE")
"""Whose LangChain classes are not made without a key of theirs in the environment."""
_PLACEHOLDER: Final = "dummy-key"
"""What they get in a replay: nothing that is taken for a secret, and out of what the agent reads."""
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
            cassette.listen()
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
