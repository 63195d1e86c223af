import os
import socket
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import listing
from nodes.execute_tools.environment.handles import closing, open_directory
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.listing import Entry, judged_entries, read_entries
from nodes.execute_tools.environment.sandbox import Place
from tests.nodes.execute_tools.environment.layout import DENIAL, no_env


def listed(folder: Path, prefix: str = "") -> set[Entry]:
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        return set(read_entries(descriptor, prefix))


def test_each_kind_is_told_apart_and_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("directory")
    os.mkdir(".GIT")
    Path("file").write_bytes(b"12345")
    os.mkfifo("pipe")
    os.symlink("directory", "link")
    os.symlink("nowhere", "dangling")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    assert listed(tmp_path, "p/") == {
        Entry("p/directory", "directory", 0),
        Entry("p/file", "file", 5),
        Entry("p/pipe", "other", 0),
        Entry("p/socket", "other", 0),
        Entry("p/link", "link", 0),
        Entry("p/dangling", "link", 0),
    }


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="macOS refuses such names")
def test_a_name_that_is_no_text_is_shown_escaped(tmp_path: Path) -> None:
    (Path(os.fsdecode(bytes(tmp_path) + b"/a\xff.py"))).touch()
    assert listed(tmp_path) == {Entry("a\\udcff.py", "file", 0)}


def test_what_vanishes_meanwhile_is_of_no_kind() -> None:
    class Gone:
        name = "gone"

        def is_symlink(self) -> bool:
            raise FileNotFoundError

    gone: Any = Gone()
    assert listing._entry(gone, "") == Entry("gone", "other", 0)


def test_a_directory_of_the_workspace_is_listed_under_its_path(root: Path) -> None:
    paths = JudgedPaths(str(root), no_env)
    assert judged_entries(paths, Place("src", "src")) == [Entry("src/b.py", "file", 6)]
    with pytest.raises(NotADirectoryError):
        judged_entries(paths, Place("a.py", "a.py"))


def test_a_directory_that_took_the_place_of_another_is_judged_again_and_listed_under_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = JudgedPaths(str(root), no_env)
    assert judged_entries(paths, Place("src", "src")) == [Entry("src/b.py", "file", 6)]
    assert Entry("a.py", "file", 7) in judged_entries(paths, Place(".", "."))
    with pytest.raises(NotADirectoryError):
        judged_entries(paths, Place("a.py", "a.py"))

    def swapped(name: str) -> None:
        monkeypatch.setattr(listing, "open_directory", lambda top, _: open_directory(top, (name,)))

    swapped(".git")
    assert judged_entries(paths, Place("src", "src")) == DENIAL
    monkeypatch.undo()
    (root / "other").mkdir()
    (root / "other" / "f").touch()
    swapped("other")
    assert judged_entries(paths, Place("src", "src")) == [Entry("other/f", "file", 0)]
