"""The files that a request names, and the machine's own reply that reads them before the first model call."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Protocol

from mendgraph.nodes.language.names import named_paths, paths_in_output, split_output
from mendgraph.nodes.records import ModelReply, RawCall, ToolError


class Files(Protocol):
    """The files of the workspace that a turn may read before the first model call."""

    def exists(self, path: str) -> bool:
        """Return whether the file exists and a model may read it."""

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def readable(self) -> Iterable[tuple[str, int]]:
        """Return all files with their sizes in bytes."""

    def head(self, path: str, most: int) -> bytes | ToolError | None:
        """Return the first `most` bytes of a file; None if it does not exist, a ToolError if it may not be read."""


MAX_NAMED_FILES = 5
"""More files would fill the window of a small model."""

MAX_BYTES = 60_000
"""The maximum size of all files that are read ahead."""

MAX_SMALL_BYTES = 12_000
"""The same for a small model: half of its window, about 4,000 tokens."""

MOST_LOOKED_AT = 300
"""Files of a workspace that are searched for one that the request does not name by its full path."""


def read_named_files(request: str, files: Files, most_bytes: int = MAX_BYTES) -> ModelReply | None:
    """Return the reply that reads the files named in a request; None if no file fits."""
    paths = named_files(request, files, most_bytes)
    if not paths:
        return None

    return read_ahead(paths)


def named_files(request: str, files: Files, most_bytes: int) -> list[str]:
    """Return the files named in a request and in its pasted output, at most `MAX_NAMED_FILES` and `most_bytes`.

    With pasted output the likeliest file is the last one.
    """
    fitting = files_within(all_named_files(request, files), files.size_of, most_bytes)
    _, output = split_output(request)
    if output:
        fitting.reverse()

    return fitting


def all_named_files(request: str, files: Files) -> list[str]:
    """Return the existing files named in a request and in its pasted output, at most `MAX_NAMED_FILES`."""
    words, output = split_output(request)
    in_words = located(named_paths(words), files)
    in_output = located(reversed(paths_in_output(output)), files)
    return list(dict.fromkeys([*in_words, *in_output]))[:MAX_NAMED_FILES]


def located(paths: Iterable[str], files: Files) -> Iterator[str]:
    """Yield the existing files for these paths: by the full path, or the only file whose path ends with it."""
    readable: list[str] | None = None

    for path in paths:
        if files.exists(path):
            yield path
            continue

        if readable is None:
            readable = [file for file, _ in islice(files.readable(), MOST_LOOKED_AT)]

        matches = [file for file in readable if file.endswith(f"/{path}")]
        if len(matches) == 1:
            yield matches[0]


def files_within(paths: Sequence[str], size_of: Callable[[str], int], most_bytes: int) -> list[str]:
    """Return the first files that fit together into `most_bytes`; the model may read others itself."""
    fitting: list[str] = []

    for path in paths:
        size = size_of(path)
        if size <= most_bytes:
            most_bytes -= size
            fitting.append(path)

    return fitting


def read_ahead(
    paths: Sequence[str],
    checked: Sequence[str] = (),
    names: Sequence[str] = (),
    pages: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> ModelReply:
    """Return the reply that reads `paths`, checks `checked` and searches for `names`, or lists the workspace.

    `pages` has the further arguments for files of which a page is read.
    """
    calls: list[tuple[str, dict[str, Any]]] = []
    for path in paths:
        calls.append(("read_file", {"path": path, **pages.get(path, {})}))
    if checked:
        calls.append(("run_checks", {"paths": list(checked)}))

    if names:
        calls.append(("search_files", {"pattern": "|".join(rf"\b{name}\b" for name in names)}))

    return preloaded_reply(calls or [("list_files", {"path": "."})])


def preloaded_reply(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> ModelReply:
    """Return a reply of the machine with these calls, each a tool and its arguments."""
    raw_calls = []
    for index, (tool, arguments) in enumerate(calls):
        text = json.dumps(arguments, ensure_ascii=False)
        raw_calls.append(RawCall(call_id=f"ahead_{index}", tool=tool, arguments=text))

    return ModelReply(calls=tuple(raw_calls), preloaded=True)
