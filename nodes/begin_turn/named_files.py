"""Which files a request is about, and the reply that reads them before the model is asked.

A small model edits what it has not read and invents what it has not seen. Reading the named files first costs no
model call and takes that error away. The reads are ordinary calls: guard judges them, the gateway runs them.
"""

import json
import re
from collections.abc import Callable, Iterable
from itertools import chain, islice

from nodes.records import ModelReply, Protocol, RawCall

MAX_NAMED_FILES = 5
"""More files than this would fill a small model's window."""

MAX_FEW_BYTES = 6_000
"""About 2,000 tokens, a quarter of a small model's window."""

_TEXT_SUFFIXES = frozenset(
    {
        *("c", "cfg", "cpp", "css", "go", "h", "html", "ini", "java", "js", "json", "md", "py", "pyi"),
        *("rb", "rs", "sh", "sql", "toml", "ts", "txt", "xml", "yaml", "yml"),
    }
)
_CHANGE = re.compile(
    r"\b(?:add|change|correct|create|delete|edit|fix|implement|make|mend|refactor|remove|rename|repair|replace|rewrite"
    r"|set|update|write)(?:s|es|d|ed|ing)?\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"([`'\"])(?P<path>[^`'\"\n]{1,200})\1")
_PATH = re.compile(r"(?<![\w@+/.-])(?:\./)?[\w@+-][\w@.+-]*(?:/[\w@.+-]+)*(?:\.[A-Za-z]\w*)|(?<![\w@+/.-])\.[\w.-]+")


def named_files(request: str, exists: Callable[[str], bool]) -> list[str]:
    """The paths in a request that exist in the workspace, at most `MAX_NAMED_FILES`; quoted ones may hold spaces."""
    plain = (match.group() for match in _PATH.finditer(request))
    quoted = (match["path"] for match in _QUOTED.finditer(request) if " " in match["path"])
    found = dict.fromkeys(path.removeprefix("./").rstrip(".") for path in chain(quoted, plain))
    return [path for path in found if path and exists(path)][:MAX_NAMED_FILES]


def asks_for_a_change(request: str) -> bool:
    """Does a request have a word of change in it? Shown files, a small model edits even where it was only greeted."""
    return _CHANGE.search(request) is not None


def few_files(files: Iterable[tuple[str, int]]) -> list[str]:
    """All text files of a small workspace, for a request that names none; nothing where there are too many.

    `files` gives paths and sizes in bytes; no more of it is taken than it needs to see that a workspace is not small.
    """
    text = ((path, size) for path, size in files if path.rpartition(".")[2].lower() in _TEXT_SUFFIXES)
    seen = list(islice(text, MAX_NAMED_FILES + 1))
    small = len(seen) <= MAX_NAMED_FILES and sum(size for _, size in seen) <= MAX_FEW_BYTES
    return [path for path, _ in seen] if small else []


def files_to_show(
    request: str, exists: Callable[[str], bool], files: Callable[[], Iterable[tuple[str, int]]]
) -> list[str]:
    """The files that a request names; for one that names none but asks for a change, all of a small workspace."""
    return named_files(request, exists) or (few_files(files()) if asks_for_a_change(request) else [])


def read_ahead(paths: list[str], protocol: Protocol) -> ModelReply:
    """The reply that reads these files, or that lists the workspace where there are none to read."""
    calls = [("read_file", {"path": path}) for path in paths] or [("list_files", {"path": "."})]
    if protocol is Protocol.NATIVE:
        raw = tuple(
            RawCall(call_id=f"ahead_{index}", tool=tool, arguments=json.dumps(arguments))
            for index, (tool, arguments) in enumerate(calls)
        )
        return ModelReply(calls=raw, preloaded=True)
    text = "\n".join(f"tool: {tool}({json.dumps(arguments, ensure_ascii=False)})" for tool, arguments in calls)
    return ModelReply(text=text, preloaded=True)
