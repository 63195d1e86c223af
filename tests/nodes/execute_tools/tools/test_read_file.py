import base64
import hashlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.secrets.shown_parts import masked_blocks
from mendgraph.nodes.execute_tools.store.run_folder import Artifacts
from mendgraph.nodes.execute_tools.tools.read_file import MAX_PAGE_BYTES, TextPage, read_file, read_page
from mendgraph.nodes.records import ToolErrorCode
from tests.nodes.execute_tools.conftest import Bench
from tests.nodes.execute_tools.secrets.samples import BLOCKS


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


def page(
    data: bytes, start_line: int = 1, limit: int = 500, piece: int = 1 << 20, start_column: int = 1
) -> TextPage | None:
    stream = io.BytesIO(data)
    return read_page(lambda size: stream.read(min(size, piece)), start_line, limit, start_column)


def shown(data: bytes, start_line: int = 1, limit: int = 500, piece: int = 1 << 20) -> tuple[str, int, int, int]:
    found = page(data, start_line, limit, piece)
    assert found is not None
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    return found.content, found.lines_shown, found.lines_remaining, found.next_start_line


@pytest.mark.parametrize(
    ("data", "start_line", "limit", "expected"),
    [
        (b"", 1, 5, ("", 0, 0, 0)),
        (b"a", 1, 5, ("a", 1, 0, 0)),
        (b"a\nb\nc\n", 1, 2, ("a\nb\n", 2, 1, 3)),
        (b"a\nb\nc\n", 3, 2, ("c\n", 1, 0, 0)),
        (b"a\nb\nc", 2, 1, ("b\n", 1, 1, 3)),
        (b"a\nb\nc", 3, 1, ("c", 1, 0, 0)),
        (b"a\nb", 9, 1, ("", 0, 0, 0)),
        (b"a\r\nb\rc\r\n", 1, 5, ("a\nb\rc\n", 2, 0, 0)),
        (b"a\r", 1, 5, ("a\r", 1, 0, 0)),
        (b"\xef\xbb\xbfa\n", 1, 5, ("a\n", 1, 0, 0)),
        ("é\u2028\n".encode(), 1, 5, ("é\u2028\n", 1, 0, 0)),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 1 << 20])
def test_pages(data: bytes, start_line: int, limit: int, expected: tuple[str, int, int, int], piece: int) -> None:
    assert shown(data, start_line, limit, piece) == expected


@pytest.mark.parametrize("data", [b"a\x00b", b"\xff", b"a" * 3_000_000 + b"\xff", "é".encode()[:1]])
def test_binary(data: bytes) -> None:
    assert page(data) is None


@given(st.text(alphabet="ab\r\né", max_size=60), st.integers(1, 4), st.integers(1, 7))
def test_all_pages_together_are_the_text(text: str, limit: int, piece: int) -> None:
    contents, start = [], 1
    while start:
        content, lines, _remaining, start = shown(text.encode(), start, limit, piece)
        assert lines <= limit
        contents.append(content)
    assert "".join(contents) == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("length", "end", "line", "cut"),
    [
        (2000, b"\n", "x" * 2000 + "\n", 0),
        (2000, b"\r\n", "x" * 2000 + "\n", 0),
        (2000, b"", "x" * 2000, 0),
        (2001, b"", "x" * 2000 + " [... 1 more characters: start_line 1, start_column 2001]", 1),
        (3_000_000, b"\n", "x" * 2000 + " [... 2998000 more characters: start_line 1, start_column 2001]\n", 1),
    ],
)
def test_long_lines_are_cut(length: int, end: bytes, line: str, cut: int) -> None:
    found = page(b"x" * length + end)
    assert found is not None
    assert (found.content, found.long_lines_cut) == (line, cut)


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        ("abc", "abc"),
        (" abcd", "  [... 4 more characters: start_line 1, start_column 1999]"),
        (", a b c", ", a [... 4 more characters: start_line 1, start_column 2001]"),
        (" quokka-4471-lantern-88", "  [... 22 more characters: start_line 1, start_column 1999]"),
        (" sk-abcdefghijkl1234mnop abc", f" {MARK} [... 4 more characters: start_line 1, start_column 2022]"),
    ],
)
@pytest.mark.parametrize("end", ["", "\r\n"])
def test_a_long_line_is_cut_between_words(tail: str, shown: str, end: str) -> None:
    start = "ab " * 664 + " pass"
    found = page(f"{start}{tail}{end}".encode())
    assert found is not None
    assert found.content == start + shown + end.removeprefix("\r")


def test_a_long_line_is_cut_behind_a_value_that_its_name_makes_a_secret() -> None:
    found = page(f'{"ab " * 660}password="P@ssw0rd99x", abc'.encode())
    assert found is not None
    assert found.content == f'{"ab " * 660}password="{MARK} [... 6 more characters: start_line 1, start_column 2002]'


_GOES_ON = re.compile(r" \[\.\.\. (\d+) more characters: start_line 2, start_column (\d+)\]\Z")


