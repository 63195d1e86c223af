"""The check of all tests detects code that opens a file of a workspace by its path."""

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.architecture.product import EFFECT_PACKAGES
from tests.workspace.files.layout import allow
from tests.workspace_watch import ROOT, PathAccess, installed, watched

PRODUCT, EFFECTS = "nodes/guard/made_up.py", f"{EFFECT_PACKAGES[0]}made_up.py"
OPEN = "def act(path):\n    with open(path) as file:\n        return file.read()\n"


def act_in(file: str, source: str = OPEN) -> Callable[..., Any]:
    """The function `act` of the source, compiled as if it were in this file of the repository."""
    names: dict[str, Any] = {}
    exec(compile(source, f"{ROOT}/{file}", "exec"), names)  # noqa: S102 - our own words, under a made-up file name
    act = names["act"]
    assert isinstance(act, FunctionType)
    return act


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace as runs create it, with a file `a`, and a file beside the workspace."""
    installed()
    root = tmp_path.resolve() / "root"
    (root / "d").mkdir(parents=True)
    for name in ("root/a", "root-evil", "beside"):
        (tmp_path / name).write_text("x")
    Workspace(str(root), allow)
    return root


BY_HANDLE = """
import os
def act(path):
    handle = os.open(os.path.dirname(path), os.O_RDONLY)
    os.close(os.open('a', os.O_RDONLY, dir_fd=handle))
    os.mkdir('other', dir_fd=handle)
    os.rename('a', 'b', src_dir_fd=handle, dst_dir_fd=handle)
    os.listdir(handle)
    os.close(handle)
"""


def test_in_execute_tools_too_no_other_function_opens_the_absolute_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    with watched() as watch:
        workspace = Workspace(str(root), allow)
        workspace.read_file("a")
        workspace.write_file("new/b", b"x", expected_sha256="")
        assert {(access.path, access.place.partition(":")[0]) for access in watch.allowed} == {
            (str(root), "nodes/workspace/files/handles.py")
        }
        assert watch.violations == []
        act_in(EFFECTS, BY_HANDLE)(str(root / "a"))
        assert watch.violations == [PathAccess("open", str(root), f"{EFFECTS}:4 in act")]
        watch.violations.clear()


def test_access_by_path_fails_the_test(root: Path) -> None:
    path, act = str(root / "a"), act_in(PRODUCT)
    with pytest.raises(pytest.fail.Exception) as failure, watched():
        assert act(path) + act(path) == "xx"
    seen = f"{PRODUCT}:2 in act: open {path!r}"
    assert failure.value.msg == f"paths of a workspace were used by name:\n{seen}"  # once, though twice done
    with watched() as watch:
        assert watch.violations == []
