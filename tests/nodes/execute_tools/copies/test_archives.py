import errno
import os
import socket
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies.archives import LIMITS, Limits, copy_tree, extract_archive, single_folder
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.records import ToolErrorCode
from tests.nodes.execute_tools.processes.git_places import HARD, LINK, tar, tree, write, zipped

Member = tuple[str, str | bytes, Mapping[str, object]]


def problem(archive: Path, target: Path, limits: Limits = LIMITS) -> str:
    """Extract it; what is said against it, "" if nothing is."""
    target.mkdir(exist_ok=True)
    with closing(os.open(archive, os.O_RDONLY)) as handle:
        error = extract_archive(handle, archive.name, str(target), limits)
    assert error is None or error.code is ToolErrorCode.INVALID_ARGUMENT, error
    return error.message if error else ""


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tgz", "w:gz"), (".tar.xz", "w:xz"), (".tbz2", "w:bz2")])
def test_a_tar_archive_becomes_its_files(tmp_path: Path, ending: str, mode: str) -> None:
    members: tuple[Member, ...] = (
        ("./top", "", {"type": tarfile.DIRTYPE, "mode": 0o750}),
        ("./top/a.sh", "echo", {"mode": 0o755, "mtime": 1_000}),
        ("./top/deep/b", b"\0\1", {"mode": 0o4640}),
        ("./top/deep/up", "", {**LINK, "linkname": "../a.sh"}),
        ("./top/again", "", {**HARD, "linkname": "top/deep/b", "mode": 0o640}),
    )
    assert problem(tar(tmp_path / f"x{ending}", *members, mode=mode), tmp_path / "out") == ""
    assert tree(tmp_path / "out/top") == {
        "a.sh": (True, b"echo"),
        "deep/b": (False, b"\0\1"),
        "deep/up": (False, b"-> ../a.sh"),
        "again": (False, b"\0\1"),
    }
    assert (tmp_path / "out/top/deep/b").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "out/top/a.sh").stat().st_mtime == 1_000


def test_a_zip_archive_becomes_its_files(tmp_path: Path) -> None:
    members = (
        ("d/", "", 0o40755),
        ("d/a.sh", "echo", 0o100755),
        ("d/plain", "p", 0),
        ("e/link", "../d/a.sh", 0o120777),
    )
    assert problem(zipped(tmp_path / "x.zip", *members), tmp_path / "out") == ""
    assert tree(tmp_path / "out") == {
        "d/a.sh": (True, b"echo"),
        "d/plain": (False, b"p"),
        "e/link": (False, b"-> ../d/a.sh"),
    }


BAD: list[tuple[Member, ...]] = [
    (("../a", "x", {}),),
    (("d/../../a", "x", {}),),
    (("n" * 300, "x", {}),),
    (("l", "", {**LINK, "linkname": "/etc/passwd"}),),
    (("d/l", "", {**LINK, "linkname": "../../x"}),),
    (("l", "", {**LINK, "linkname": "."}), ("l/x", "x", {})),
    (("l", "", {**LINK, "linkname": "d"}), ("l", "x", {})),
    (("a", "x", {}), ("a/b", "x", {})),
    (("h", "", {**HARD, "linkname": "../x"}),),
    (("h", "", {**HARD, "linkname": "no"}),),
    (("p", "", {"type": tarfile.FIFOTYPE}),),
    (("p", "", {"type": tarfile.CHRTYPE}),),
]


@pytest.mark.parametrize("members", BAD)
def test_what_leads_out_of_a_tar_archive_is_refused(tmp_path: Path, members: tuple[Member, ...]) -> None:
    (tmp_path / "x").write_text("outside")
    archive = tar(tmp_path / "x.tar.gz", *members)
    (tmp_path / "out").mkdir()
    with closing(os.open(archive, os.O_RDONLY)) as handle:
        assert extract_archive(handle, archive.name, str(tmp_path / "out")) is not None
    assert sorted(os.listdir(tmp_path)) == ["out", "x", "x.tar.gz"]
    assert (tmp_path / "x").read_text() == "outside"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("../a", "x", 0o100644)], "'../a' leads out of it"),
        ([("l", "/etc/passwd", 0o120777)], "a link leads to '/etc/passwd', which is outside of it"),
        ([("l", ".x", 0o120777), ("l/a", "x", 0o100644)], "'l/a' is below what is no folder"),
    ],
)
def test_what_leads_out_of_a_zip_archive_is_refused(
    tmp_path: Path, members: list[tuple[str, str, int]], said: str
) -> None:
    assert said in problem(zipped(tmp_path / "x.zip", *members), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "x.zip"]


