import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodes.execute_tools.environment.kept_results import KeptResults
from nodes.language.names import LARGEST_NUMBER
from nodes.records import ToolError, ToolErrorCode


def read(kept: KeptResults, reference: str) -> bytes:
    opened = kept.open(reference)
    assert not isinstance(opened, ToolError), opened
    with opened:
        data = opened.stream.read()
    assert (opened.path, opened.size) == (reference, len(data))
    return data


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_result_is_kept_and_read_again(tmp_path: Path) -> None:
    kept = KeptResults(str(tmp_path / "run" / "results"))
    assert not (tmp_path / "run").exists()
    assert kept.keep("one\n") == "@result/1"
    assert kept.keep("zwei é\n") == "@result/2"
    assert (read(kept, "@result/1"), read(kept, "@result/2")) == (b"one\n", "zwei é\n".encode())


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    KeptResults(str(folder)).keep("x")
    assert (mode_of(folder), mode_of(folder / "1.txt")) == (0o700, 0o600)


def test_another_process_goes_on_with_what_is_there(tmp_path: Path) -> None:
    folder = str(tmp_path / "results")
    KeptResults(folder).keep("before")
    after = KeptResults(folder)
    assert (after.keep("after"), read(after, "@result/1")) == ("@result/2", b"before")


def test_what_is_told_is_never_given_to_another_result(tmp_path: Path) -> None:
    kept = KeptResults(str(tmp_path))
    assert [kept.keep(text) for text in "abc"] == ["@result/1", "@result/2", "@result/3"]
    (tmp_path / "1.txt").unlink()
    assert kept.keep("d") == "@result/4"


def test_results_kept_at_the_same_time_get_names_of_their_own(tmp_path: Path) -> None:
    kept = KeptResults(str(tmp_path))
    references: list[tuple[str | None, str]] = []

    def work(text: str) -> None:
        references.extend((kept.keep(text), text) for _ in range(5))

    threads = [threading.Thread(target=work, args=(text,)) for text in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reference: read(kept, reference).decode() for reference, _ in references if reference} == dict(references)
    assert len({reference for reference, _ in references}) == 20


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.text(max_size=50))
def test_a_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    kept = KeptResults(str(tmp_path))
    reference = kept.keep(text)
    assert reference is not None
    assert read(kept, reference).decode() == text.replace("\0", "\u2400")


def test_what_no_text_file_holds_is_replaced(tmp_path: Path) -> None:
    kept = KeptResults(str(tmp_path))
    assert kept.keep("a\0b\ud800c") == "@result/1"
    assert read(kept, "@result/1") == "a\u2400b?c".encode()


# --- What is not kept ------------------------------------------------------------------------------------------


def test_the_bounds(tmp_path: Path) -> None:
    kept = KeptResults(str(tmp_path), max_bytes=10, max_total=25)
    assert kept.keep("é" * 6) is None
    assert [kept.keep("x" * 10), kept.keep("y" * 10)] == ["@result/1", "@result/2"]
    assert [kept.keep("z" * 6), kept.keep("z" * 5), kept.keep("")] == [None, "@result/3", "@result/4"]
    assert kept.keep("z") is None


def test_there_is_a_largest_number(tmp_path: Path) -> None:
    (tmp_path / f"{LARGEST_NUMBER}.txt").write_bytes(b"")
    assert KeptResults(str(tmp_path)).keep("x") is None


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    fdopen = os.fdopen

    def failing(descriptor: int, mode: str) -> object:
        file = fdopen(descriptor, mode)
        file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdopen", failing)


def test_on_a_full_disk_nothing_is_kept_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch)
    assert KeptResults(str(tmp_path)).keep("x") is None
    assert list(tmp_path.iterdir()) == []


def link_to(target: str) -> Callable[[Path], None]:
    return lambda folder: folder.symlink_to(target)


@pytest.mark.parametrize("lay", [Path.touch, link_to(".."), link_to("nowhere")])
def test_a_folder_that_is_none_is_not_used(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    folder = tmp_path / "results"
    lay(folder)
    kept = KeptResults(str(folder))
    assert kept.keep("x") is None
    assert isinstance(kept.open("@result/1"), ToolError)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptResults(str(tmp_path))
    kept.keep("x")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert kept.keep("y") is None
    opened = kept.open("@result/1")
    assert isinstance(opened, ToolError)
    assert opened.code is ToolErrorCode.PERMISSION_DENIED
    assert len(list(tmp_path.iterdir())) == 1


# --- What is not opened ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["@result/3", "@result/../secret", "1", "1.txt", "../secret", "/etc/passwd"])
def test_an_unknown_reference_names_those_that_exist(tmp_path: Path, reference: str) -> None:
    (tmp_path / "secret").write_text("secret")
    kept = KeptResults(str(tmp_path / "results"))
    kept.keep("a")
    kept.keep("b")
    opened = kept.open(reference)
    assert isinstance(opened, ToolError)
    assert (opened.code, opened.suggestions) == (ToolErrorCode.NOT_FOUND, ("@result/2", "@result/1"))


def test_before_anything_is_kept_there_is_nothing_to_open(tmp_path: Path) -> None:
    opened = KeptResults(str(tmp_path / "results")).open("@result/1")
    assert isinstance(opened, ToolError)
    assert opened.message == "No kept result is called @result/1. None was kept in this run: make the call again."


def lay_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("lay", [lay_link, Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_neither_opened_nor_replaced(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    lay(tmp_path / "1.txt")
    kept = KeptResults(str(tmp_path))
    assert isinstance(kept.open("@result/1"), ToolError)
    assert kept.keep("x") == "@result/2"


def test_no_handle_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    kept = KeptResults(str(tmp_path), max_bytes=3)
    kept.keep("x")
    kept.keep("long")
    read(kept, "@result/1")
    kept.open("@result/2")
    assert os.listdir("/dev/fd") == before
