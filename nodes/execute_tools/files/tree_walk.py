"""All that lies below a directory, as git would see it."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.sandbox import Place
from mendgraph.nodes.records import ToolError

GIT_DIRECTORY = ".git"

EntryKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True)
class Entry:
    """One name in a directory. `path` is relative to the workspace, `size` in bytes (0 for what is no file)."""

    path: str
    kind: EntryKind
    size: int


def read_entries(directory_fd: int, prefix: str) -> list[Entry]:
    """What the open directory holds, without `.git`; `prefix` is its own path with a "/" at the end, or ""."""
    with os.scandir(directory_fd) as found:
        return [_entry(each, prefix) for each in found if each.name.casefold() != GIT_DIRECTORY]


def _entry(found: os.DirEntry[str], prefix: str) -> Entry:
    path = f"{prefix}{found.name}".encode(errors="backslashreplace").decode()
    try:
        if found.is_symlink():
            return Entry(path, "link", 0)
        if found.is_dir(follow_symlinks=False):
            return Entry(path, "directory", 0)
        if found.is_file(follow_symlinks=False):
            return Entry(path, "file", found.stat(follow_symlinks=False).st_size)
    except OSError:  # it was there a moment ago
        pass
    return Entry(path, "other", 0)


def judged_entries(paths: JudgedPaths, place: Place) -> list[Entry] | ToolError:
    """What the directory holds, or the judge's denial of the one that was opened, whatever it was called before.

    Raises:
        OSError: it is no directory, or it cannot be read.
    """
    with closing(open_root(paths.root)) as top, closing(open_directory(top, place.parts)) as directory:
        name = paths.opened_name(directory, top, place, for_write=False)
        return name if isinstance(name, ToolError) else read_entries(directory, _prefix(name))


def _prefix(directory: str) -> str:
    return "" if directory == "." else f"{directory}/"


IGNORE_FILE = ".gitignore"

LARGEST_IGNORE_FILE: Final = 200_000
"""Bytes of a `.gitignore` that is read; a larger one hides nothing."""
LONGEST_PATTERN: Final = 500
"""Bytes of a line that counts."""
MOST_WORK: Final = 20_000
"""Bytes of patterns with wildcards that one name is compared with, under all files that hold for it; of each file
`_LEAST_WORK` count even so. Each change between lines that hide and lines that show again counts as `_TURN` bytes."""
_LEAST_WORK: Final = MOST_WORK // 10
"""An outer file cannot take everything from those inside, whose lines outweigh its own."""
_TURN: Final = 20

ReadFile = Callable[[str], bytes]
"""(workspace-relative path) -> the bytes, or the first `LARGEST_IGNORE_FILE` + 1 of them; b"" where there are none."""

_NAMED_CLASS: Final = re.compile(r"\[:([^\]]*):\]")
_WILDCARD: Final = re.compile(r"[*?\[\\]")
_ALL: Final = ".*+"
_NEVER: Final = "(?!)"
_STAR: Final = "(?>[^/]*?"
_FOLDERS: Final = "(?>(?:[^/]*+/)*?"
_SOME_FOLDERS: Final = "(?>(?:[^/]*+/)+?"
_CLASSES: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t\\n\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class _Rule(NamedTuple):
    """One line. Its `pattern` is compared with a path from the file's directory if it is `anchored`, else with a name.

    It has no "/" at its ends.
    """

    hides: bool
    pattern: str
    anchored: bool
    only_directories: bool

    @property
    def is_plain(self) -> bool:
        return _WILDCARD.search(self.pattern) is None


class _Block(NamedTuple):
    """Neighbouring lines that all hide, or all show, what they match: names, paths, and expressions for both.

    The name of a directory ends with "/".
    """

    hides: bool
    names: frozenset[str]
    paths: frozenset[str]
    name: re.Pattern[str]
    path: re.Pattern[str]

    def matches(self, path: str) -> bool:
        name = path[path.rfind("/", 0, -1) + 1 :]
        return bool(name in self.names or path in self.paths or self.name.match(name) or self.path.match(path))


@dataclass(frozen=True)
class IgnoreRules:
    """The `.gitignore` files that hold for a directory, outermost first, each with the directory it stands in."""

    specs: tuple[tuple[str, tuple[_Block, ...]], ...] = ()
    work: int = 0

    @classmethod
    def above(cls, parts: Sequence[str], read_file: ReadFile) -> Self:
        """The rules of the directories above the one that `parts` name; none if they hide that one itself."""
        rules = cls()
        for depth, name in enumerate(parts):
            here = "/".join(parts[:depth])
            rules = rules._and(here, read_file)
            if rules.ignores(Entry(f"{here}/{name}".lstrip("/"), "directory", 0)):
                rules = cls()
        return rules

    def within(self, directory: str, entries: Iterable[Entry], read_file: ReadFile) -> Self:
        """The rules inside `directory` ("." is the workspace), which holds `entries`; its own outweigh those above."""
        here = "" if directory == "." else directory
        has_own = any(entry.kind == "file" and entry.path == _ignore_file_of(here) for entry in entries)
        return self._and(here, read_file) if has_own else self

    def _and(self, directory: str, read_file: ReadFile) -> Self:
        data = read_file(_ignore_file_of(directory))
        text = data.decode("latin-1") if len(data) <= LARGEST_IGNORE_FILE else ""
        blocks, work = _blocks(text, max(MOST_WORK - self.work, _LEAST_WORK))
        prefix = f"{directory}/" if directory else ""
        return replace(self, specs=(*self.specs, (prefix, blocks)), work=self.work + work) if blocks else self

    def ignores(self, entry: Entry) -> bool:
        """Whether the innermost rule that speaks of this entry hides it."""
        slash = "/" if entry.kind == "directory" else ""
        for prefix, blocks in reversed(self.specs):
            path = f"{entry.path.removeprefix(prefix)}{slash}"
            if not path.isascii():
                path = path.encode(errors="surrogateescape").decode("latin-1")
            for block in blocks:
                if block.matches(path):
                    return block.hides
        return False


def _ignore_file_of(directory: str) -> str:
    return f"{directory}/{IGNORE_FILE}" if directory else IGNORE_FILE


def _blocks(text: str, most: int) -> tuple[tuple[_Block, ...], int]:
    """The lines of a file, the last ones first, and the work that they make: as many of them as `most` allows."""
    blocks: list[list[_Rule]] = []
    work = 0
    for rule in reversed([*filter(None, map(_rule, text.removeprefix("\xef\xbb\xbf").split("\n")))]):
        is_turn = not blocks or blocks[-1][-1].hides is not rule.hides
        more = _TURN * is_turn + len(rule.pattern) * (not rule.is_plain)
        if work + more > most:
            break
        work += more
        if is_turn:
            blocks.append([])
        blocks[-1].append(rule)
    return tuple(map(_block, blocks)), work


def _rule(line: str) -> _Rule | None:
    line = line.removesuffix("\r").split("\0", 1)[0]
    bare = line.rstrip(" ")
    if len(bare) - len(bare.rstrip("\\")) & 1 and bare != line:
        bare += " "
    pattern = bare.removeprefix("!")
    whole = pattern.removesuffix("/")
    if not whole or bare.startswith("#") or len(bare) > LONGEST_PATTERN:
        return None
    return _Rule(pattern == bare, whole.removeprefix("/"), "/" in whole, whole != pattern)


def _block(rules: Sequence[_Rule]) -> _Block:
    plain, others = [rule for rule in rules if rule.is_plain], [rule for rule in rules if not rule.is_plain]

    def literal(*, anchored: bool) -> frozenset[str]:
        these = [rule for rule in plain if rule.anchored is anchored]
        files = (rule.pattern for rule in these if not rule.only_directories)
        return frozenset(files) | {f"{rule.pattern}/" for rule in these}

    def expression(*, anchored: bool) -> re.Pattern[str]:
        written = "|".join(_expression(rule) for rule in others if rule.anchored is anchored)
        return re.compile(written or _NEVER, re.DOTALL)

    return _Block(
        rules[0].hides,
        literal(anchored=False),
        literal(anchored=True),
        expression(anchored=False),
        expression(anchored=True),
    )


def _expression(rule: _Rule) -> str:
    """The rule as a regular expression. A group ends where its star has to: at the next one, or after a "/"."""
    written, in_star, in_folders = "", False, False
    for part in _tokens(rule):
        is_folders = part in {_FOLDERS, _SOME_FOLDERS}
        if in_star and (is_folders or part == _STAR):
            written, in_star = f"{written})", False
        if in_folders and is_folders:
            written += ")"
        written += part
        in_star, in_folders = in_star or part == _STAR, in_folders or is_folders
        if in_star and part == "/":
            written, in_star = f"{written})", False
    if written.endswith(_ALL):
        end = "(?<=/)" if rule.only_directories else ""
    else:
        end = "(?<!/)/\\Z" if rule.only_directories else "(?<!/)/?\\Z"
    return written + end + ")" * (in_star + in_folders)


def _tokens(rule: _Rule) -> Iterator[str]:
    pattern, at = rule.pattern, 0
    first = _WILDCARD.search(pattern)
    while at < len(pattern):
        sign, begun = pattern[at], at
        at += 1
        if sign == "*":
            at = begun + len(pattern[begun:]) - len(pattern[begun:].lstrip("*"))
            # Before the first wildcard git compares the text alone, so that it sees `**` as if it began the pattern.
            is_part = pattern[begun - 1 : begun] in {"", "/"} or (first is not None and first.start() == begun)
            if not rule.anchored or at - begun == 1 or not is_part:
                yield _STAR
            elif at == len(pattern):
                yield _ALL if begun and pattern[begun - 1] != "/" else f"(?=[^/]){_ALL}"
            elif pattern[at] == "/":
                yield _FOLDERS
                at += 1
            elif pattern.startswith("\\/", at):
                yield _SOME_FOLDERS
                at += 2
            else:
                yield _STAR
        elif sign == "?":
            yield "[^/]"
        elif sign == "[":
            written, at = _class(pattern, at)
            yield written
        elif sign == "\\":
            yield re.escape(pattern[at]) if at < len(pattern) else _NEVER
            at += 1
        else:
            yield re.escape(sign)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """The set of characters that begins at `at`, and where it ends; a set that has no end matches nothing."""
    negated = pattern[at : at + 1] in {"!", "^"}
    at, first, before, written = at + negated, True, "", ""
    while first or pattern[at : at + 1] != "]":
        first, sign, at = False, pattern[at : at + 1], at + 1
        named = _NAMED_CLASS.match(pattern, at - 1)
        if named is not None:
            if named[1] not in _CLASSES:
                return _NEVER, len(pattern)
            written, before, at = written + _CLASSES[named[1]], "", named.end()
        elif sign == "-" and before and pattern[at : at + 1] not in {"", "]"}:
            at += pattern[at] == "\\"
            upto = pattern[at : at + 1]
            if not upto:
                return _NEVER, len(pattern)
            written += f"{re.escape(before)}-{re.escape(upto)}" if before <= upto else ""
            before, at = "", at + 1
        else:
            if sign == "\\":
                sign, at = pattern[at : at + 1], at + 1
            if not sign:
                return _NEVER, len(pattern)
            written, before = written + re.escape(sign), sign
    if negated:
        return f"[^/{written}]", at + 1
    return (f"(?!/)[{written}]" if written else _NEVER), at + 1


DEEPEST: Final = 64
"""Directories below each other that a walk enters."""


def walk(paths: JudgedPaths, place: Place, read_file: ReadFile) -> Iterator[Entry]:
    """Each entry by name, a directory before what is in it; see `Workspace.walk`. No handle stays open in between."""
    pending = [iter(_visible(paths, place, IgnoreRules.above(place.parts, read_file), read_file))]
    while pending:
        found = next(pending[-1], None)
        if found is None:
            pending.pop()
            continue
        entry, rules = found
        yield entry
        if entry.kind == "directory" and len(pending) < DEEPEST:
            pending.append(iter(_visible(paths, Place(entry.path, entry.path), rules, read_file)))


def _visible(
    paths: JudgedPaths, place: Place, rules: IgnoreRules, read_file: ReadFile
) -> list[tuple[Entry, IgnoreRules]]:
    if paths.denial(place.real, for_write=False) is not None:
        return []
    try:
        found = judged_entries(paths, place)
    except OSError:
        return []
    if isinstance(found, ToolError):
        return []
    entries = sorted(found, key=lambda entry: entry.path)
    rules = rules.within(place.real, entries, read_file)
    return [(entry, rules) for entry in entries if not rules.ignores(entry)]
