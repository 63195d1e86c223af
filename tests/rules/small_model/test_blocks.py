from collections.abc import Sequence

from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolInvocation
from mendgraph.nodes.small_model.blocks import EDIT_TOOL, EXAMPLE_EDITS, read_blocks
from tests.row_tables import rows

CODE = "def add(a, b):\n    return a + b\n"
BLOCK = f"```python\n{CODE}```"
SHOWN = ("calc.py", "src/util.py")


def edit(path: str = "calc.py", content: str = CODE, line: int = 2) -> ToolInvocation:
    return ToolInvocation(EDIT_TOOL, {"path": path, "content": content}, line)


@rows(
    (f"calc.py\n{BLOCK}", "calc.py", 2, ""),
    (f"`calc.py`\n{BLOCK}", "calc.py", 2, ""),
    (f"### `calc.py`:\n{BLOCK}", "calc.py", 2, ""),
    (f"File: calc.py\n{BLOCK}", "calc.py", 2, ""),
    (f"**Filename:** `calc.py`\n{BLOCK}", "calc.py", 2, ""),
    (f"./new.py\n\n{BLOCK}", "new.py", 3, ""),
    (f"  calc.py\n   ~~~python\n{CODE}   ~~~", "calc.py", 2, ""),
    (f"Update `calc.py`:\n{BLOCK}", "calc.py", 2, ""),
    (f"I fixed the sign.\n\ncalc.py\n{BLOCK}\nIt adds now.\n", "calc.py", 4, "I fixed the sign.\n\nIt adds now."),
    (f"```python calc.py\n{CODE}```", "calc.py", 1, ""),
    (f"```calc.py\n{CODE}```", "calc.py", 1, ""),
    (f"```python\n# calc.py\n{CODE}```", "calc.py", 1, ""),
    (f"```python\n# File: calc.py\n{CODE}```", "calc.py", 1, ""),
    (f"```python\n# calc.py adds.\n{CODE}```", None, 0, ""),
    (f"```python\nfile calc.py\n{CODE}```", None, 0, ""),
    (f"```js\n// src/util.py\n{CODE}```", "src/util.py", 1, ""),
    (f"file.py\n{BLOCK}", "file.py", 2, ""),
    (f"profile: calc.py\n{BLOCK}", None, 0, "profile: calc.py"),
    (f".gitignore\n{BLOCK}", ".gitignore", 2, ""),
    (f"new/thing.tar.gz\n{BLOCK}", "new/thing.tar.gz", 2, ""),
    (f"/path/to/calc.py\n{BLOCK}", "/path/to/calc.py", 2, ""),
    (f"file:///tmp/calc.py\n{BLOCK}", "///tmp/calc.py", 2, ""),
    (f"`C:\\my work\\calc.py`\n{BLOCK}", "C:\\my work\\calc.py", 2, ""),
    (f"/my work/calc.py\n{BLOCK}", "/my work/calc.py", 2, ""),
    (f"Here is /tmp/calc.py as it was:\n{BLOCK}", "/tmp/calc.py", 2, ""),
    (f"It fails in /usr/lib/numbers.py, which has:\n{BLOCK}", None, 0, "It fails in /usr/lib/numbers.py, which has:"),
    (f"// new in v1.2\n{BLOCK}", None, 0, "// new in v1.2"),
    (f"```python\n# /tmp/calc.py\n{CODE}```", "/tmp/calc.py", 1, ""),
    (BLOCK, None, 0, ""),
    (f"Use `calc.py` or `util.py`:\n{BLOCK}", None, 0, "Use `calc.py` or `util.py`:"),
    ("", None, 0, ""),
)
def test_path_of_a_block_is_recognized(text: str, path: str | None, line: int, prose: str) -> None:
    outcomes = [edit(path, line=line)] if path else []
    assert read_blocks(text, SHOWN)[:2] == ([*outcomes], prose)


def test_line_endings_are_those_of_the_file() -> None:
    content = CODE.replace("\n", "\r\n")
    assert read_blocks(f"calc.py\r\n```python\r\n{content}```\r\n", SHOWN).outcomes == [edit(content=content)]


@rows(
    CODE,
    "class Calc:\n    pass\n",
    "@cache\nasync def f():\n    ...\n",
    "  async def f():\n",
    "from util import f\nfrom .a import g, h\n",
)
@rows("", "python", "py")
def test_definitions_without_a_path_belong_to_the_only_shown_file(info: str, body: str) -> None:
    text = f"Like this:\n```{info}\n{body}```"
    assert read_blocks(text, ["calc.py"], "Use f of util.py.")[:2] == ([edit(content=body)], "Like this:")
    assert read_blocks(text, SHOWN)[:2] == ([], "Like this:")
    assert read_blocks(text, [])[:2] == ([], "Like this:")


