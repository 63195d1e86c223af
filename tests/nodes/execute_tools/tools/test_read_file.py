import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodes.execute_tools.environment.artifacts import Artifacts
from nodes.execute_tools.redact import MARK
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.read_file import read_file
from nodes.records import ToolErrorCode
from tests.nodes.execute_tools.secrets.samples import BLOCKS
from tests.nodes.execute_tools.tools.conftest import Bench


def test_a_small_file(bench: Bench) -> None:
    bench.put({"src/a.py": b"x = 1\r\ny = 2"})
    output = bench.run(read_file, path="./src/../src/a.py")
    sha256 = hashlib.sha256(b"x = 1\r\ny = 2").hexdigest()
    assert output.result.data == {
        "path": "src/a.py",
        "content": "x = 1\ny = 2",
        "start_line": 1,
        "lines_shown": 2,
        "lines_remaining": 0,
        "has_more": False,
        "next_start_line": None,
    }
    assert output.files_read == {"src/a.py": sha256}
    assert output.changes == ()


def test_a_long_file_comes_in_pages_of_500_lines(bench: Bench) -> None:
    """Spec 3, How to verify: a file of more than 500 lines is cut, with pagination metadata."""
    bench.put({"a": "".join(f"{number}\n" for number in range(1, 1202))})
    first = bench.data(read_file, path="a")
    keys = ("lines_shown", "lines_remaining", "has_more", "next_start_line")
    assert [first[key] for key in keys] == [500, 701, True, 501]
    last = bench.data(read_file, path="a", start_line=1001)
    assert [last[key] for key in keys] == [201, 0, False, None]
    assert last["content"].startswith("1001\n")


def test_an_empty_file_is_no_error(bench: Bench) -> None:
    bench.put({"a": ""})
    data = bench.data(read_file, path="a")
    assert (data["content"], data["lines_shown"], data["has_more"]) == ("", 0, False)


def test_long_lines_are_cut_and_counted(bench: Bench) -> None:
    bench.put({"a": "x" * 1000 + " " + "x" * 1001 + "\nshort\n"})
    data = bench.data(read_file, path="a")
    mark = "[... 1001 more characters: start_line 1, start_column 1002]"
    assert (data["content"][1000:], data["long_lines_cut"]) == (f"  {mark}\nshort\n", 1)


def test_a_minified_file_is_read_to_its_end(bench: Bench) -> None:
    line = json.dumps({f"name{number}": [number] * 9 for number in range(400)}, separators=(",", ":"))
    bench.put({"a.json": line})
    shown, column = "", 1
    while column:
        data = bench.data(read_file, path="a.json", start_column=column)
        assert (data["lines_shown"], data["lines_remaining"]) == (1, 0)
        content, mark, rest = data["content"].partition(" [... ")
        assert data["has_more"] is bool(mark)
        shown, column = shown + content, int(rest.rpartition(" ")[2].strip("]")) if mark else 0
    assert shown == line


def test_the_most_lines_of_a_page_are_a_setting(bench: Bench) -> None:
    bench.put({"a": "1\n2\n3\n4\n"})
    context = ToolContext(bench.workspace, max_lines=3)
    shown = [read_file.s(context, path="a", **limit).result.data["lines_shown"] for limit in ({}, {"limit": 9})]
    assert [*shown, bench.data(read_file, path="a", limit=2)["lines_shown"]] == [3, 3, 2]


