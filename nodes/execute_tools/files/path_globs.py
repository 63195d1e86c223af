"""Glob patterns over workspace-relative paths, matched in time that no pattern can blow up."""

from collections.abc import Iterator
from dataclasses import dataclass

from mendgraph.nodes.execute_tools.files.tree_walk import Segments, fits, segments_of
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.language.names import names_elsewhere
from mendgraph.nodes.records import ToolError

NO_MATCHES = "no matches found; try list_files, check alternate naming, or broaden the filters"
"""Source: spec 3, zero-result feedback."""
MORE_MATCHES = "there are more matches; narrow the pattern or the path"

MAX_PATTERN_CHARACTERS = 500
MAX_ALTERNATIVES = 64


@dataclass(frozen=True)
class PathGlob:
    """A compiled pattern: for each alternative, its segments; None stands for `**`, any number of folders."""

    alternatives: tuple[Segments, ...]

    def matches(self, path: str) -> bool:
        """Whether the whole relative path, with "/" between its parts, fits one of the alternatives."""
        parts = path.split("/")
        return any(fits(segments, parts) for segments in self.alternatives)


def parse_glob(pattern: str) -> PathGlob | None:
    """`*`, `?`, `[a-z]` within one part of a path, `**` over parts, `{a,b}` alternatives; letter case counts.

    A pattern without "/" matches the name in any folder, as in .gitignore, and one that begins with "/" nothing. None
    stands for a pattern that is too long or has more than 64 alternatives.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return None
    alternatives: list[Segments] = []
    for alternative in _expand(pattern):
        if len(alternatives) == MAX_ALTERNATIVES:
            return None
        alternatives.append(_segments(alternative))
    return PathGlob(tuple(alternatives))


def relative_glob(workspace: Workspace, pattern: str) -> str | ToolError:
    """The pattern as it is below the workspace, or the refusal of one that names another place."""
    if not pattern.startswith("/") and not names_elsewhere(pattern):
        return pattern
    inside = pattern.removeprefix(f"{workspace.root.rstrip('/')}/")
    found = workspace.leads_to(pattern, for_write=True) if inside == pattern else inside
    return found if isinstance(found, ToolError) else f"./{found}"


def _segments(pattern: str) -> Segments:
    anywhere = "/" not in pattern
    parts = [part for at, part in enumerate(pattern.split("/")) if part != "." and (part or not at)]
    if anywhere or not parts:
        parts = ["**", *parts]
    if pattern.endswith("/"):
        parts.append("**")
    return segments_of(parts)


def _expand(pattern: str) -> Iterator[str]:
    """The pattern once for each choice in its `{a,b}` groups, which may be nested."""
    opening = pattern.find("{")
    closing = _closing(pattern, opening)
    if closing < 0:
        yield pattern
        return
    for choice in _choices(pattern[opening + 1 : closing]):
        for rest in _expand(pattern[closing + 1 :]):
            for inner in _expand(choice):
                yield pattern[:opening] + inner + rest


def _closing(pattern: str, opening: int) -> int:
    depth = 0
    for index in range(opening, len(pattern)) if opening >= 0 else ():
        depth += {"{": 1, "}": -1}.get(pattern[index], 0)
        if depth == 0:
            return index
    return -1


def _choices(inside: str) -> list[str]:
    choices, depth, start = [], 0, 0
    for index, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            choices.append(inside[start:index])
            start = index + 1
    return [*choices, inside[start:]]
