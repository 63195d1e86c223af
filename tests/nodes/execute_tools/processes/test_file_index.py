import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from mendgraph.nodes.execute_tools.files.file_reads import BeneathReader
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.processes import file_index as module
from mendgraph.nodes.execute_tools.processes.file_index import (
    Content,
    ContentReader,
    FileIndex,
    WatchLimits,
    file_index,
)
from mendgraph.nodes.execute_tools.processes.tree_status import Status, Tree, look_through
from tests.nodes.execute_tools.files.layout import no_env, sha

LIMITS = WatchLimits(files=4, file_bytes=10, all_bytes=25)
LONG_AGO_NS = 10**18


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as written long ago, although its test has just made it."""
    monkeypatch.setattr(module, "COARSEST_CLOCK_NS", -LONG_AGO_NS)


@contextmanager
def looked(root: Path, limits: WatchLimits = LIMITS, seconds: float = 600.0) -> Iterator[tuple[Tree, ContentReader]]:
    paths = JudgedPaths(str(root), no_env)
    with closing(open_root(str(root))) as handle, BeneathReader(paths, handle) as files:
        tree = look_through(paths, handle, most=1_000, deadline=monotonic() + 600)
        assert isinstance(tree, Tree)
        yield tree, ContentReader(files, limits, monotonic() + seconds, tree.began_ns)


def put(root: Path, files: dict[str, bytes], *, mtime_s: int | None = None) -> None:
    for name, data in files.items():
        (root / name).write_bytes(data)
        if mtime_s is not None:
            os.utime(root / name, (mtime_s, mtime_s))


def read(index: FileIndex, root: Path, limits: WatchLimits = LIMITS) -> dict[str, bytes]:
    with looked(root, limits) as (tree, reader):
        contents = index.read(tree, reader)
        assert (index.tree, index.contents) == (tree, contents)
        assert {name: content.status for name, content in contents.items()} == {
            name: tree.files[name] for name in contents
        }
        assert [content.sha256 for content in contents.values()] == [sha(each.data) for each in contents.values()]
        return {name: content.data for name, content in contents.items()}


def test_the_contents_of_files_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"1", "b": b"", ".env": b"secret", "c": b"0123456789", "d": b"0123456789+"})
    (tmp_path / "link").symlink_to("a")
    assert read(FileIndex(), tmp_path) == {"a": b"1", "b": b"", "c": b"0123456789"}


def test_what_was_changed_last_is_known_first(tmp_path: Path) -> None:
    for age, name in enumerate("abcdef"):
        put(tmp_path, {name: name.encode()}, mtime_s=1_000 + age)
    put(tmp_path, {"A": b"A"}, mtime_s=1_005)
    assert list(read(FileIndex(), tmp_path)) == ["A", "d", "e", "f"]


def test_a_file_that_fits_is_known_although_a_larger_one_does_not_fit(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"0123456789", "b": b"0123456789"}, mtime_s=1_002)
    put(tmp_path, {"c": b"012345"}, mtime_s=1_001)
    put(tmp_path, {"d": b"01234"}, mtime_s=1_000)
    assert list(read(FileIndex(), tmp_path)) == ["a", "b", "d"]


@pytest.mark.usefixtures("settled")
def test_only_what_is_new_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"a": b"1", "b": b"1", "c": b"1"})
    index = FileIndex()
    read(index, tmp_path)
    asked: list[str] = []

    original = BeneathReader.read

    def noting(self: BeneathReader, name: str, most: int) -> bytes | None:
        asked.append(name)
        return original(self, name, most)

    monkeypatch.setattr(BeneathReader, "read", noting)
    (tmp_path / "a").unlink()
    put(tmp_path, {"b": b"22", "d": b"4"})
    assert read(index, tmp_path) == {"b": b"22", "c": b"1", "d": b"4"}
    assert sorted(asked) == ["b", "d"]


def test_what_was_written_a_moment_ago_is_read_again(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"1"})
    index = FileIndex()
    read(index, tmp_path)
    index.contents["a"] = index.contents["a"]._replace(data=b"2", sha256=sha(b"2"))
    assert read(index, tmp_path) == {"a": b"1"}


def test_a_content_is_sure_once_its_file_is_old_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"a": b"1"})
    for clock_ns, sure in ((-LONG_AGO_NS, True), (module.COARSEST_CLOCK_NS, False)):
        monkeypatch.setattr(module, "COARSEST_CLOCK_NS", clock_ns)
        with looked(tmp_path) as (tree, reader):
            status = tree.files["a"]
            assert reader.read("a", status) == Content(status, b"1", sha(b"1"), sure)


def test_nothing_is_read_after_the_deadline(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"1"})
    index = FileIndex()
    with looked(tmp_path, seconds=-1.0) as (tree, reader):
        assert index.read(tree, reader) == {}
        assert reader.sha256("a", tree.files["a"]) is None
    assert index.tree == tree


def test_a_larger_file_is_known_by_its_hash(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"1" * 20, "b": b"1" * 21, ".env": b"1"})
    (tmp_path / "link").symlink_to("a")
    with looked(tmp_path, LIMITS._replace(hashed_bytes=20)) as (tree, reader):
        hashes = {name: reader.sha256(name, status) for name, status in tree.files.items()}
    assert hashes == {"a": sha(b"1" * 20), "b": None, ".env": None, "link": None}


def status(size: int, mode: int = 0o100644) -> Status:
    return Status(1, 2, mode, size, 3, 4)


def test_a_reader_counts_files_and_bytes(tmp_path: Path) -> None:
    with looked(tmp_path) as (_, reader):
        allowed = [reader.allows(each) for each in (status(11), status(1, 0o120777), status(10), status(10), status(6))]
        assert allowed == [False, False, True, True, False]
        assert [reader.allows(status(0)) for _ in range(3)] == [True, True, False]


def test_a_workspace_has_one_index(tmp_path: Path) -> None:
    assert file_index(str(tmp_path)) is file_index(str(tmp_path))
    assert file_index(str(tmp_path)) is not file_index(str(tmp_path / "b"))