def test_a_part_of_a_private_key_is_shown_as_marks(bench: Bench) -> None:
    bench.put({"a.py": f'KEY = """{BLOCKS[0]}"""\nlimit = 10\n'})
    data = bench.data(read_file, path="a.py", start_line=2, limit=3)
    assert (data["content"], data["lines_remaining"]) == (f"{MARK}\n" * 3, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            {"path": "binary"},
            ToolErrorCode.INVALID_ARGUMENT,
            "'binary' is a binary file of 6 bytes; only UTF-8 text can be read.",
        ),
        (
            {"path": "latin"},
            ToolErrorCode.INVALID_ARGUMENT,
            "'latin' is a binary file of 1 bytes; only UTF-8 text can be read.",
        ),
        (
            {"path": "calc.py", "start_line": 40},
            ToolErrorCode.INVALID_ARGUMENT,
            "'calc.py' has 2 lines, so there is nothing at start_line 40.",
        ),
        (
            {"path": "calc.py", "start_line": 2, "start_column": 3},
            ToolErrorCode.INVALID_ARGUMENT,
            "Line 2 of 'calc.py' has 1 characters, so there is nothing at start_column 3.",
        ),
        ({"path": "calc.yp"}, ToolErrorCode.NOT_FOUND, "Did you mean 'calc.py'?"),
        ({"path": ".env"}, ToolErrorCode.PERMISSION_DENIED, ".env is secret"),
        ({"path": "../a"}, ToolErrorCode.PERMISSION_DENIED, "outside the workspace"),
        ({"path": "/etc/hosts"}, ToolErrorCode.PERMISSION_DENIED, "outside the workspace"),
        ({"path": "src"}, ToolErrorCode.INVALID_ARGUMENT, "directory"),
    ],
)
def test_what_cannot_be_read(bench: Bench, arguments: dict[str, Any], code: ToolErrorCode, message: str) -> None:
    bench.put({"binary": b"\x89PNG\x00\x01", "latin": b"\xe9", "calc.py": "a\nb\n", ".env": "KEY=1", "src/a": ""})
    error = bench.error(read_file, **arguments)
    assert error.code is code
    assert message in error.message


def test_a_failing_disk_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    bench.put({"a": "x"})
    monkeypatch.setattr(sys.modules[read_file.run.__module__], "read_page", fail)
    assert bench.error(read_file, path="a").code is ToolErrorCode.IO_ERROR


@pytest.mark.parametrize("arguments", [{"limit": -1}, {"start_line": 0}, {"start_column": 0}])
def test_the_bounds_are_in_the_schema(arguments: dict[str, int]) -> None:
    assert isinstance(read_file.validate({"path": "a", **arguments}), list)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.text(alphabet="ab\r\n", max_size=60), st.integers(1, 4))
def test_pages_together_give_the_file(bench: Bench, text: str, limit: int) -> None:
    bench.put({"a": text})
    contents, start = [], 1
    while start:
        data = bench.data(read_file, path="a", start_line=start, limit=limit)
        contents.append(data["content"])
        start = data["next_start_line"]
    assert "".join(contents) == text.replace("\r\n", "\n")


# --- Kept results ----------------------------------------------------------------------------------------------


def read_kept(bench: Bench, kept: Artifacts | None, **arguments: Any) -> ToolOutput:
    output: ToolOutput = read_file.s(ToolContext(bench.workspace, kept=kept), **arguments)
    return output


def test_a_kept_result_is_read_page_by_page_and_is_no_file_that_was_read(bench: Bench, tmp_path: Path) -> None:
    bench.put({"@result/1": "a file that is really called so\n"})
    kept = Artifacts(str(tmp_path / "kept"))
    assert kept.keep("".join(f"{number}\n" for number in range(1, 1_202))) == "@result/1"
    output = read_kept(bench, kept, path="@result/1", start_line=1_200, limit=1)
    assert output == ToolOutput.ok(
        path="@result/1",
        content="1200\n",
        start_line=1_200,
        lines_shown=1,
        lines_remaining=1,
        has_more=True,
        next_start_line=1_201,
    )
    assert read_kept(bench, kept, path="./@result/1").result.data["content"] == "a file that is really called so\n"


@pytest.mark.parametrize("there", [True, False])
def test_an_unknown_reference_is_no_path(bench: Bench, tmp_path: Path, there: bool) -> None:
    bench.put({"@result/2": "a file"})
    kept = Artifacts(str(tmp_path / "kept"))
    kept.keep("x")
    error = read_kept(bench, kept if there else None, path="@result/2").result.error
    assert error is not None
    assert (error.code, error.suggestions) == (ToolErrorCode.NOT_FOUND, ("@result/1",) if there else ())


def test_beyond_the_end_of_a_kept_result(bench: Bench, tmp_path: Path) -> None:
    kept = Artifacts(str(tmp_path / "kept"))
    kept.keep("x\n")
    error = read_kept(bench, kept, path="@result/1", start_line=2).result.error
    assert error is not None
    assert error.message == "'@result/1' has 1 lines, so there is nothing at start_line 2."
