from pathlib import Path

import pytest

from benchmarks.real_model.task import replace_once, write_files


def test_files_are_written_byte_for_byte_and_removed(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/b.txt": "ä\r\n", "c": "x\n", "d": ""})
    write_files(tmp_path, {"c": None, "d": "y"})
    found = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"a/b.txt": b"\xc3\xa4\r\n", "d": b"y"}


def test_one_place_is_exchanged() -> None:
    assert replace_once("a b", "b", "c") == "a c"


@pytest.mark.parametrize(("old", "times"), [("x", 0), ("a", 2)])
def test_an_exchange_that_could_mean_something_else_is_refused(old: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"'{old}' is in the text {times} times instead of once"):
        replace_once("a b a", old, "c")