@rows(
    "Run it:\n```bash\npython calc.py\n```",
    "Run `calc_test.py`:\n```sh\npython calc_test.py\n```",
    "```python\nadd(1, 2)\n```",
    "```bash\n# setup.py\npip install .\n```",
    "```python\nfrom calc import add\n```",
    "```python\nfrom calc import add\nprint(add(1, 2))\n```",
)
def test_other_blocks_are_prose(text: str) -> None:
    assert read_blocks(text, ["calc.py"], "How do I add two numbers?").outcomes == []


def test_heading_applies_to_one_block_only() -> None:
    assert read_blocks(f"calc.py\n{BLOCK}\n{BLOCK}", SHOWN).outcomes == [edit()]


def test_path_comment_of_the_file_itself_is_kept() -> None:
    body = f"# calc.py\n{CODE}"
    assert read_blocks(f"calc.py\n```python\n{body}```", SHOWN).outcomes == [edit(content=body)]


@rows(
    (f"calc.py\n```python\n{CODE}", "calc.py", "calc.py"),
    (f"```python calc.py\n{CODE}", "calc.py", "python calc.py"),
    (f"calc.py\n```python\n{CODE}    ```", "calc.py", "calc.py"),
    (f"calc.py\n```python\n{CODE}``` end", "calc.py", "calc.py"),
)
def test_unclosed_block_is_never_written(text: str, path: str, quoted: str) -> None:
    [error] = read_blocks(text, SHOWN).outcomes
    details = f"The block for {path} has no closing fence. Send it again, complete."
    line = text.split("\n").index(next(row for row in text.split("\n") if row.startswith("`"))) + 1
    assert error == ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, line, quoted, details)


@rows(
    ("b/util.py", ["a/util.py", "b/util.py"]),
    ("c/util.py", ["a/util.py", "calc.py"]),
    ("/c/util.py", ["util.py"]),
    ("util.py", ["util.py", "a/util.py"]),
    ("new.py", ["calc.py"]),
)
def test_block_path_is_kept_if_it_is_unambiguous(named: str, paths: list[str]) -> None:
    assert read_blocks(f"{named}\n{BLOCK}", paths).outcomes == [edit(named)]


def test_bare_name_of_a_shown_file_is_refused_unless_the_request_has_it() -> None:
    reply, paths = f"util.py\n{BLOCK}", ["a/util.py", "b/util.py"]
    details = "util.py was not shown, but a/util.py and b/util.py. Send the block again under its whole path."
    for request_text in ("Mend it.", "Mend a/util.py.", None):
        [refused] = read_blocks(reply, paths, request_text).outcomes
        assert refused == ExtractionError(ExtractionErrorType.INVALID_ARGUMENTS, 2, "util.py", details)
    assert read_blocks(reply, paths, "Write util.py.").outcomes == [edit("util.py")]


# --- The prompt's examples, compared with the request


@rows(*sorted(EXAMPLE_EDITS))
@rows(
    (SHOWN, "Fix the sum.", False),
    (SHOWN, "Write {}.", True),
    (SHOWN, None, True),
    (["calc.py", "{}"], "Fix the sum.", True),
    ([], "", False),
)
def test_file_of_the_example_is_edited_only_if_present_or_requested(
    paths: Sequence[str], request_text: str | None, is_edit: bool, example: str
) -> None:
    files = [path.format(example) for path in paths]
    request = None if request_text is None else request_text.format(example)
    [outcome] = read_blocks(f"{example}\n{BLOCK}", files, request).outcomes
    details = "This block is the example's. Write the new text of what changes, or answer in words."
    refused = ExtractionError(ExtractionErrorType.INVALID_ARGUMENTS, 2, example, details)
    assert outcome == (edit(example) if is_edit else refused)


@rows(*sorted(EXAMPLE_EDITS))
def test_text_of_the_example_is_never_written(example: str) -> None:
    details = f"This block is the example's. Write the new text of {example}, or answer in words."
    reply = f"{example}\n```\n{EXAMPLE_EDITS[example]}```"
    [outcome] = read_blocks(reply, SHOWN, f"Create {example}.").outcomes
    assert outcome == ExtractionError(ExtractionErrorType.INVALID_ARGUMENTS, 2, example, details)
