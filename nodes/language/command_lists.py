"""Command lines that only join commands: with `&&`, `||`, `;` and pipes into programs that filter the output.

Bash runs such a line as it is. It may be allowed if each of its commands is: `cd` leads only to folders below, a filter
opens no file, and a redirection only joins or drops outputs. The grammar of bash (tree-sitter-bash) says which lines
are such lists, and `shlex` has to split them into the same words.
"""

import re
import shlex
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from mendgraph.nodes.language.command_lines import literal_words, parse_line

if TYPE_CHECKING:
    from tree_sitter import Node

_JOINTS: Final = frozenset({"&&", "||", ";", "|"})
_REDIRECTIONS: Final = (["2", ">&", "1"], [">", "/dev/null"], ["2", ">", "/dev/null"])
_PUNCTUATION: Final = "();<>|&"

_ENDS: Final = re.compile(r"(?: -(?:[nc] ?)?[+-]?\d+)*")
_FILTERS: Final[Mapping[str, re.Pattern[str]]] = MappingProxyType(
    {
        "cat": re.compile("(?: -[A-Za-z]+)*"),
        "grep": re.compile(r"(?: -(?:[EFchinosvwx]+|[ABCm] ?\d+))*"),
        "head": _ENDS,
        "sort": re.compile("(?: -[nru]+)*"),
        "tail": _ENDS,
        "uniq": re.compile("(?: -[cdu]+)*"),
        "wc": re.compile("(?: -[clmw]+)*"),
    }
)
"""Programs that read only their input with these options; `grep` also has a pattern, as its last argument."""
_WORDS_ONLY: Final = frozenset({"echo", "true"})
"""Builtins that only print their words, or nothing."""


@lru_cache(maxsize=64)
def listed_commands(line: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that a list starts, without filters and `cd`; none for any other line."""
    root = parse_line(line)
    reader = _ListReader()
    if root is None or "\n" in line or not all(map(reader.read, root.children)):
        return ()

    return tuple(reader.commands) if reader.words == _split(line) else ()


class _ListReader:
    """Collects the commands of a list, and all words and signs of the line."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.words: list[str] = []
        self._has_moved = False

    def read(self, node: "Node", *, is_piped: bool = False) -> bool:
        """Read a part of the line; return whether it is a part of a list. `is_piped`: it reads another command."""
        text = (node.text or b"").decode(errors="replace")
        if node.type in _JOINTS:
            self.words.append(text)
            return True
        if node.type == "file_redirect":
            signs = [(child.text or b"").decode(errors="replace") for child in node.children]
            self.words += signs
            return signs in _REDIRECTIONS
        if node.type == "command":
            return self._read_command(literal_words(node), is_piped=is_piped)
        if node.type not in {"list", "pipeline", "redirected_statement"}:
            return False

        for number, child in enumerate(node.children):
            is_reading = is_piped or (node.type == "pipeline" and number > 0)
            if not self.read(child, is_piped=is_reading):
                return False

        return True

    def _read_command(self, words: list[str], *, is_piped: bool) -> bool:
        self.words += words
        if not words:
            return False
        if words[0] in _WORDS_ONLY:
            return True
        if is_piped:
            return _is_filter(words)
        if words[0] == "cd":
            self._has_moved = True
            return len(words) == 2 and _is_below(words[1])
        if self._has_moved and "/" in words[0]:  # another program than the one of this name in the workspace
            return False

        self.commands.append(tuple(words))
        return True


def _is_filter(words: list[str]) -> bool:
    name, *options = words
    if name == "grep" and (not options or options.pop().startswith("-")):
        return False

    pattern = _FILTERS.get(name)
    return pattern is not None and pattern.fullmatch("".join(f" {option}" for option in options)) is not None


def _is_below(folder: str) -> bool:
    return not folder.startswith(("/", "-")) and ".." not in folder.split("/")


def _split(line: str) -> list[str]:
    """Return the words and signs as `shlex` reads them, the second opinion on a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split = True
    lexer.commenters = ""

    try:
        return list(lexer)
    except ValueError:
        return []
