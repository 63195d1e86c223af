import os
import socket
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import listing
from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.environment.listing import Entry, entries_of, read_entries
from nodes.execute_tools.environment.sandbox import Place


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
    assert entries_of(str(root), Place("src", "src")) == [Entry("src/b.py", "file", 6)]
    assert Entry("a.py", "file", 7) in entries_of(str(root), Place(".", "."))
    with pytest.raises(NotADirectoryError):
        entries_of(str(root), Place("a.py", "a.py"))
