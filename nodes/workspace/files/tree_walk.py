"""Walks a directory as git sees it, and matches glob patterns with paths."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.handles import closing, open_directory, open_root
from mendgraph.nodes.workspace.files.sandbox import JudgedPaths, Place
from mendgraph.nodes.workspace.files.text_files import escaped_name

GIT_DIRECTORY = ".git"
VIRTUAL_ENVIRONMENTS: Final = (".venv", "venv")
_INSTALLED: Final = frozenset({"site-packages", "node_modules"})
"""Folders of installed packages."""

EntryKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True)
class Entry:
    """One name in a directory. `path` is relative to the workspace, `size` in bytes (0 unless it is a file)."""

    path: str
    kind: EntryKind
    size: int


def is_bytecode(parts: Sequence[str]) -> bool:
    """Return whether these are the parts of the name of a file or folder with Python's bytecode."""
    return "__pycache__" in parts or parts[-1].endswith((".pyc", ".pyo"))


def is_installed(path: str) -> bool:
    """Return whether this is the path of a file of an installed package."""
    return not _INSTALLED.isdisjoint(path.split("/"))


def read_entries(directory_fd: int, prefix: str) -> list[Entry]:
    """Return the entries of the open directory, without `.git`; `prefix` is its path with a "/" at the end, or ""."""
    with os.scandir(directory_fd) as scan:
        return [_entry(entry, prefix) for entry in scan if entry.name.casefold() != GIT_DIRECTORY]


def _entry(item: os.DirEntry[str], prefix: str) -> Entry:
    path = escaped_name(f"{prefix}{item.name}")
    try:
        if item.is_symlink():
            return Entry(path, "link", 0)
        if item.is_dir(follow_symlinks=False):
            return Entry(path, "directory", 0)
        if item.is_file(follow_symlinks=False):
            return Entry(path, "file", item.stat(follow_symlinks=False).st_size)
    except OSError:  # it was there a moment ago
        pass

    return Entry(path, "other", 0)


def judged_entries(paths: JudgedPaths, place: Place) -> list[Entry] | ToolError:
    """Return the entries of the directory, or the denial of the directory that was opened.

    Raises:
        OSError: it is not a directory, or cannot be read.
    """
    with closing(open_root(paths.root)) as top, closing(open_directory(top, place.parts)) as directory:
        name = paths.opened_name(directory, top, place, for_write=False)
        if isinstance(name, ToolError):
            return name
        return read_entries(directory, _prefix(name))


def _prefix(directory: str) -> str:
    return "" if directory == "." else f"{directory}/"


Segments: TypeAlias = tuple[re.Pattern[str] | None, ...]
"""A pattern over a path, part by part; None stands for `**`, any number of folders."""


def segments_of(parts: Iterable[str]) -> Segments:
    """Return the parts of a pattern, compiled; `*`, `?` and `[a-z]` hold within one part."""
    return tuple(None if part == "**" else re.compile(translate(part)) for part in parts)


def fits(segments: Segments, parts: Sequence[str]) -> bool:
    """Return whether the parts of a path match. `reached` are the possible numbers of parts matched so far."""
    reached = {0}

    for segment in segments:
        if segment is None:
            reached = set(range(min(reached), len(parts) + 1))
            continue

        positions = [position for position in reached if position < len(parts)]
        reached = {position + 1 for position in positions if segment.match(parts[position])}
        if not reached:
            return False

    return len(parts) in reached


IGNORE_FILE = ".gitignore"

LARGEST_IGNORE_FILE: Final = 200_000
"""Bytes of a `.gitignore`; a larger one is not read."""
LONGEST_PATTERN: Final = 500
"""Characters of a line; a longer one is ignored."""
MOST_WORK: Final = 20_000
"""Characters of patterns with wildcards that one name is compared with under one file, whose last lines count. A change
between lines that hide and lines that show again counts as `_TURN` of them."""
_TURN: Final = 20

ReadFile = Callable[[str], bytes]
"""(workspace-relative path) -> the bytes, or the first `LARGEST_IGNORE_FILE` + 1 of them; b"" without a file."""

_ESCAPED: Final = re.compile(r"\\(.)")


class _Rule(NamedTuple):
    """One line. An `anchored` pattern is matched with the path from the file's directory, others with the name."""

    hides: bool
    pattern: str
    anchored: bool
    only_directories: bool

    @property
    def is_plain(self) -> bool:
        return not any(sign in self.pattern for sign in "*?[")


@dataclass(frozen=True)
class _Block:
    """Successive lines that all hide, or all show, what they match.

    `literals` are names, and paths with "/" at the start; those of directories end with "/" as well. `names` matches
    all names, `folders` and the marked globs only those of directories.
    """

    hides: bool
    literals: frozenset[str]
    names: re.Pattern[str]
    folders: re.Pattern[str]
    globs: tuple[tuple[Segments, bool], ...]

    def matches(self, path: str, *, is_folder: bool) -> bool:
        parts = path.split("/")
        slash = "/" if is_folder else ""

        return bool(
            f"{parts[-1]}{slash}" in self.literals
            or f"/{path}{slash}" in self.literals
            or self.names.match(parts[-1])
            or (is_folder and self.folders.match(parts[-1]))
            or any(fits(segments, parts) for segments, only in self.globs if is_folder or not only)
        )


