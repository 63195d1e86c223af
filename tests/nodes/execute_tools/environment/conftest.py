import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.execute_tools.environment.workspace import Workspace
from tests.nodes.execute_tools.environment.layout import SECRET, build, no_env, tree_of


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A built workspace. Afterwards no handle may be open, and nothing outside it may have changed."""
    root = build(tmp_path.resolve())
    before = len(os.listdir("/dev/fd"))
    yield root
    assert len(os.listdir("/dev/fd")) == before, "a handle was left open"
    assert tree_of(tmp_path / "outside") == {"secret.txt": SECRET}


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(str(root), no_env)