def pages_of_line(line: str, piece: int = 1 << 20) -> list[str]:
    """What is read of the second line of a file by whoever goes on where each page says."""
    pieces, column = [], 1
    while column:
        found = page(f"first\r\n{line}\r\nlast".encode(), 2, 1, piece, column)
        assert found is not None
        assert (found.lines_shown, found.lines_remaining, found.has_more) == (1, 1, True)
        assert found.first_line_length == len(line)
        shown = found.content.removesuffix("\n")
        cut = _GOES_ON.search(shown)
        assert found.long_lines_cut == bool(cut)
        pieces.append(shown[: cut.start()] if cut else shown)
        assert pieces[-1]
        following = int(cut[2]) if cut else 0
        assert cut is None or int(cut[1]) == len(line) - following + 1
        column = following
    return pieces


WORDS = st.sampled_from(["x" * 700, "é" * 1_999, "{", "},", " ", '"k":', "y" * 4_100, "ab,", "\r"])


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=1, max_size=12).map("".join), st.sampled_from([97, 4_096, 1 << 20]))
def test_a_long_line_is_read_to_its_end_by_going_on_where_it_says(line: str, piece: int) -> None:
    pieces = pages_of_line(f"{line}|", piece)
    assert "".join(pieces) == f"{line}|"
    assert all(len(each) <= 2_000 for each in pieces)


@pytest.mark.parametrize("before", [0, 1_990, 60_000])
@pytest.mark.parametrize("length", [40, 3_000, 4_080])
def test_no_page_of_a_long_line_shows_a_part_of_a_secret(before: int, length: int) -> None:
    secret = "".join(hashlib.sha256(bytes([at % 256, at // 256])).hexdigest()[:9] for at in range(length // 9 + 1))
    pieces = pages_of_line(f'{"ab," * (before // 3)}"password":"{secret}",{"cd," * 2_000}')
    shown = "".join(pieces)
    assert MARK in shown
    assert not [at for at in range(len(secret) - 9) if secret[at : at + 9] in shown]
    assert shown.endswith("cd," * 2_000)


def test_a_page_that_ends_with_a_cut_line_has_more() -> None:
    cut, rest = page(b"x" * 2_500), page(b"x" * 2_500, start_column=2_001)
    assert cut is not None
    assert rest is not None
    assert (cut.lines_remaining, cut.has_more, cut.next_start_line) == (0, True, 0)
    assert (rest.content, rest.has_more) == ("x" * 500, False)


def lines_of_key(count: int) -> list[str]:
    letters = base64.b64encode(b"".join(hashlib.sha512(bytes([number])).digest() for number in range(count))).decode()
    return [letters[start : start + 64] for start in range(0, 64 * count, 64)]


@st.composite
def files_with_a_key(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A file, and the lines of the key that stands somewhere in it."""
    key = lines_of_key(draw(st.integers(1, 12)))
    key[-1] = key[-1][: draw(st.integers(14 if key[1:] else 40, 64))]
    kind = draw(st.sampled_from(["", "RSA ", "OPENSSH ", "ENCRYPTED "]))
    lines = [f"-----BEGIN {kind}PRIVATE KEY-----", *key, f"-----END {kind}PRIVATE KEY-----"]
    before, after = draw(st.sampled_from([("", ""), ("# ", ""), ('    "', '\\n"'), ("\t", "")]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    around = st.lists(st.sampled_from(["", "x = 1", "---", "-----BEGIN CERTIFICATE-----", "é" * 70]), max_size=8)
    block = [f"{before}{line}{after}" for line in lines]
    return end.join([*draw(around), *block, *draw(around)]), key


@given(files_with_a_key(), st.integers(1, 24), st.integers(1, 24), st.integers(1, 400))
def test_no_page_shows_a_part_of_a_key(file: tuple[str, list[str]], start: int, limit: int, piece: int) -> None:
    text, key = file
    found = page(text.encode(), start, limit, piece)
    assert found is not None
    parts = [line[at : at + 14] for line in key for at in range(len(line) - 13)]
    assert not [part for part in parts if part in found.content]
    all_lines = masked_blocks(text.replace("\r\n", "\n")).splitlines(keepends=True)
    assert found.content == "".join(all_lines[start - 1 : start - 1 + limit])
    assert found.total_lines == text.count("\n") + (not text.endswith("\n"))


def test_a_key_that_a_long_line_is_cut_in_is_a_mark() -> None:
    block = BLOCKS[0].replace("\n", "\\n")
    found = page(f"{'ab ' * 650}{block} abc\nx".encode())
    assert found is not None
    assert found.content == f"{'ab ' * 650}{MARK} abc\nx"


def test_a_page_ends_before_its_json_gets_too_large() -> None:
    many = page(b'"' * 1000 + b"\n" + (b'"' * 1000 + b"\n") * 100)
    assert many is not None
    assert (many.lines_shown, many.lines_remaining, many.next_start_line) == (24, 77, 25)
    assert MAX_PAGE_BYTES <= len(json.dumps(many.content)) < MAX_PAGE_BYTES + 2100


def test_a_large_file_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["mendgraph.nodes.execute_tools.tools.read_file"], "CHUNK_BYTES", 1000)
    sizes = []

    def read(size: int) -> bytes:
        sizes.append(size)
        return b"line\n" * 200 if len(sizes) < 1000 else b""

    found = read_page(read, 100_000, 2)
    assert found is not None
    assert (found.content, found.total_lines, set(sizes)) == ("line\n" * 2, 999 * 200, {1000})
