"""Fixtures and hooks for all tests: an empty home, no credentials, no network, fixed examples of hypothesis."""

import gc
import os
import signal
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import hypothesis
import pytest

from mendgraph.nodes.call_model.endpoint import DEFAULT_MODELS
from tests import extent, network, workspace_watch
from tests.machine.exploration import tally
from tests.memory_folder import memory_folder
from tests.postgres import (
    MISSING,
    SERVER_VARIABLE,
    database_with_tables,
    fresh_database,
    postgres_programs,
    postgres_server,
)
from tests.sandboxes import open_handles
from tests.snapshots import OPTION, Snapshots

pytest_plugins = ["tests.surfaces.serving.studio", "tests.surfaces.serving.servers"]
"""Fixtures that start the servers of `make studio` and `mendgraph serve`."""

ONE_WORKER = {
    "servers": ("tests/browser/", "tests/surfaces/serving/test_studio.py", "tests/surfaces/serving/test_servers.py"),
    "packages of providers": (
        "tests/providers/",
        "tests/langchain/test_chat_model",
        "tests/langchain/test_failures.py",
        "tests/langchain/test_handoffs.py",
        "tests/surfaces/cassettes/test_chat_models.py",
    ),
    "killed runs": ("tests/crash/test_approval_kills.py", "tests/crash/test_lost_calls.py"),
}
"""For each thing that takes seconds to start or import, the tests that use it."""

INTERFERING_PREFIXES = (
    "GITHUB_ACTIONS",
    "OPENAI_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "LANGGRAPH_",
    "HF_",
    "MENDGRAPH_",
    "OTEL_",
)
TERMINAL_VARIABLES = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONPATH", "CLICOLOR_FORCE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
REMOVABLE: dict[str, tuple[str, str, object]] = {"bubblewrap": ("sandboxes.bubblewrap", "PROGRAM_FOLDERS", ())}
"""For each name of `--without`: module, attribute and value with which the product finds no such program."""
HOMES = {"HOME": "", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
STORES = {"XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"}

# The same examples in each run, so that a failure comes from the change. MENDGRAPH_EXPLORE=500 draws 500 new ones.
hypothesis.settings.register_profile("fixed", deadline=None, print_blob=True, derandomize=True, max_examples=40)
if explored := os.environ.get("MENDGRAPH_EXPLORE"):
    hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=int(explored))
hypothesis.settings.load_profile("explore" if explored else "fixed")


