"""A block that is not merged by name: is it the whole file, an excerpt of it, or a diff? Pure."""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.placeholders import is_elision
from mendgraph.nodes.execute_tools.files.text_files import count_lines

SMALLEST_SHARE = 0.3
"""A shorter text than this share of the old one is taken for an excerpt, once the old one is long enough to judge."""
JUDGED_LINES = 20

_COMMENT = re.compile(r"[ \t]*(?:#|//|/\*|--|<!--|;|%)(.*?)(?:\*/|-->)?[ \t]*", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)


_JSON_KEY = re.compile(r'"((?:[^"\\\n]|\\.)*+)"[ \t]*+:')
_KEY = re.compile(r"""^[ \t]*+(?:-[ \t]+)?(?:\[+([\w."'-]+)\]+|["']?([\w.-]+)["']?[ \t]*+[:=])""", re.MULTILINE)
_CONFIGURATION = (".toml", ".yaml", ".yml", ".ini", ".cfg", ".properties")
_ADDS = re.compile(r"\b(?:add|append|insert)(?:s|ing)?\b", re.IGNORECASE)
_SHRINKS = re.compile(
    r"\b(?:remov|delet|drop|eras|short|summar|empt|clear|truncat|only|replac|rewrit|simplif|trim|condens|reduc|strip|clean)",
    re.IGNORECASE,
)


def why_not_whole(old: str, new: str) -> str:
    """What gives `new` away as a part of `old`, as a clause ("it ..."); "" if it may be whole."""
    known = {line.strip() for line in old.splitlines()}
    for line in _elisions(new):
        if line not in known:
            return f"it says `{line}` in place of text"
    if count_lines(old) > JUDGED_LINES and len(new) < SMALLEST_SHARE * len(old):
        return f"it has {count_lines(new)} lines where the file has {count_lines(old)}"
    return ""


def why_too_little(old: str, new: str, task: str) -> str:
    """What speaks against `new` in place of all of a short text, as a clause ("it ..."), if the task does not ask so.

    A model that is to add a line often gives only that line.
    """
    if _SHRINKS.search(task):
        return ""
    lines = [line.strip() for line in old.splitlines() if line.strip()]
    given = {line.strip() for line in new.splitlines()}
    kept = sum(line in given for line in lines)
    fewer = count_lines(new) < count_lines(old) and 2 * kept < len(lines)
    if fewer or (lines and not kept and _ADDS.search(task)):
        return f"it holds {kept} of the {len(lines)} lines that the file has"
    return ""


def lost_keys(path: str, old: str, new: str) -> tuple[str, ...]:
    """The keys and sections that the old text of a configuration file has and the new one lacks; neither must parse."""
    pattern = _JSON_KEY if path.endswith(".json") else _KEY if path.endswith(_CONFIGURATION) else None
    if pattern is None:
        return ()
    kept = set(_keys(pattern, new))
    return tuple(dict.fromkeys(key for key in _keys(pattern, old) if key not in kept))


def keys_inside(text: str, names: Collection[str]) -> set[str]:
    """The keys that stand inside of those of these names in a JSON text; none where it does not parse."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    found: set[str] = set()
    waiting = [(value, False)]
    while waiting:
        each, inside = waiting.pop()
        if isinstance(each, dict):
            found.update(each if inside else ())
            waiting += [(inner, inside or key in names) for key, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(inner, inside) for inner in each]
    return found


def lost_definitions(old: str, new: str) -> tuple[str, ...]:
    """Top-level Python functions and classes that `old` has and `new` lacks; neither has to parse."""
    kept = set(_DEFINITION.findall(new))
    return tuple(dict.fromkeys(name for name in _DEFINITION.findall(old) if name not in kept))


def _keys(pattern: re.Pattern[str], text: str) -> list[str]:
    return ["".join(group or "" for group in found.groups()) for found in pattern.finditer(text)]


def _elisions(text: str) -> Iterator[str]:
    """Lines that are nothing but a comment, or three dots, standing for other text."""
    for line in text.splitlines():
        comment = _COMMENT.fullmatch(line)
        if line.strip() in {"...", "…"} or (comment and is_elision("# " + comment[1].strip())):
            yield line.strip()


_HEADER: Final = re.compile(r"(?:@@|diff --git |index [0-9a-f]+\.\.|--- |\+\+\+ |\\ No newline)")
_MARKS: Final = ("+", "-")


class TextHunk(NamedTuple):
    """The lines that a hunk takes away, and those that it puts there, both with the lines around them."""

    old: str
    new: str


def read_diff(block: str, *, has_header: bool) -> tuple[TextHunk, ...]:
    """The hunks of a diff; none where the block is none. With `has_header` it needs a line `@@` or `---` and `+++`.

    A list in Markdown or YAML has such lines too: only where a text cannot be meant as it is, is a header not needed.
    """
    lines = block.replace("\r\n", "\n").removesuffix("\n").split("\n")
    headed = any(line.startswith("@@") for line in lines) or (
        any(line.startswith("--- ") for line in lines) and any(line.startswith("+++ ") for line in lines)
    )
    told = [line for line in lines if not _HEADER.match(line)]
    if (has_header and not headed) or not any(line.startswith(_MARKS) for line in told):
        return ()
    around = [line for line in told if line.strip() and not line.startswith(_MARKS)]
    marked = all(line.startswith(" ") for line in around)
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            groups.append([])
        elif not _HEADER.match(line):
            groups[-1].append(line)
    return tuple(_hunk(group, marked=marked) for group in groups if any(line.startswith(_MARKS) for line in group))


def _hunk(lines: Sequence[str], *, marked: bool) -> TextHunk:
    """`marked` says that the lines around have a space at their start that is not theirs."""
    old, new = [], []
    for line in _without_blank_edges(lines):
        plain = line[1:] if line.startswith(_MARKS) or (marked and line) else line
        if not line.startswith("+"):
            old.append(plain)
        if not line.startswith("-"):
            new.append(plain)
    return TextHunk(*("".join(f"{each}\n" for each in part) for part in (old, new)))


def _without_blank_edges(lines: Sequence[str]) -> Sequence[str]:
    told = [index for index, line in enumerate(lines) if line.strip()]
    return lines[told[0] : told[-1] + 1]