@dataclass(frozen=True)
class IgnoreRules:
    """The `.gitignore` files that apply to a directory, outermost first, each with its own directory.

    Classes such as `[[:alpha:]]` are not known; everything else is as in git.
    """

    specs: tuple[tuple[str, tuple[_Block, ...]], ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Self:
        """Return the rules of these lines for the workspace."""
        return cls((("", _blocks("\n".join(patterns))),))

    @classmethod
    def above(cls, parts: Sequence[str], read_file: ReadFile) -> Self:
        """Return the rules of the directories above the one that `parts` name; none if they ignore that one."""
        rules = cls()

        for depth, name in enumerate(parts):
            folder = "/".join(parts[:depth])
            rules = rules._and(folder, read_file)
            if rules.ignores(Entry(f"{folder}/{name}".lstrip("/"), "directory", 0)):
                rules = cls()

        return rules

    def within(self, directory: str, entries: Iterable[Entry], read_file: ReadFile) -> Self:
        """Return the rules inside `directory` with these `entries`; its own rules precede those above."""
        folder = "" if directory == "." else directory
        name = _ignore_file_of(folder)
        if any(entry.kind == "file" and entry.path == name for entry in entries):
            return self._and(folder, read_file)

        return self

    def _and(self, directory: str, read_file: ReadFile) -> Self:
        data = read_file(_ignore_file_of(directory))
        if len(data) > LARGEST_IGNORE_FILE:
            return self

        blocks = _blocks(data.decode("utf-8-sig", "replace"))
        if not blocks:
            return self

        return replace(self, specs=(*self.specs, (_prefix(directory or "."), blocks)))

    def ignores(self, entry: Entry) -> bool:
        """Return whether the innermost rule that matches this entry hides it."""
        for prefix, blocks in reversed(self.specs):
            path = entry.path.removeprefix(prefix)
            for block in blocks:
                if block.matches(path, is_folder=entry.kind == "directory"):
                    return block.hides

        return False

    def hides(self, parts: Sequence[str]) -> bool:
        """Return whether the rules hide this path, or a folder above it; it counts as a folder itself."""
        names = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        return any(self.ignores(Entry(name, "directory", 0)) for name in names)


LONGEST_DENIAL: Final = 90
"""Characters of a pattern that denies files, so that `MOST_WORK` allows 200 of them."""


def denied_patterns(patterns: Iterable[str], folder: str) -> tuple[str, ...]:
    """Return the patterns that deny files, relative to the folder if they begin with its absolute name.

    Raises:
        ValueError: a pattern cannot match a file of the workspace.
    """
    return tuple(_denied_pattern(_below(pattern, folder)) for pattern in patterns)


def _below(pattern: str, folder: str) -> str:
    if not pattern.startswith("/"):
        return pattern

    for name in (folder, os.path.realpath(folder)):
        if f"{pattern}/".startswith(f"{name}/"):
            return pattern.removeprefix(name) or "/"

    return pattern


def _denied_pattern(pattern: str) -> str:
    parts = pattern.removeprefix("./").strip("/").split("/")
    names_none = any(not part.strip(". ") for part in parts)
    if names_none or pattern[:1] in {"!", "#", "~"} or pattern != pattern.strip():
        raise ValueError(f"{pattern!r} names no files below the workspace: name them like private/ or *.csv")
    if not pattern.isprintable() or "\\" in pattern or len(pattern) > LONGEST_DENIAL:
        raise ValueError(f"{pattern!r} has more than {LONGEST_DENIAL} characters, or some that no pattern may have")
    return pattern


def _ignore_file_of(directory: str) -> str:
    if directory:
        return f"{directory}/{IGNORE_FILE}"
    return IGNORE_FILE


def _blocks(text: str) -> tuple[_Block, ...]:
    """Return the lines of a file, the last ones first, as many as `MOST_WORK` allows."""
    blocks: list[list[_Rule]] = []
    work = 0

    for line in reversed(text.split("\n")):
        rule = _rule(line)
        if rule is None:
            continue

        is_turn = not blocks or blocks[-1][-1].hides is not rule.hides
        if is_turn:
            work += _TURN
        if not rule.is_plain:
            work += len(rule.pattern)
        if work > MOST_WORK:
            break

        if is_turn:
            blocks.append([])

        blocks[-1].append(rule)

    return tuple(map(_block, blocks))


def _rule(line: str) -> _Rule | None:
    line = line.removesuffix("\r")
    bare = line.rstrip(" ")
    if bare.endswith("\\") and bare != line:
        bare += " "

    pattern = bare.removeprefix("!")
    glob = pattern.removesuffix("/")
    if not glob or bare.startswith("#") or len(bare) > LONGEST_PATTERN:
        return None

    anchored = "/" in glob
    body = glob.removeprefix("/").replace("[^", "[!")
    return _Rule(pattern == bare, _unescaped(body), anchored, glob != pattern)


def _unescaped(pattern: str) -> str:
    """Return the pattern with each escaped character as a literal one."""

    def literal(match: re.Match[str]) -> str:
        return f"[{match[1]}]" if match[1] in "*?[" else match[1]

    return _ESCAPED.sub(literal, pattern)


def _block(rules: Sequence[_Rule]) -> _Block:
    literals: set[str] = set()
    names: list[str] = []
    folders: list[str] = []
    globs: list[tuple[Segments, bool]] = []

    for rule in rules:
        if rule.is_plain:
            name = f"/{rule.pattern}" if rule.anchored else rule.pattern
            literals.add(f"{name}/")
            if not rule.only_directories:
                literals.add(name)
        elif rule.anchored:
            globs.append((_ignore_segments(rule.pattern), rule.only_directories))
        elif rule.only_directories:
            folders.append(translate(rule.pattern))
        else:
            names.append(translate(rule.pattern))

    return _Block(rules[0].hides, frozenset(literals), _any_of(names), _any_of(folders), tuple(globs))


def _any_of(expressions: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(expressions) or "(?!)")


def _ignore_segments(pattern: str) -> Segments:
    """Compile a pattern; `a/**` matches everything in `a`, but not `a` itself."""
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts[-1:] = ["*", "**"]

    return segments_of(parts)


DEEPEST: Final = 64
"""Levels of directories that a walk enters."""


def walk(paths: JudgedPaths, place: Place, read_file: ReadFile) -> Iterator[Entry]:
    """Yield each entry by name, a directory before its entries; see `Workspace.walk`. It keeps no handle open."""
    pending = [iter(_visible(paths, place, IgnoreRules.above(place.parts, read_file), read_file))]
    while pending:
        next_entry = next(pending[-1], None)
        if next_entry is None:
            pending.pop()
            continue

        entry, rules = next_entry
        yield entry
        if entry.kind == "directory" and len(pending) < DEEPEST:
            pending.append(iter(_visible(paths, Place(entry.path, entry.path), rules, read_file)))


def _visible(
    paths: JudgedPaths, place: Place, rules: IgnoreRules, read_file: ReadFile
) -> list[tuple[Entry, IgnoreRules]]:
    if paths.denial(place.real, for_write=False) is not None:
        return []

    try:
        judged = judged_entries(paths, place)
    except OSError:
        return []

    if isinstance(judged, ToolError):
        return []

    entries = sorted(judged, key=lambda entry: entry.path)
    rules = rules.within(place.real, entries, read_file)
    return [(entry, rules) for entry in entries if not rules.ignores(entry)]


# --- Globs, matched in time that no pattern can blow up

NO_MATCHES = "no matches found; try list_files, check alternate naming, or broaden the filters"
"""Source: spec 3, zero-result feedback."""
MORE_MATCHES = "there are more matches; narrow the pattern or the path"

MAX_PATTERN_CHARACTERS = 500
MAX_ALTERNATIVES = 64
_GROUP: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")


@dataclass(frozen=True)
class PathGlob:
    """A compiled pattern: for each alternative, its segments; None stands for `**`, any number of folders."""

    alternatives: tuple[Segments, ...]

    def matches(self, path: str) -> bool:
        """Return whether the whole relative path matches one of the alternatives."""
        parts = path.split("/")
        return any(fits(segments, parts) for segments in self.alternatives)


def parse_globs(pattern: str) -> tuple[PathGlob, ...]:
    r"""Return the possible meanings of a pattern; the first one that matches a file counts.

    In names of routes (`app/[slug]/page.tsx`) a bracket may be literal, also an escaped one (`app/\[slug\]/*`).
    """
    meanings = dict.fromkeys((pattern.replace("[", "[[]"), pattern, _unescaped(pattern)))
    globs = [parse_glob(meaning) for meaning in meanings]
    return tuple(glob for glob in globs if glob is not None)


def parse_glob(pattern: str) -> PathGlob | None:
    """Compile a pattern with `*`, `?`, `[a-z]` within a part of a path, `**` over parts, and `{a,b}`; case-sensitive.

    A pattern without "/" matches the name in any folder, as in .gitignore, and one that begins with "/" nothing. None
    for a pattern that is too long or has more than 64 alternatives.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return None

    alternatives: list[Segments] = []

    for alternative in _expand(pattern):
        if len(alternatives) == MAX_ALTERNATIVES:
            return None

        alternatives.append(_segments(alternative))

    return PathGlob(tuple(alternatives))


def _segments(pattern: str) -> Segments:
    anywhere = "/" not in pattern
    parts = [part for at, part in enumerate(pattern.split("/")) if part != "." and (part or not at)]
    if anywhere or not parts:
        parts = ["**", *parts]

    if pattern.endswith("/"):
        parts.append("**")

    return segments_of(parts)


def _expand(pattern: str) -> Iterator[str]:
    """Yield the pattern once for each choice in its `{a,b}` groups, which may be nested."""
    group = _GROUP.search(pattern)
    if group is None:
        yield pattern
        return

    for choice in group[1].split(","):
        yield from _expand(f"{pattern[: group.start()]}{choice}{pattern[group.end() :]}")
