import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.workspace import Workspace
from tests.architecture.product import EFFECT_PACKAGES
from tests.nodes.execute_tools.files.layout import allow
from tests.workspace_watch import ROOT, Sighting, Watch, installed, watched

PRODUCT, EFFECTS = "nodes/guard/made_up.py", f"{EFFECT_PACKAGES[0]}made_up.py"
OPEN = "def act(path):\n    with open(path) as file:\n        return file.read()\n"


def act_in(file: str, source: str = OPEN) -> Callable[..., Any]:
    """The function `act` of the source, as if it stood in this file of ours."""
    names: dict[str, Any] = {}
    exec(compile(source, f"{ROOT}/{file}", "exec"), names)  # noqa: S102 - our own words, under a made-up file name
    act = names["act"]
    assert isinstance(act, FunctionType)
    return act


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace as real runs make it, with a file `a` in it and one beside it."""
    installed()
    root = tmp_path.resolve() / "root"
    (root / "d").mkdir(parents=True)
    for name in ("root/a", "root-evil", "beside"):
        (tmp_path / name).write_text("x")
    Workspace(str(root), allow)
    return root


@pytest.fixture
def watch() -> Iterator[Watch]:
    """The watch of all tests, with nothing left in it that this test has done on purpose."""
    with watched() as watch:
        yield watch
        watch.culprits.clear()


def test_a_culprit_is_named_with_file_line_and_path(root: Path, watch: Watch) -> None:
    path = str(root / "a")
    assert act_in(PRODUCT)(path) == "x"
    assert watch.culprits == [Sighting("open", path, f"{PRODUCT}:2 in act")]
    assert str(watch.culprits[0]) == f"{PRODUCT}:2 in act: open {path!r}"


WAYS = {
    "open": "return os.close(os.open(path, os.O_RDONLY))",
    "os.listdir": "return os.listdir(os.path.dirname(path))",
    "os.scandir": "return os.scandir(os.path.dirname(path)).close()",
    "os.mkdir": "return os.mkdir(path + '-new')",
    "os.rename": "return os.rename(path, path + '-new')",
    "os.remove": "return os.unlink(path)",
    "os.rmdir": "return os.rmdir(os.path.dirname(path) + '/d')",
    "os.link": "return os.link('/dev/null/nothing', path)",
    "os.symlink": "return os.symlink('anywhere', path + '-new')",
    "os.chmod": "return os.chmod(path, 0o600)",
    "os.truncate": "return os.truncate(path, 0)",
    "os.utime": "return os.utime(path)",
    "os.chdir": "return os.chdir(path)",
    "shutil.rmtree": "return shutil.rmtree(path)",
    "shutil.copyfile": "return shutil.copyfile('/dev/null', path)",
    "shutil.move": "return shutil.move(path, path + '-new')",
    "subprocess.Popen": "return subprocess.run(['true'], cwd=os.path.dirname(path))",
}


@pytest.mark.parametrize(("event", "way"), WAYS.items())
def test_every_way_to_use_a_name_is_seen(root: Path, watch: Watch, event: str, way: str) -> None:
    act = act_in(PRODUCT, f"import os, shutil, subprocess\ndef act(path):\n    {way}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root.parent)
        with suppress(OSError):  # the attempt is seen as well
            act(str(root / "a"))
    assert watch.culprits[0].event == event
    assert {each.place for each in watch.culprits} == {f"{PRODUCT}:3 in act"}


@pytest.mark.parametrize(
    "spelling", ["{}/a", "{}//a", "{}/./a", "{}/d/../a", "{}/d/../../root/a", "{}/../root/a", "/{}/a"]
)
def test_every_spelling_of_the_name_is_seen(root: Path, watch: Watch, spelling: str) -> None:
    act_in(PRODUCT)(spelling.format(root))
    assert [each.path for each in watch.culprits] == [spelling.format(root)]


def test_a_relative_name_is_seen_where_the_process_stands_in_the_workspace(
    root: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    act_in(PRODUCT)("a")
    act_in("graph/made_up.py")("../root/a")
    monkeypatch.chdir(root.parent)
    act_in(PRODUCT)("beside")
    assert [each.path for each in watch.culprits] == ["a", "../root/a"]


# --- What is let through ---------------------------------------------------------------------------------------


def test_other_files_are_let_through(root: Path, watch: Watch) -> None:
    act = act_in(PRODUCT)
    for path in (root.parent / "root-evil", root.parent / "beside", root / ".." / "beside"):
        act(str(path))
    assert (watch.culprits, watch.excused) == ([], [])


def test_tests_are_let_through(root: Path, watch: Watch) -> None:
    assert (root / "a").read_text() == "x"
    assert act_in("tests/nodes/made_up.py")(str(root / "a")) == "x"
    subprocess.run(["true"], cwd=root, check=True)
    assert watch.culprits == []


def test_what_a_test_hands_in_is_the_tests_own(root: Path, watch: Watch) -> None:
    def read() -> str:
        return (root / "a").read_text()

    call = act_in(PRODUCT, "def act(callback):\n    return callback()\n")
    assert (call(read), watch.culprits) == ("x", [])
    call((root / "a").read_text)
    assert watch.culprits == [Sighting("open", str(root / "a"), f"{PRODUCT}:2 in act")]


def test_execute_tools_works_by_handle(root: Path, watch: Watch) -> None:
    workspace = Workspace(str(root), allow)
    workspace.read_file("a")
    workspace.write_file("new/b", b"x", expected_sha256="")
    list(workspace.walk())
    assert watch.culprits == []
    assert {(each.path, each.place.partition(":")[0]) for each in watch.excused} == {
        (str(root), "nodes/execute_tools/files/handles.py")
    }


BY_HANDLE = """
import os
def act(path):
    handle = os.open(os.path.dirname(path), os.O_RDONLY)
    os.close(os.open('a', os.O_RDONLY, dir_fd=handle))
    os.mkdir('new', dir_fd=handle)
    os.rename('a', 'b', src_dir_fd=handle, dst_dir_fd=handle)
    os.listdir(handle)
    os.close(handle)
