import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tools.search_files import (
    LINE_CHARACTERS,
    MAX_FILE_BYTES,
    MAX_HANDLES,
    MAX_SHOWN_BYTES,
    clip,
    search_files,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import OpenedFile, Workspace
from tests.row_tables import rows
from tests.rules.secrets.samples import BASE64, BLOCKS, MIXED
from tests.workspace.conftest import Bench, deny_env

FILES: dict[str, str | bytes] = {
    "a.py": "import os\n\n\ndef add(a, b):\n    return a + b\n",
    "src/b.py": "def Add(x):\n    return x\n",
    "src/sub/c.txt": "add it\r\n",
    "src/gen/d.py": "def add(): pass\n",
    "src/gen.txt": "add\n",
    ".env": "add=secret\n",
    ".github/e.yml": "add: 1\n",
    ".git/config": "add\n",
    "build/f.py": "def add(): pass\n",
    "binary": b"add\x00add",
    ".gitignore": "build/\n/src/gen.txt\n",
    "src/.gitignore": "gen/\n",
    ".ignore": "a.py\n",
}


def places(bench: Bench, **arguments: Any) -> list[str]:
    matches = bench.data(search_files, **arguments)["matches"]
    return [f"{match['path']}:{match['line']}:{match['text']}" for match in matches]


@rows(
    ({"pattern": "def add"}, ["a.py:4:def add(a, b):"]),
    (
        {"pattern": "ADD", "ignore_case": True},
        [".github/e.yml:1:add: 1", "a.py:4:def add(a, b):", "src/b.py:1:def Add(x):", "src/sub/c.txt:1:add it"],
    ),
    ({"pattern": "(a, b)", "literal": True}, ["a.py:4:def add(a, b):"]),
    ({"pattern": "add", "path": "src/sub/c.txt"}, ["src/sub/c.txt:1:add it"]),
    ({"pattern": "add", "glob": "*.py"}, ["a.py:4:def add(a, b):"]),
    ({"pattern": "add", "glob": "src/**/*.txt"}, ["src/sub/c.txt:1:add it"]),
    ({"pattern": "add", "glob": "*.{yml,toml}"}, [".github/e.yml:1:add: 1"]),
    ({"pattern": "add", "path": "link"}, ["src/sub/c.txt:1:add it"]),
    ({"pattern": "add", "path": "empty"}, []),
)
def test_matching_lines_are_found(arguments: dict[str, Any], expected: list[str], bench: Bench) -> None:
    bench.put(FILES)
    (bench.root / "empty").mkdir()
    (bench.root / "link").symlink_to("src")
    (bench.root / "outside").symlink_to("/etc")
    assert sorted(places(bench, **arguments)) == expected


def test_match_has_its_context_lines(bench: Bench) -> None:
    bench.put(FILES)
    [match] = bench.data(search_files, pattern="def add", context_lines=3)["matches"]
    before, after = ["import os", "", ""], ["    return a + b"]
    assert match == {"path": "a.py", "line": 4, "text": "def add(a, b):", "before": before, "after": after}


def test_private_key_lines_are_redacted_in_matches(bench: Bench) -> None:
    bench.put({"key.py": f'KEY = """{BLOCKS[0]}"""\nlimit = 10\n'})
    assert places(bench, pattern=BASE64[:8]) == [f"key.py:2:{MARK}", f"key.py:4:{MARK}"]
    [match] = bench.data(search_files, pattern="limit", context_lines=3)["matches"]
    assert (match["before"], match["text"]) == ([MARK, MARK, f'{MARK}"""'], "limit = 10")


def test_no_match_gives_guidance(bench: Bench) -> None:
    """Spec 3, How to verify: zero results return the guidance message."""
    bench.put(FILES)
    guidance = "no matches found; try list_files, check alternate naming, or broaden the filters"
    result = bench.data(search_files, pattern="nothing like it")
    assert result == {"matches": [], "has_more": False, "guidance": guidance}


def test_many_matches_are_truncated(bench: Bench) -> None:
    bench.put({"a": "x\n" * 200, "b": "x\n"})
    data = bench.data(search_files, pattern="x", max_results=100)
    assert (len(data["matches"]), data["has_more"]) == (100, True)
    assert data["guidance"] == "there are more matches; narrow the pattern or the path"


LATE = ToolError(code=ToolErrorCode.TIMEOUT, message="rg was stopped.")
NARROW = "The search took longer than 10 s: narrow it with path or glob."


@pytest.mark.parametrize(
    ("part", "answer", "message"),
    [
        ("ripgrep_path", None, "needs ripgrep, which is not installed"),
        ("run_process", LATE, NARROW),
        ("search_handles", LATE, NARROW),
    ],
)
def test_error_without_ripgrep_or_time_says_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str, answer: Any, message: str
) -> None:
    bench.put(FILES)
    monkeypatch.setattr(sys.modules[search_files.run.__module__], part, lambda *_, **__: answer)
    error = bench.error(search_files, pattern="a")
    assert error.code is (ToolErrorCode.TIMEOUT if answer else ToolErrorCode.UNAVAILABLE)
    assert message in error.message


