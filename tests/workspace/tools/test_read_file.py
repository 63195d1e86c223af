import hashlib
import json
import re
from pathlib import Path
from typing import Any

from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tools.read_file import MAX_PAGE_BYTES, read_file
from mendgraph.nodes.records import ToolErrorCode
from mendgraph.nodes.workspace.store.run_folder import Artifacts
from tests.row_tables import rows
from tests.rules.secrets.samples import BLOCKS
from tests.workspace.conftest import Bench


def test_long_file_is_read_in_pages_of_500_lines(bench: Bench) -> None:
    """Spec 3, How to verify: a file of more than 500 lines is cut, with pagination metadata."""
    bench.put({"a": "".join(f"{number}\n" for number in range(1, 1202))})
    first = bench.data(read_file, path="a")
    keys = ("lines_shown", "lines_remaining", "has_more", "next_start_line")
    assert [first[key] for key in keys] == [500, 701, True, 501]
    last = bench.data(read_file, path="a", start_line=1001)
    assert [last[key] for key in keys] == [201, 0, False, None]
    assert last["content"].startswith("1001\n")


def test_lines_per_page_are_configurable(bench: Bench) -> None:
    bench.put({"a": "1\n2\n3\n4\n"})
    context = ToolContext(bench.workspace, max_lines=3)
    counts = [read_file.s(context, path="a", **limit).result.data["lines_shown"] for limit in ({}, {"limit": 9})]
    assert [*counts, bench.data(read_file, path="a", limit=2)["lines_shown"]] == [3, 3, 2]


def read_kept(bench: Bench, artifacts: Artifacts | None, **arguments: Any) -> ToolOutput:
    output: ToolOutput = read_file.s(ToolContext(bench.workspace, artifacts=artifacts), **arguments)
    return output


def test_stored_result_is_read_in_pages_and_is_not_a_read_file(bench: Bench, tmp_path: Path) -> None:
    bench.put({"@result/1": "a file that is really called so\n"})
    artifacts = Artifacts(str(tmp_path / "kept"))
    assert artifacts.keep("".join(f"{number}\n" for number in range(1, 1_202))) == "@result/1"
    output = read_kept(bench, artifacts, path="@result/1", start_line=1_200, limit=1)
    page = {"path": "@result/1", "content": "1200\n", "start_line": 1_200, "lines_shown": 1, "lines_remaining": 1}
    assert output == ToolOutput.ok(**page, has_more=True, next_start_line=1_201)
    assert read_kept(bench, artifacts, path="./@result/1").result.data["content"] == "a file that is really called so\n"


@rows(True, False)
def test_unknown_reference_is_not_a_path(has_results: bool, bench: Bench, tmp_path: Path) -> None:
    bench.put({"@result/2": "a file"})
    artifacts = Artifacts(str(tmp_path / "kept"))
    artifacts.keep("x")
    error = read_kept(bench, artifacts if has_results else None, path="@result/2").result.error
    assert error is not None
    assert (error.code, error.suggestions) == (ToolErrorCode.NOT_FOUND, ("@result/1",) if has_results else ())


@rows(
    (b"", {}, ("", 0, 0, None)),
    (b"a", {}, ("a", 1, 0, None)),
    (b"a\nb\nc\n", {"limit": 2}, ("a\nb\n", 2, 1, 3)),
    (b"a\nb\nc\n", {"start_line": 3, "limit": 2}, ("c\n", 1, 0, None)),
    (b"a\nb\nc", {"start_line": 2, "limit": 1}, ("b\n", 1, 1, 3)),
    (b"a\r\nb\rc\r\n", {}, ("a\nb\rc\n", 2, 0, None)),
    (b"a\r", {}, ("a\r", 1, 0, None)),
    ("\ufeffé\u2028\n".encode(), {}, ("é\u2028\n", 1, 0, None)),
)
def test_page_has_its_lines_and_position(
    data: bytes, arguments: dict[str, int], expected: tuple[object, ...], bench: Bench
) -> None:
    bench.put({"a": data})
    output = bench.run(read_file, path="a", **arguments)
    keys = ("content", "lines_shown", "lines_remaining", "next_start_line")
    assert tuple(output.result.data[key] for key in keys) == expected
    assert output.files_read == {"a": hashlib.sha256(data).hexdigest()}


@rows(
    ("abc", "abc"),
    (" abcd", "  [... 4 more characters: start_line 1, start_column 1999]"),
    (" quokka-4471-lantern-88", "  [... 22 more characters: start_line 1, start_column 1999]"),
    (" sk-abcdefghijkl1234mnop abc", f" {MARK} [... 4 more characters: start_line 1, start_column 2022]"),
)
def test_long_line_is_cut_between_words(tail: str, ending: str, bench: Bench) -> None:
    start = "ab " * 664 + " pass"
    bench.put({"a": f"{start}{tail}\r\n"})
    assert bench.data(read_file, path="a")["content"] == start + ending + "\n"


_GOES_ON = re.compile(r" \[\.\.\. \d+ more characters: start_line 1, start_column (\d+)\]\Z")


@rows((0, 40), (1_990, 40), (1_990, 4_080), (20_000, 4_080))
def test_long_line_is_read_in_pieces_without_part_of_a_secret(before: int, length: int, bench: Bench) -> None:
    secret = "".join(hashlib.sha256(bytes([at % 256, at // 256])).hexdigest()[:9] for at in range(length // 9 + 1))
    bench.put({"a": f'{"ab," * (before // 3)}"password":"{secret}",{"cd," * 2_000}'})
    pieces, column = list[str](), 1
    while column:
        data = bench.data(read_file, path="a", start_column=column)
        cut = _GOES_ON.search(data["content"])
        assert data["has_more"] is bool(cut)
        assert data.get("long_lines_cut", 0) == bool(cut)
        pieces.append(data["content"][: cut.start()] if cut else data["content"])
        column = int(cut[1]) if cut else 0
    text = "".join(pieces)
    assert MARK in text
    assert not [at for at in range(len(secret) - 9) if secret[at : at + 9] in text]
    assert text.endswith("cd," * 2_000)


def test_no_page_shows_a_line_of_a_private_key(bench: Bench) -> None:
    bench.put({"key.py": f"# a\n{BLOCKS[0]}\nb = 1\n"})
    lines = len(BLOCKS[0].split("\n"))
    pages = [bench.data(read_file, path="key.py", start_line=at, limit=1)["content"] for at in range(1, lines + 3)]
    assert pages == ["# a\n", *[f"{MARK}\n"] * lines, "b = 1\n"]


def test_page_ends_before_its_json_is_too_large(bench: Bench) -> None:
    bench.put({"a": b'"' * 1000 + b"\n" + (b'"' * 1000 + b"\n") * 100})
    many = bench.data(read_file, path="a")
    assert (many["lines_shown"], many["lines_remaining"], many["next_start_line"]) == (24, 77, 25)
    assert MAX_PAGE_BYTES <= len(json.dumps(many["content"])) < MAX_PAGE_BYTES + 2100
