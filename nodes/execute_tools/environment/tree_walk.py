"""All that lies below a directory, as git would see it."""

from collections.abc import Iterator
from typing import Final

from nodes.execute_tools.environment.ignore_rules import IgnoreRules, ReadFile
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.listing import Entry, judged_entries
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError

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
    """What is shown of one directory, with the rules that hold below it."""
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