@pytest.fixture(scope="session", autouse=True)
def isolated_environment() -> Iterator[None]:
    """Replace the home and data folders by temporary ones, in memory if possible, and unset interfering variables.

    A recording needs the weights of the local model: it uses the real home and cache and `MENDGRAPH_MODEL_DIR`.
    """
    folders = STORES if network.is_recording() else HOMES | STORES
    with memory_folder() as home, pytest.MonkeyPatch.context() as patch:
        for name in interfering_variables(os.environ):
            patch.delenv(name)
        for name, folder in folders.items():
            (home / folder).mkdir(exist_ok=True)
            patch.setenv(name, str(home / folder))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--without`, as in `make test ARGS="--without bubblewrap"`, and `--update-snapshots`."""
    parser.addoption(
        "--without", action="append", choices=sorted(REMOVABLE), default=[], help="run as if it were not installed"
    )
    parser.addoption(OPTION, action="store_true", help="write the files with which tests compare texts")


def pytest_configure(config: pytest.Config) -> None:
    """Apply `--without` before collection; tests that need the program are skipped with a reason."""
    gc.disable()  # until all tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job, where tests of Ctrl-C would wait
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in config.getoption("--without"):
        module, attribute, value = REMOVABLE[name]
        setattr(import_module(f"mendgraph.nodes.execute_tools.{module}"), attribute, value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that take minutes, so that no worker waits for them, and skip those of nightly jobs."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/machine/exploration/"))
    for item in items:
        if extent.NIGHTLY_SKIP and item.get_closest_marker("nightly") is not None:
            item.add_marker(pytest.mark.skip(reason=extent.NIGHTLY_SKIP))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all files that need the same servers or packages in one worker, which starts or imports them once."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    if config.getoption("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope
    scheduling._split_scope = lambda test: next(
        (name for name, tests in ONE_WORKER.items() if test.startswith(tests)), file_of(test)
    )
    return scheduling


def pytest_collection_finish() -> None:
    """Exclude the collected tests and modules from garbage collection.

    Many tests end with a full collection; it takes 0.2 s with these objects and a few milliseconds without. The higher
    thresholds make collections of young objects rare: they would take a tenth of the time of all tests.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of explored states from a worker of pytest-xdist to the controller."""
    tally.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up the counts of the workers in the controller."""
    tally.take_over(getattr(node, "workeroutput", None))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print in one line how many states of the machine this session has explored."""
    tally.tell(terminalreporter)


@pytest.fixture
def snapshots(request: pytest.FixtureRequest) -> Snapshots:
    """Compare texts with committed files, which `--update-snapshots` writes."""
    return Snapshots(update=request.config.getoption(OPTION))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server: the configured one, or one that is started for this process."""
    if not os.environ.get(SERVER_VARIABLE) and postgres_programs() is None:
        pytest.skip(MISSING)
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_tables(postgres: str) -> Iterator[str]:
    """The name of a database with all tables of the product, which `shared_store` copies."""
    with database_with_tables(postgres) as name:
        yield name


@pytest.fixture
def shared_store(postgres: str, postgres_tables: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new PostgreSQL database with empty tables, which stores the runs of this test."""
    with fresh_database(postgres, like=postgres_tables) as url:
        yield from _store_url(url, monkeypatch)


@pytest.fixture
def empty_store(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new PostgreSQL database without tables, which stores the runs of this test."""
    with fresh_database(postgres) as url:
        yield from _store_url(url, monkeypatch)


def _store_url(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from mendgraph.nodes.workspace.store.postgres import close_postgres

    monkeypatch.setenv("MENDGRAPH_STORE_URL", url)
    try:
        yield url
    finally:
        close_postgres()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store(request: pytest.FixtureRequest) -> str:
    """Run the test with the SQLite store of a workspace and with a PostgreSQL store; returns the kind of the store."""
    if request.param == "postgresql":
        request.getfixturevalue("shared_store")
    return str(request.param)


@pytest.fixture(autouse=True)
def loopback_only() -> Iterator[None]:
    """Refuse connections to other machines."""
    with network.loopback_only():
        yield


@pytest.fixture(autouse=True)
def forget_endpoint_lessons() -> None:
    """Forget which features endpoints refused: the next test may start another endpoint at the same port."""
    from mendgraph.graph.langchain.failures import LESSONS

    LESSONS.clear()


@pytest.fixture(scope="module", autouse=True)
def freeze_garbage_collector() -> Iterator[None]:
    """Exclude the objects that a test file has created from later garbage collections.

    Without this a full collection takes up to a second in a worker that has run most of the files.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collect_open_handles() -> Iterator[None]:
    """Collect garbage after a test that leaves handles open, because other tests count open handles."""
    before = len(os.listdir("/dev/fd"))
    yield
    if len(os.listdir("/dev/fd")) > before:
        gc.collect()


@pytest.fixture
def no_open_handles() -> Iterator[None]:
    """Fail a test that leaves a handle open."""
    before = open_handles()
    yield
    assert open_handles() <= before


@pytest.fixture(autouse=True)
def workspace_access_by_handle() -> Iterator[None]:
    """Fail a test in which the product opens a file of a workspace other than by handle in `execute_tools`."""
    with workspace_watch.watched():
        yield


def interfering_variables(names: Iterable[str]) -> list[str]:
    """The environment variables among `names` that would change a run or its output."""
    exceptions = {
        "MENDGRAPH_RECORD",
        "MENDGRAPH_SCREENSHOTS",
        SERVER_VARIABLE,
        *(("MENDGRAPH_MODEL_DIR",) if network.is_recording() else ()),
    }
    return [
        name
        for name in names
        if name not in exceptions
        and (
            name.upper().startswith(INTERFERING_PREFIXES)
            or name.upper() in (*TERMINAL_VARIABLES, *PROXIES, *DEFAULT_MODELS, "VIRTUAL_ENV")
        )
    ]