"""


def test_in_execute_tools_too_no_other_function_opens_the_absolute_name(
    root: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    act_in(EFFECTS, BY_HANDLE)(str(root / "a"))
    assert watch.culprits == [Sighting("open", str(root), f"{EFFECTS}:4 in act")]


def test_in_execute_tools_too_no_change_is_relative_to_where_the_process_stands(
    root: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    act_in(EFFECTS, "import os\ndef act():\n    os.mkdir('new')\n    os.listdir('.')\n")()
    assert [each.event for each in watch.culprits] == ["os.mkdir", "os.listdir"]


def test_imports_are_let_through(root: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "module_of_a_workspace.py").write_text("")
    monkeypatch.syspath_prepend(str(root))
    act_in(PRODUCT, "def act():\n    import module_of_a_workspace\n")()
    del sys.modules["module_of_a_workspace"]
    assert watch.culprits == []


def test_our_own_sources_are_no_workspace() -> None:
    watch = Watch("/ours/repository")
    for root in ("/", "/ours", "/ours/repository"):
        watch.add_root(root)
    watch.hook("open", ("/ours/repository/a", "r", 0))
    assert (watch.culprits, watch._roots) == ([], set())
    watch.add_root("/ours/repository/examples")
    assert watch._roots == {"/ours/repository/examples"}


# --- What becomes of a culprit


def test_the_test_of_a_culprit_fails(root: Path) -> None:
    path, act = str(root / "a"), act_in(PRODUCT)
    with pytest.raises(pytest.fail.Exception) as failure, watched():
        assert act(path) + act(path) == "xx"
    seen = f"{PRODUCT}:2 in act: open {path!r}"
    assert failure.value.msg == f"paths of a workspace were used by name:\n{seen}"
    with watched() as watch:
        assert watch.culprits == []
