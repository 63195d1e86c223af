"""The block form: an edit as a file name and a fenced block with the new text of what changes.

Small models write code well and escape it into JSON badly, so for them a reply like

    calc.py
    ```python
    def add(a, b):
        return a + b
    ```

is an `edit_blocks` call. What the text around the blocks says is the answer, so one reply can do the whole task.
Source: measured on a 1.5B model: old and new string in JSON 1 of 12 repairs, fenced blocks 7 to 9 of 12.
"""

import re
from collections.abc import Sequence
from posixpath import basename
from typing import NamedTuple

from mendgraph.nodes.language.names import named_paths
from mendgraph.nodes.language.text_protocol import fence_after
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolInvocation
from mendgraph.nodes.small_model.wording import is_question


class Passage(NamedTuple):
    """A part of a reply: the inside of a code fence with its opening line, or prose (`opening` is None).

    `line` and `end` are its first and last line numbers, including the fence.
    """

    opening: str | None
    text: str
    line: int = 1
    end: int = 1
    closed: bool = True

    @property
    def title(self) -> str:
        """The text after the fence's marks."""
        return (self.opening or "").strip().lstrip("`~").strip()


def passages(text: str) -> list[Passage]:
    """Return the passages of a text in order."""
    found: list[Passage] = []
    opening: str | None = None
    fence = ""
    lines = list[str]()
    first = 1
    number = 1

    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        before = fence
        fence = fence_after(line, fence)
        if before == fence:
            lines.append(line)
            continue

        found.append(Passage(opening, "".join(lines), first, number))
        opening = line if fence else None
        lines = []
        first = number

    return [*found, Passage(opening, "".join(lines), first, number, closed=not fence)]


EDIT_TOOL = "edit_blocks"

EXAMPLE_EDITS = {
    "names.py": '''\
def initials(name):
    """The first letters of all words, in upper case.

    >>> initials("Ada Lovelace")
    'AL'
    >>> initials("ada lovelace")
    'AL'
    """
    words = re.findall(r"\\w+", name)
    return "".join(word[0].upper() for word in words)
''',
    "limits.json": '{\n  "depth": 3,\n  "width": 8\n}\n',
    "colors.md": "red, blue\n",
}
"""The edits of the prompt's examples, which an unsure model repeats; they are not edits."""

EXAMPLE_FILES = frozenset({*EXAMPLE_EDITS, "words.py"})
"""The files of the prompt's examples."""


_PATH = re.compile(
    r"/?(?:[\w@.+-]+[/\\])*(?:[\w@.+-]*\.\w+|(?<=[/\\])[\w@.+-]+|Makefile|Dockerfile)"
    r"|(?:~/|[A-Za-z]:[/\\]|/|\\\\)(?:[^`]*[/\\])?[^\s`/\\]*\.\w+"
)
_READING = re.compile(r"tool:\s*+\w++\(\{\s*+\"path\"\s*+:\s*+\"(?P<path>[^\"]++)\"\s*+\}\)")
_NAMING = re.compile(r"#+ ?|// ?")
_LABEL = re.compile(r"^file(?:name)?(?:[ \t]*:[ \t]*|[ \t]+)", re.IGNORECASE)
_DEFINITION = re.compile(r"^[^\S\n]*+(?:async\s+def|def|class|@)\b", re.MULTILINE)
_IMPORTS = re.compile(r"(?:from \S+ import [^\n]*+\n\s*+)++")
_QUOTED_LANGUAGES = frozenset({"bash", "sh", "shell", "console", "text", "diff", "output", "pycon"})
_QUOTED_SUFFIXES = (".sh", ".bash", ".txt")


class BlockReading(NamedTuple):
    """The edits and errors of a reply in block form, in order, and the prose around the blocks.

    `lines` are the first and the last line number of each block, including its fences.
    """

    outcomes: list[ToolInvocation | ExtractionError]
    prose: str
    lines: list[tuple[int, int]]


