import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.files.workspace import OpenedFile, Workspace
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tools.search_files import LINE_CHARACTERS, MAX_SHOWN_BYTES, clip, search_files
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.conftest import Bench, deny_env
from tests.nodes.execute_tools.secrets.samples import BASE64, BLOCKS, MIXED

MODULE = sys.modules[search_files.run.__module__]

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


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
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
    ],
)
def test_matches(bench: Bench, arguments: dict[str, Any], found: list[str]) -> None:
    bench.put(FILES)
    (bench.root / "empty").mkdir()
    (bench.root / "link").symlink_to("src")
    (bench.root / "outside").symlink_to("/etc")
    assert sorted(places(bench, **arguments)) == found


def test_context(bench: Bench) -> None:
    bench.put(FILES)
    [match] = bench.data(search_files, pattern="def add", context_lines=3)["matches"]
    before, after = ["import os", "", ""], ["    return a + b"]
    assert match == {"path": "a.py", "line": 4, "text": "def add(a, b):", "before": before, "after": after}


def test_lines_of_a_private_key_are_marks(bench: Bench) -> None:
    bench.put({"key.py": f'KEY = """{BLOCKS[0]}"""\nlimit = 10\n'})
    assert places(bench, pattern=BASE64[:8]) == [f"key.py:2:{MARK}", f"key.py:4:{MARK}"]
    [match] = bench.data(search_files, pattern="limit", context_lines=3)["matches"]
    assert (match["before"], match["text"]) == ([MARK, MARK, f'{MARK}"""'], "limit = 10")


def test_no_match_gives_guidance(bench: Bench) -> None:
    """Spec 3, How to verify: zero results return the guidance message."""
    bench.put(FILES)
    assert bench.data(search_files, pattern="nothing like it") == {
        "matches": [],
        "has_more": False,
        "guidance": "no matches found; try list_files, check alternate naming, or broaden the filters",
    }


def test_many_matches_are_cut(bench: Bench) -> None:
    bench.put({"a": "x\n" * 200, "b": "x\n"})
    data = bench.data(search_files, pattern="x", max_results=100)
    assert (len(data["matches"]), data["has_more"]) == (100, True)
    assert data["guidance"] == "there are more matches; narrow the pattern or the path"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            {"pattern": "add("},
            ToolErrorCode.INVALID_ARGUMENT,
            (
                "The pattern is not a valid regular expression (unclosed group). Set literal to true to search for it"
                " as plain text."
            ),
        ),
        ({"pattern": "a\nb"}, ToolErrorCode.INVALID_ARGUMENT, "The pattern spans several lines"),
        ({"pattern": "a", "glob": "{a,b}" * 7}, ToolErrorCode.INVALID_ARGUMENT, "The glob is too long"),
        ({"pattern": "a", "path": "scr"}, ToolErrorCode.NOT_FOUND, "Did you mean 'src'?"),
        ({"pattern": "a", "path": "outside"}, ToolErrorCode.PERMISSION_DENIED, "outside the workspace"),
        ({"pattern": "a", "path": ".env"}, ToolErrorCode.PERMISSION_DENIED, ".env is secret"),
        (
            {"pattern": "a", "path": "@result/1"},
            ToolErrorCode.INVALID_ARGUMENT,
            '@result/1 is a kept result, not a directory: read_file path="@result/1" reads it.',
        ),
    ],
)
def test_what_cannot_be_searched(bench: Bench, arguments: dict[str, Any], code: ToolErrorCode, message: str) -> None:
    bench.put(FILES)
    (bench.root / "outside").symlink_to("/etc")
    error = bench.error(search_files, **arguments)
    assert error.code is code
    assert message in error.message


def test_without_ripgrep_nothing_is_searched(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ripgrep_path", lambda: None)
    bench.put(FILES)
    error = bench.error(search_files, pattern="a")
    assert (error.code, "needs ripgrep, which is not installed" in error.message) == (ToolErrorCode.UNAVAILABLE, True)


# --- Two steps: which files, then what is in them --------------------------------------------------------------
class Opening:
    """Remembers which files are opened for a search, and lets something happen before the first of them."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, before: Callable[[], object] = int) -> None:
        self.names: list[str] = []
        self._before, self._open = before, Workspace.open_file
        bench.workspace = Workspace(str(bench.root), deny_env)
        monkeypatch.setattr(bench.workspace, "open_file", self._remember)
        self._workspace = bench.workspace

    def _remember(self, path: str) -> OpenedFile | ToolError:
        if not self.names:
            self._before()
        self.names.append(path)
        return self._open(self._workspace, path)


def replaced_by_link(path: Path, target: str) -> Callable[[], None]:
    def swap() -> None:
        path.unlink()
        path.symlink_to(target)

    return swap


@pytest.mark.parametrize("target", ["../outside.txt", "/etc/hostname", ".env", "gone"])
def test_file_that_was_swapped_for_a_link_is_not_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    bench.put({"a.txt": "add\n", "b.txt": "add\n", ".env": "add=secret\n", "../outside.txt": "add secret\n"})
    Opening(bench, monkeypatch, replaced_by_link(bench.root / "a.txt", target))
    assert places(bench, pattern="add") == ["b.txt:1:add"]


def test_file_is_searched_as_it_was_opened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name leads outside by the time when the file is read; the handle does not."""
    bench.put({"a.txt": "add\n", "../outside.txt": "add secret\n"})
    search = MODULE.search_handles

    def late(argv: list[str], files: list[OpenedFile], **named: Any) -> object:
        replaced_by_link(bench.root / "a.txt", "../outside.txt")()
        return search(argv, files, **named)

    monkeypatch.setattr(MODULE, "search_handles", late)
    assert places(bench, pattern="add") == ["a.txt:1:add"]


def grown(root: Path, file: OpenedFile) -> None:
    (root / file.path).write_text("limit = 10\n" * 9)


def unreadable(_: Path, file: OpenedFile) -> None:
    folder = os.open("/", os.O_RDONLY)
    os.dup2(folder, file.stream.fileno())
    os.close(folder)


@pytest.mark.parametrize("spoil", [grown, unreadable])
def test_file_in_which_no_key_can_be_looked_for_any_more_is_not_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path, OpenedFile], None]
) -> None:
    real = vars(MODULE)["search_handles"]

    def search(argv: list[str], files: list[OpenedFile], **named: Any) -> object:
        result = real(argv, files, **named)
        spoil(bench.root, files[0])
        return result

    monkeypatch.setattr(MODULE, "MAX_FILE_BYTES", 20)
    monkeypatch.setattr(MODULE, "search_handles", search)
    bench.put({"a.py": "limit = 10\n", "b.py": "limit = 20\n"})
    assert places(bench, pattern="limit") == ["b.py:1:limit = 20"]