# --- Two steps: which files, then what is in them


class Watched(Workspace):
    """Remembers which files are opened for a search; something happens `before` and `after` the first of them."""

    def __init__(self, bench: Bench, before: Callable[[], object] = int, after: Callable[[], object] = int) -> None:
        super().__init__(str(bench.root), deny_env)
        self.names: list[str] = []
        self._before, self._after = before, after

    def open_file(self, path: str) -> OpenedFile | ToolError:
        self.names.append(path)
        if len(self.names) == 1:
            self._before()
        opened = super().open_file(path)
        if len(self.names) == 1:
            self._after()
        return opened


def replace_by_link(bench: Bench, target: str) -> None:
    (bench.root / "a.txt").unlink()
    (bench.root / "a.txt").symlink_to(target)


@rows("../outside.txt", "/etc/hostname", ".env", "gone")
def test_file_swapped_for_a_link_is_not_shown(target: str, bench: Bench) -> None:
    bench.put({"a.txt": "add\n", "b.txt": "add\n", ".env": "add=secret\n", "../outside.txt": "add secret\n"})
    bench.workspace = Watched(bench, before=lambda: replace_by_link(bench, target))
    assert places(bench, pattern="add") == ["b.txt:1:add"]


def test_file_is_searched_by_its_open_handle(bench: Bench) -> None:
    """When the file is read, its name leads outside; the handle does not."""
    bench.put({"a.txt": "add\n", "../outside.txt": "add secret\n"})
    bench.workspace = Watched(bench, after=lambda: replace_by_link(bench, "../outside.txt"))
    assert places(bench, pattern="add") == ["a.txt:1:add"]


class Spoiled:
    """A stream that can be searched, but not looked through for keys afterwards."""

    def __init__(self, stream: BinaryIO, data: bytes | None) -> None:
        self._data = data
        self.fileno, self.seek, self.close = stream.fileno, stream.seek, stream.close

    def read(self, _: int) -> bytes:
        if self._data is None:
            raise OSError(5, "Input/output error")
        return self._data


@rows(None, b"x" * (MAX_FILE_BYTES + 1))
def test_file_that_cannot_be_scanned_for_keys_is_not_shown(data: bytes | None, bench: Bench) -> None:
    class Spoiling(Watched):
        def open_file(self, path: str) -> OpenedFile | ToolError:
            opened = super().open_file(path)
            assert isinstance(opened, OpenedFile)
            spoiled: Any = Spoiled(opened.stream, data)
            return replace(opened, stream=spoiled) if path == "a.py" else opened

    bench.put({"a.py": "limit = 10\n", "b.py": "limit = 20\n"})
    bench.workspace = Spoiling(bench)
    assert places(bench, pattern="limit") == ["b.py:1:limit = 20"]