def read_blocks(text: str, shown_files: Sequence[str], request: str | None = None) -> BlockReading:
    """Read the edits of a reply in block form; `request` is None if it is unknown.

    A block is an edit if a path is on the line before it, in its info string or in its first comment, or if it contains
    definitions (for an order also only imports) and one file was shown. Other blocks (shell, output, examples) are
    prose. An unclosed block is an error, because its end is missing.
    """
    outcomes: list[ToolInvocation | ExtractionError] = []
    lines: list[tuple[int, int]] = []
    prose: list[str] = []
    heading = ""

    for part in passages(text):
        if part.opening is None:
            said = part.text.rstrip().splitlines(keepends=True) or [""]
            heading = said[-1].strip()
            named = heading and _path_in(heading, shown_files) and part.closed
            prose += said[:-1] if named else [part.text]
            continue

        path, body = _target(part, heading, shown_files, ordered=request is not None and not is_question(request))
        if path is None:
            continue

        lines.append((part.line, part.end))
        foreign = path in EXAMPLE_FILES and path not in shown_files and request is not None and path not in request
        wrong = ""

        if foreign or body in EXAMPLE_EDITS.values():
            whose = "what changes" if foreign else path
            wrong = f"This block is the example's. Write the new text of {whose}, or answer in words."
        elif path not in named_paths(request or "") and (namesakes := _namesakes(path, shown_files)):
            wrong = f"{path} was not shown, but {' and '.join(namesakes)}. Send the block again under its whole path."

        if wrong:
            invalid = ExtractionErrorType.INVALID_ARGUMENTS
            outcomes.append(ExtractionError(invalid, part.line, heading or part.title, wrong))
        elif part.closed:
            outcomes.append(ToolInvocation(EDIT_TOOL, {"path": path, "content": body}, part.line))
        else:
            details = f"The block for {path} has no closing fence. Send it again, complete."
            error = ExtractionErrorType.TRUNCATED_REPLY
            outcomes.append(ExtractionError(error, part.line, heading or part.title, details))

    return BlockReading(outcomes, "".join(prose).strip(), lines)


def render_file(path: str, content: str) -> str:
    """Render a file in the form of the expected answer, with a fence longer than any in the content."""
    longest = max((len(run) for run in re.findall(r"`{3,}", content)), default=2)
    fence = "`" * max(3, longest + 1)

    if path.endswith((".py", ".pyi")):
        language = "python"
    elif "." in path:
        language = path.rsplit(".", 1)[-1]
    else:
        language = ""

    newline = "" if content.endswith("\n") or not content else "\n"
    return f"{path}\n{fence}{language}\n{content}{newline}{fence}"


def _target(part: Passage, heading: str, shown_files: Sequence[str], *, ordered: bool) -> tuple[str | None, str]:
    """Return the file of a block, and its body without a comment that only names the file."""
    language = re.split(r"[\s:]", part.title, maxsplit=1)[0].lower()
    body = part.text
    info = part.title[len(language) :] or (part.title if part.title in shown_files else "")
    named = _path_in(heading, shown_files) or _path_in(info, shown_files)

    if named is None:
        first, _, following = body.partition("\n")
        comment = _NAMING.match(first)
        named = None

        if comment:
            named = _path_in(first[comment.end() :], shown_files)

        body = body if named is None else following

    quoted = language in _QUOTED_LANGUAGES
    if named is None:
        change = _DEFINITION.search(body) or (ordered and _IMPORTS.fullmatch(body))
        return (shown_files[0] if len(shown_files) == 1 and not quoted and change else None), body

    if quoted and named not in shown_files and not named.endswith(_QUOTED_SUFFIXES):
        return None, body

    return named, body


def _namesakes(path: str, shown_files: Sequence[str]) -> list[str]:
    """Return the shown files with this base name; none if a file has exactly this name."""
    if path in shown_files:
        return []
    return [file for file in shown_files if basename(file) == path]


def _path_in(text: str, shown_files: Sequence[str]) -> str | None:
    """Return the only path in a short line, or None. A call that reads the file before its new text names it."""
    if reading := _READING.fullmatch(text.strip()):
        return reading["path"]
    if text.strip() in shown_files:
        return text.strip()

    bare = _LABEL.sub("", text.strip().strip("*#`: "), count=1).strip("*`: ")
    if bare in shown_files or _PATH.fullmatch(bare):
        return bare.removeprefix("./")

    names = {basename(file) for file in shown_files}
    if absolute := [path for path in named_paths(text) if path.startswith("/") and basename(path) in names]:
        return absolute[0]

    quoted = re.findall(r"`([^`]+)`", text)
    paths = [word for word in quoted if _PATH.fullmatch(word)]
    return paths[0].removeprefix("./") if len(paths) == 1 and text.rstrip().endswith(":") else None