@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_limits_end_what_grows_too_much(tmp_path: Path, ending: str) -> None:
    zeros = b"\0" * 400_000
    if ending == ".zip":
        archive = zipped(tmp_path / "x.zip", ("a", zeros, 0), ("b", "", 0), ("c", "", 0))
    else:
        archive = tar(tmp_path / "x.tar.gz", ("a", zeros, {}), ("b", "", {}), ("c", "", {}))
    few, small, thin = Limits(entries=2), Limits(bytes=300_000), Limits(ratio=100, free_bytes=1_000)
    assert "has more than 2 entries" in problem(archive, tmp_path / "out", few)
    for limits in (small, thin):
        assert "becomes larger than" in problem(archive, tmp_path / "out", limits)
    assert problem(archive, tmp_path / "out") == ""


def test_a_header_without_end_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"comment": "x" * 300_000}
        archive.addfile(info)
    assert "becomes larger than 100,000 bytes" in problem(
        tmp_path / "x.tar.gz", tmp_path / "out", Limits(bytes=100_000)
    )


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tar.xz", "x.tar.bz2"])
def test_what_is_no_archive_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no archive at all" * 100)
    said = problem(tmp_path / name, tmp_path / "out")
    assert said.startswith(f"The archive '{name}' cannot be extracted: ")
    assert said.isprintable()


def test_a_zip_with_a_password_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("a", "x", 0))
    data = bytearray(archive.read_bytes())
    for mark, flag in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + flag] |= 1
    archive.write_bytes(data)
    assert "is encrypted" in problem(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "single"),
    [
        (["top/a"], "top"),
        (["top/a", "__MACOSX/b", ".DS_Store"], "top"),
        (["top/a", "b"], None),
        (["a"], None),
        ([".git/config"], None),
        ([], None),
    ],
)
def test_the_single_folder_of_an_archive(tmp_path: Path, names: list[str], single: str | None) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with closing(open_root(str(tmp_path))) as folder:
        assert single_folder(folder) == single


def copied(source: Path, target: Path, *without: Identity) -> tuple[str, ...]:
    target.mkdir(exist_ok=True)
    with closing(open_root(str(source))) as here, closing(open_root(str(target))) as there:
        return copy_tree(here, there, without)


def modes(root: Path) -> dict[str, tuple[int, int]]:
    found = {path.relative_to(root).as_posix(): path.lstat() for path in root.rglob("*") if not path.is_symlink()}
    return {name: (stat.S_IMODE(status.st_mode), status.st_mtime_ns) for name, status in found.items()}


def test_files_folders_links_modes_and_times_are_copied(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a", "d/e/run": "x" * 100_000, "odd \n\udcff": b"\0"})
    (tmp_path / "outside").write_text("canary")
    (source / "empty").mkdir()
    for name, target in (("in", "a"), ("out", str(tmp_path / "outside")), ("up", "../outside"), ("d/dangling", "no")):
        (source / name).symlink_to(target)
    (source / "folders").symlink_to("d")
    (source / "d/e/run").chmod(0o755)
    (source / "a").chmod(0o600)
    os.utime(source / "d/e", ns=(1, 2_000_000_003))
    (source / "d/e").chmod(0o555)
    assert copied(source, tmp_path / "target") == ()
    assert tree(tmp_path / "target") == tree(source)
    assert modes(tmp_path / "target") == modes(source)


def test_where_the_system_cannot_copy_by_itself_bytes_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    source = write(tmp_path / "source", {"a": b"x" * 3_000_000})
    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert copied(source, tmp_path / "target") == ()
    assert tree(tmp_path / "target") == tree(source)


def test_special_files_are_left_out_and_told(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a"})
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "sock"))
        assert copied(source, tmp_path / "target") == ("pipe", "sock")
    assert os.listdir(tmp_path / "target") == ["a"]


def test_named_folders_are_left_out_and_the_copy_is_not_copied_into_itself(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a", "out/b": "b"})
    status = (source / "out").stat()
    assert copied(source, source / "out/copy", (status.st_dev, status.st_ino)) == ()
    assert tree(source / "out/copy") == {"a": (False, b"a")}