def test_binary_and_large_files_are_skipped(bench: Bench) -> None:
    bench.put({"binary": b"add\nadd\x00add\n", "large": "add\n" * (MAX_FILE_BYTES // 4 + 1), "small": "add\n"})
    assert places(bench, pattern="add") == ["small:1:add"]
    assert places(bench, pattern="add", path="binary") == []


def test_search_opens_no_more_files_than_needed(bench: Bench) -> None:
    bench.put({f"{number:03}": "add\nadd\n" for number in range(50)} | {"00/.env": "add\n", "0.md": "add\n"})
    bench.workspace = watched = Watched(bench)
    data = bench.data(search_files, pattern="add", max_results=3, glob="0*")
    assert [(match["path"], match["line"]) for match in data["matches"]] == [("0.md", 1), ("000", 1), ("000", 2)]
    assert (data["has_more"], watched.names) == (True, ["0.md", "000", "001", "002"])


@rows([f"{at:03}" for at in range(MAX_HANDLES + 1)], [f"{'d' * 200}/" * 4 + str(at) for at in range(70)])
def test_search_of_many_files_is_truncated_with_a_note(names: list[str], bench: Bench) -> None:
    bench.put(dict.fromkeys(names, "add\n"))
    data = bench.data(search_files, pattern="add", max_results=100)
    assert 0 < len(data["matches"]) < len(names)
    assert data["has_more"] is True


@rows("--glob=!*.py", "--files-without-match", "--invert-match")
def test_ripgrep_settings_of_the_user_are_ignored(
    option: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ripgreprc").write_text(f"{option}\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "ripgreprc"))
    bench.put({"a.py": "one\nadd\n", "b.py": "two\n"})
    assert places(bench, pattern="add") == ["a.py:2:add"]


def test_size_of_the_result_is_bounded(bench: Bench) -> None:
    bench.put({"a": f"{'é' * 300}\n" * 100})
    data = bench.data(search_files, pattern="é", max_results=100)
    size = len(json.dumps(data["matches"], ensure_ascii=False).encode())
    assert data["has_more"]
    assert MAX_SHOWN_BYTES - 700 < size < MAX_SHOWN_BYTES + 200


def test_unusual_file_names_are_searched_except_non_utf8(bench: Bench) -> None:
    bench.put({"line\nbreak": "add\n", "-x": "add\n", "é": "add\n"})
    with open(os.fsencode(bench.root) + b"/\xff", "wb") as file:
        file.write(b"add\n")
    assert places(bench, pattern="add") == ["-x:1:add", "line\nbreak:1:add", "é:1:add"]


TOKEN = "".join(("gh", "p_", MIXED[:36]))


CLIPPED = [
    ("ab " * 101, 0, "ab " * 100 + "[...]"),
    ("ab " * 100 + "abc", 301, "[...]" + "ab " * 99 + "abc"),
    ("ab " * 99 + "a quokka-4471", 0, "ab " * 99 + "a [...]"),
    ("quokka-4471 b" + " ab" * 99, 300, "[...] b" + " ab" * 99),
    (f"{'ab ' * 99}{TOKEN} {'ab ' * 99}", 300, f"[...] {'ab ' * 32}{MARK} {'ab ' * 54}[...]"),
    (f'{"ab " * 99}password = "x8K!qP2zzz", {"ab " * 99}', 411, f'[...]{MARK}", {"ab " * 96}[...]'),
]


def test_long_line_is_cut_around_the_match_between_words() -> None:
    assert [clip(line, at) for line, at, _ in CLIPPED] == [clipped for *_, clipped in CLIPPED]
    assert all(len(clipped) <= LINE_CHARACTERS + 10 + len(MARK) for *_, clipped in CLIPPED)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 830))
def test_no_part_of_a_token_is_shown(before: int, after: int, at: int) -> None:
    line = "a " * before + TOKEN + " a" * after
    clipped = clip(line, at)
    if len(line) > LINE_CHARACTERS:
        assert clipped.replace(MARK, "").strip("[.] a") == ""
