"""README.md and the pages of docs/ as their tests see them: fenced blocks, and the names in their text.

Every block is tried out; how is said in a comment before the block, which a reader does not see, in YAML:

    <!-- test
    says: [{read_file: {path: calc.py}}, "It has two lines."]   # what the model says: calls, or an answer
    files: {notes.txt: "remember the milk"}                     # files of the workspace, beside those of `SCENE`
    expects: two lines                                          # what the block has to print, "" for nothing at all
    continues: true                                             # the names of the block before are known in this one
    provider: anthropic                                         # the server of `tests/providers` that it speaks to
    -->

All of it may be left out, and mostly is. `python` blocks are run in a new workspace that holds `SCENE`, against a model
on loopback that mends `calc.py` and then answers; a block that defines tests is a test module, recorded and then
replayed. In `sh`, `bash` and `console` blocks each `mendgraph` line is parsed, `make`, `pip` and `uv` are looked up.
"""

import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.architecture.product import ROOT, text_of
from tests.doubles.replies import Message, Say
from tests.vocabulary import JsonMap

_BLOCK = re.compile(
    r"(?:^<!-- test\s*\n?(?P<how>.*?)-->\n+)?^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
SHELLS: Final = frozenset({"sh", "bash", "shell", "console"})

BROKEN: Final = 'def add(a, b):\n    """Add two numbers."""\n    return a - b\n'
SERVER: Final = '''from mcp.server.fastmcp import FastMCP

server = FastMCP("calc", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


server.run()
'''
SCENE: Final = {"calc.py": BROKEN, "my-project/calc.py": BROKEN, "calc_server.py": SERVER}
"""The files of every workspace: the bug that the pages speak of, here and in `my-project`, and its MCP server."""


@dataclass(frozen=True)
class Block:
    """A fenced block. `page` and `line` are where it stands, `how` what the comment before it says."""

    language: str
    text: str
    line: int
    how: JsonMap = field(default_factory=dict)
    page: str = ""

    @property
    def name(self) -> str:
        """What a test of it is called."""
        return f"{self.page}:{self.line}"

    @property
    def module(self) -> str:
        """The name of its module."""
        return re.sub(r"\W", "_", self.name)


def blocks(document: str, page: str = "") -> list[Block]:
    """All fenced blocks of a text, in order.

    Raises:
        ValueError: a comment says something that nobody reads.
    """
    parsed = []
    for match in _BLOCK.finditer(document):
        line = document.count("\n", 0, match.start("fence")) + 1
        how = yaml.safe_load(match["how"] or "") or {}
        unknown = set(how) - {"says", "files", "expects", "continues", "provider"}
        if unknown:
            raise ValueError(f"{page}:{line}: a test has no {', '.join(sorted(unknown))}")
        parsed.append(Block(match["language"], match["text"], line, how, page))
    return parsed


@cache
def pages() -> dict[str, str]:
    """The text of README.md and of each page of docs/, by its path."""
    names = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    return {name: text_of(name) for name in names}


@cache
def all_blocks() -> list[Block]:
    """The fenced blocks of all pages."""
    return [block for name, text in pages().items() for block in blocks(text, name)]


def of_python() -> list[list[Block]]:
    """The Python blocks: each with those that go on with its names."""
    groups: list[list[Block]] = []
    for block in all_blocks():
        if block.language == "python":
            groups[-1].append(block) if block.how.get("continues") else groups.append([block])
    return groups


# --- The model


class Saying:
    """Says what the blocks say that it does; otherwise it mends calc.py once, where it is asked to fix something."""

    def __init__(self, group: list[Block]) -> None:
        self._said = [line for block in group for line in block.how.get("says", ())]

    def __call__(self, request: JsonMap) -> Message:
        """The next reply."""
        if self._said:
            return _message(self._said.pop(0))
        messages = request["messages"]
        people = (at for at, message in enumerate(messages) if message["role"] == "user" and not _is_result(message))
        start = max(people, default=0)
        called = {call["function"]["name"] for message in messages[start:] for call in message.get("tool_calls") or ()}
        if "Fix" in str(messages[start]["content"]) and "edit_file" not in called:
            return _message({"edit_file": {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}})
        return Say("add now adds.")


def _is_result(message: JsonMap) -> bool:
    """Whether this is a file that was read ahead, and no person's words."""
    return str(message["content"]).startswith("tool_result(")


def _message(reply: Any) -> Message:
    if isinstance(reply, str):
        return Say(reply)
    calls = tuple((tool, json.dumps(arguments)) for tool, arguments in reply.items())
    return Message(calls=calls, finish_reason="tool_calls")


# --- The command line


def command_lines() -> list[tuple[str, list[str]]]:
    """The words of each command in a shell block, with the block's name; prompts, comments and output are left out."""
    commands = []
    for block in all_blocks():
        if block.language in SHELLS:
            text = block.text.replace("\\\n", "  ")
            prompts = any(line.startswith("$ ") for line in text.splitlines())
            for line in text.splitlines():
                if not prompts or line.startswith("$ "):
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    commands += [(block.name, part) for part in _parts(words)]
    return commands


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The commands of one line, without variables that are set for them."""
    part: list[str] = []
    for word in [*words, ";"]:
        if word in {"&&", "||", "|", ";"}:
            while part and re.fullmatch(r"[A-Z_]+=.*", part[0]):
                part.pop(0)
            if part:
                yield part
            part = []
        elif word in {">", "2>", "<"}:
            part.append("\0")
        elif part and part[-1] == "\0":
            part.pop()
        else:
            part.append(word)


def spans(document: str | None = None) -> list[str]:
    """What stands in `code` in the text of all pages, or of one document, outside of fenced blocks."""
    words = _BLOCK.sub("", document or "\n".join(pages().values()))
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", words)]


def extras_named() -> set[str]:
    """The extras of the package that the pages tell to install."""
    text = "\n".join(pages().values())
    named = re.findall(r"(?:mendgraph|'\.|\"\.)\[([\w,-]+)\]|--extra (\w+)|\bextra `(\w+)`", text)
    return {extra for groups in named for group in groups for extra in group.split(",") if extra}


def extras() -> set[str]:
    """The extras that there are."""
    return set(tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"])


def make_targets() -> set[str]:
    """The targets that there are."""
    return set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))


if __name__ == "__main__":
    # Writes each Python example as a module into a folder that is made anew, for the type checkers of `make lint`.
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for group in of_python():
        (folder / f"{group[0].module}.py").write_text("".join(block.text for block in group), encoding="utf-8")