def test_binary_files_and_large_ones_are_passed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "MAX_FILE_BYTES", 1_000)
    bench.put({"binary": b"add\nadd\x00add\n", "large": "add\n" * 300, "small": "add\n"})
    assert places(bench, pattern="add") == ["small:1:add"]
    assert places(bench, pattern="add", path="binary") == []


def test_no_more_files_are_opened_than_matches_are_wanted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put({f"{number:03}": "add\nadd\n" for number in range(50)} | {"00/.env": "add\n", "0.md": "add\n"})
    opening = Opening(bench, monkeypatch)
    data = bench.data(search_files, pattern="add", max_results=3, glob="0*")
    assert [(match["path"], match["line"]) for match in data["matches"]] == [("0.md", 1), ("000", 1), ("000", 2)]
    assert (data["has_more"], opening.names) == (True, ["0.md", "000", "001", "002"])


@pytest.mark.parametrize("limit", ["NAMES_BYTES", "MAX_HANDLES"])
def test_where_the_looking_ends_early_there_is_more(bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(MODULE, limit, 20)
    bench.put({f"{number:02}": "add\n" for number in range(30)})
    data = bench.data(search_files, pattern="add")
    assert 0 < len(data["matches"]) < 30
    assert data["has_more"] is True


@pytest.mark.parametrize("part", ["run_process", "search_handles"])
def test_search_that_takes_too_long_says_what_to_do(bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    bench.put(FILES)
    late = ToolError(code=ToolErrorCode.TIMEOUT, message="rg was stopped.")
    monkeypatch.setattr(MODULE, part, lambda *_, **__: late)
    error = bench.error(search_files, pattern="a")
    assert error.message == "The search took longer than 10 s: narrow it with path or glob."


@pytest.mark.parametrize("option", ["--glob=!*.py", "--files-without-match", "--invert-match"])
def test_settings_of_a_persons_ripgrep_do_not_count(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "ripgreprc").write_text(f"{option}\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "ripgreprc"))
    bench.put({"a.py": "one\nadd\n", "b.py": "two\n"})
    assert places(bench, pattern="add") == ["a.py:2:add"]


def test_what_is_shown_has_a_bounded_size(bench: Bench) -> None:
    bench.put({"a": f"{'é' * 300}\n" * 100})
    data = bench.data(search_files, pattern="é", max_results=100)
    size = len(json.dumps(data["matches"], ensure_ascii=False).encode())
    assert data["has_more"]
    assert MAX_SHOWN_BYTES - 700 < size < MAX_SHOWN_BYTES + 200


def test_names_may_hold_anything_but_what_is_no_text(bench: Bench) -> None:
    bench.put({"line\nbreak": "add\n", "-x": "add\n", "é": "add\n"})
    with open(os.fsencode(bench.root) + b"/\xff", "wb") as file:
        file.write(b"add\n")
    assert places(bench, pattern="add") == ["-x:1:add", "line\nbreak:1:add", "é:1:add"]


TOKEN = "".join(("gh", "p_", MIXED[:36]))


@pytest.mark.parametrize(
    ("line", "at", "clipped"),
    [
        ("ab " * 101, 0, "ab " * 100 + "[...]"),
        ("ab " * 100 + "abc", 301, "[...]" + "ab " * 99 + "abc"),
        ("ab " * 99 + "a quokka-4471", 0, "ab " * 99 + "a [...]"),
        ("quokka-4471 b" + " ab" * 99, 300, "[...] b" + " ab" * 99),
        (f"{'ab ' * 99}{TOKEN} {'ab ' * 99}", 300, f"[...] {'ab ' * 32}{MARK} {'ab ' * 54}[...]"),
        (f'{"ab " * 99}password = "x8K!qP2zzz", {"ab " * 99}', 411, f'[...]{MARK}", {"ab " * 96}[...]'),
    ],
)
def test_clip(line: str, at: int, clipped: str) -> None:
    assert clip(line, at) == clipped
    assert len(clipped) <= LINE_CHARACTERS + 10 + len(MARK)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 830))
def test_no_part_of_a_token_is_shown(before: int, after: int, at: int) -> None:
    line = "a " * before + TOKEN + " a" * after
    shown = clip(line, at)
    if len(line) > LINE_CHARACTERS:
        assert shown.replace(MARK, "").strip("[.] a") == ""
