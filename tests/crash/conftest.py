"""What the sweeps share: the library, built once, a server without it, and a folder in memory."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import shim
from tests.crash.fork_server import ForkServer
from tests.memory_folder import memory_folder


@pytest.fixture(scope="session")
def shim_library(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library for `ForkServer`. If it cannot be built, its tests are skipped with a visible reason."""
    if lacking := shim.missing_requirement():
        reason = f"THE KILL SWEEP DOES NOT RUN HERE: {lacking}"
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        assert capture is not None
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n{reason}\n")
        pytest.skip(reason)
    return shim.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """A server for the plays that kill themselves: one, because its imports take two seconds."""
    with ForkServer(None, "tests.crash.self_killing_plays") as started:
        yield started


@pytest.fixture
def memory() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder
