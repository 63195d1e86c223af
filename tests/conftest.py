"""What holds for every test: its own home, no one's keys, no network, no clock in hypothesis."""

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
from tests.snapshots import OPTION, Snapshots

pytest_plugins = ["tests.surfaces.serving.studio", "tests.surfaces.serving.servers"]
"""The servers that `make studio` and `mendgraph serve` start, for the tests that are their clients."""

SERVED = ("tests/browser/", "tests/surfaces/serving/test_studio.py", "tests/surfaces/serving/test_servers.py")
"""The tests of those servers, which take seconds to start."""

FOREIGN_SETTINGS = ("GITHUB_ACTIONS", "OPENAI_", "LANGCHAIN_", "LANGSMITH_", "LANGGRAPH_", "HF_", "MENDGRAPH_", "OTEL_")
TERMINAL_SETTINGS = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONPATH", "CLICOLOR_FORCE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
LACKS: dict[str, tuple[str, str, object]] = {"bubblewrap": ("sandboxes.bubblewrap", "PROGRAM_FOLDERS", ())}
"""What a machine may lack: the module that looks for it, and what has to change so that it finds nothing."""
HOMES = {"HOME": "", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
STORES = {"XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"}

# The same examples at every run, so that a red test is about the change at hand; MENDGRAPH_EXPLORE=500 new ones.
hypothesis.settings.register_profile("fixed", deadline=None, print_blob=True, derandomize=True, max_examples=40)
if explored := os.environ.get("MENDGRAPH_EXPLORE"):
    hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=int(explored))
hypothesis.settings.load_profile("explore" if explored else "fixed")


@pytest.fixture(scope="session", autouse=True)
def own_environment() -> Iterator[None]:
    """A home of the tests' own, in memory where there is such a disk, and none of the variables that would steer a run.

    A recording keeps what says where the local model's weights are: the real home and cache, `MENDGRAPH_MODEL_DIR`.
    """
    folders = STORES if network.is_recording() else HOMES | STORES
    with memory_folder() as home, pytest.MonkeyPatch.context() as patch:
        for name in foreign(os.environ):
            patch.delenv(name)
        for name, folder in folders.items():
            (home / folder).mkdir(exist_ok=True)
            patch.setenv(name, str(home / folder))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test ARGS="--without bubblewrap"` is a machine that has none."""
    parser.addoption("--without", action="append", choices=sorted(LACKS), default=[], help="pretend that it is missing")
    parser.addoption(OPTION, action="store_true", help="write the files of tests that compare a text with a file")


def pytest_configure(config: pytest.Config) -> None:
    """Take away what the command line says before any test is collected; what needs it is skipped, and says so."""
    gc.disable()  # until all tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, whose tests would wait
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in config.getoption("--without"):
        module, attribute, value = LACKS[name]
        setattr(import_module(f"mendgraph.nodes.execute_tools.{module}"), attribute, value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take minutes come first, so that no worker waits for them; those of sweeps are skipped."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/machine/exploration/"))
    for item in items:
        for name, reason in extent.SKIPPED.items():
            if reason and item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all files that need the servers, so that they are started once."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    if config.getoption("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope
    scheduling._split_scope = lambda test: "served" if test.startswith(SERVED) else file_of(test)
    return scheduling


def pytest_collection_finish() -> None:
    """What is there already, thousands of tests and all modules, is no garbage, and is not looked through again.

    A full collection takes 0.2 s with it and a few milliseconds without, and many tests end with one. Small ones come
    seldom: they would take a tenth of the time of all tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist tells how much of the machine it has checked."""
    tally.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller adds up what the workers have checked."""
    tally.take_over(getattr(node, "workeroutput", None))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How much of the machine this session has checked, in one line."""
    tally.tell(terminalreporter)


@pytest.fixture
def snapshots(request: pytest.FixtureRequest) -> Snapshots:
    """Compares texts with committed files, which `--update-snapshots` writes."""
    return Snapshots(update=request.config.getoption(OPTION))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server, one for this process where none is there already."""
    if not os.environ.get(SERVER_VARIABLE) and postgres_programs() is None:
        pytest.skip(MISSING)
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_tables(postgres: str) -> Iterator[str]:
    """The name of a database with all our tables, which `shared_store` copies."""
    with database_with_tables(postgres) as name:
        yield name


@pytest.fixture
def shared_store(postgres: str, postgres_tables: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A PostgreSQL database of this test's own in which its runs are kept, with our tables and no rows; its URL."""
    with fresh_database(postgres, like=postgres_tables) as url:
        yield from _kept_in(url, monkeypatch)


@pytest.fixture
def empty_store(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same without our tables: for the tests of how they are made."""
    with fresh_database(postgres) as url:
        yield from _kept_in(url, monkeypatch)


def _kept_in(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from mendgraph.nodes.workspace.store.postgres import close_postgres

    monkeypatch.setenv("MENDGRAPH_STORE_URL", url)
    try:
        yield url
    finally:
        close_postgres()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store(request: pytest.FixtureRequest) -> str:
    """The test runs twice: with the store of a workspace, and with the shared one. Which of them it is."""
    if request.param == "postgresql":
        request.getfixturevalue("shared_store")
    return str(request.param)


@pytest.fixture(autouse=True)
def only_loopback() -> Iterator[None]:
    """No test reaches beyond this machine."""
    with network.loopback_only():
        yield


@pytest.fixture(autouse=True)
def nothing_learned() -> None:
    """What an endpoint refused in one test is tried anew in the next, as it may listen at the same port."""
    from mendgraph.graph.langchain.failures import LESSONS

    LESSONS.clear()


@pytest.fixture(scope="module", autouse=True)
def older_things_are_no_garbage() -> Iterator[None]:
    """What a file of tests has imported stays, so that the tests after it do not look through it, at each collection.

    Without this a worker that has run most of the files takes up to a second for one.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_handles_left() -> Iterator[None]:
    """What a test leaves to the garbage collector is closed at its end, as others count the handles that are open."""
    before = len(os.listdir("/dev/fd"))
    yield
    if len(os.listdir("/dev/fd")) > before:
        gc.collect()


@pytest.fixture
def no_handle_is_left_open() -> Iterator[None]:
    """The test fails where it leaves a handle open."""
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) == before


@pytest.fixture(autouse=True)
def by_handle_only() -> Iterator[None]:
    """No test reaches a workspace's files but through `execute_tools`, by handle."""
    with workspace_watch.watched():
        yield


def foreign(names: Iterable[str]) -> list[str]:
    """The environment variables among `names` that would steer a run or its output."""
    kept = {
        "MENDGRAPH_RECORD",
        "MENDGRAPH_SCREENSHOTS",
        SERVER_VARIABLE,
        *(("MENDGRAPH_MODEL_DIR",) if network.is_recording() else ()),
    }
    return [
        name
        for name in names
        if name not in kept
        and (
            name.upper().startswith(FOREIGN_SETTINGS)
            or name.upper() in (*TERMINAL_SETTINGS, *PROXIES, *DEFAULT_MODELS, "VIRTUAL_ENV")
        )
    ]
