import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodes.execute_tools.environment.processes import ProcessResult
from nodes.execute_tools.environment.search_program import handle_path, search_handles
from nodes.execute_tools.environment.workspace import OpenedFile, Workspace
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.layout import allow


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[OpenedFile]]:
    (tmp_path / "one").write_bytes(b"1\n")
    (tmp_path / "two").write_bytes(b"2\n")
    workspace = Workspace(str(tmp_path), allow)
    with ExitStack() as stack:
        opened = [workspace.open_file(name) for name in ("two", "one")]
        yield [stack.enter_context(each) for each in opened if isinstance(each, OpenedFile)]


def python(
    program: str, files: list[OpenedFile], timeout_s: float = 20, most: int = 10_000
) -> ProcessResult | ToolError:
    return search_handles([sys.executable, "-c", program], files, timeout_s=timeout_s, max_output_bytes=most)


def test_the_program_reads_the_open_files_whatever_their_names_mean_by_now(
    files: list[OpenedFile], tmp_path: Path
) -> None:
    (tmp_path / "one").unlink()
    (tmp_path / "two").unlink()
    (tmp_path / "two").symlink_to("/etc/passwd")
    program = "import sys; print(*sys.argv[1:]); print([open(name).read() for name in sys.argv[1:]]); sys.exit(3)"
    names = f"{handle_path(files[0])} {handle_path(files[1])}\n"
    assert python(program, files) == ProcessResult(3, f"{names}['2\\n', '1\\n']\n".encode(), b"")


def test_it_gets_no_other_handle_no_input_and_a_clean_place(
    files: list[OpenedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = (
        "import os, sys; print(len([n for n in range(3, 99) if os.path.exists(f'/dev/fd/{n}')]), os.getcwd(),"
        " repr(sys.stdin.read()), 'OPENAI_API_KEY' in os.environ, os.getsid(0) == os.getpid())"
    )
    other = os.open("/", os.O_RDONLY)
    os.set_inheritable(other, True)
    try:
        assert python(program, files[:1]) == ProcessResult(0, b"1 / '' False True\n", b"")
    finally:
        os.close(other)


def test_the_files_stay_open(files: list[OpenedFile]) -> None:
    python("pass", files)
    assert [file.stream.read() for file in files] == [b"2\n", b"1\n"]


def test_output_time_and_start_are_those_of_any_program(files: list[OpenedFile]) -> None:
    cut = python("print('abcd')", files, most=3)
    assert isinstance(cut, ProcessResult)
    assert (cut.stdout, cut.truncated) == (b"abc", True)
    late, lost = (
        python("import time; time.sleep(60)", files, timeout_s=0.3),
        search_handles(["/no/such/program"], files, timeout_s=1, max_output_bytes=1),
    )
    assert isinstance(late, ToolError)
    assert isinstance(lost, ToolError)
    assert (late.code, lost.code) == (ToolErrorCode.TIMEOUT, ToolErrorCode.NOT_FOUND)
