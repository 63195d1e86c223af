"""`mendgraph cassette lint`: what is wrong with a folder's cassettes, each finding with its place and its remedy."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Final

from graph.cassettes.cassette_file import (
    MOST_BYTES,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    CassetteFile,
    decode,
    machine_traces_in,
    parse,
    secrets_in,
)
from graph.cassettes.drift import drift
from graph.cassettes.naming import SUFFIX
from graph.cassettes.orphans import orphans
from graph.cassettes.replayed_run import anything_goes
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.workspace import FileContent, Workspace
from nodes.execute_tools.secrets.known_secrets import known_values
from nodes.execute_tools.registry import ActionRegistry
from nodes.execute_tools.tools import default_tools
from nodes.records import ToolError, ToolErrorCode, ToolSpec

RECORD_AGAIN: Final = "record it again with `pytest --mendgraph-record`"
MOST_MODULES: Final = 5_000
"""Python files that are searched for the names of cassettes."""

_KNOWN_PATH: Final = "/chat/completions"
"""Where requests go whose drift is known."""
_KEPT_HEADERS: Final = REQUEST_HEADERS | RESPONSE_HEADERS | {"content-encoding"}
_LARGEST_MODULE: Final = 2_000_000
_SHOWN: Final = 3
"""Differences of one cassette that are told; the others follow from the same change."""


@dataclass(frozen=True)
class LintFinding:
    """Something to mend, or a note of what was not looked at. `path` is as the folder was named, `line` from 1."""

    path: str
    line: int
    what: str
    remedy: str
    note: bool = False


def lint_cassettes(folder: str = "cassettes", root: str = ".") -> tuple[LintFinding, ...] | ToolError:
    """All findings, by path and line. `folder` is relative to `root`, in which the tests are looked for.

    NOT_FOUND where there is no such folder.
    """
    place = os.path.join(root, folder)
    if not os.path.isdir(place):
        message = f"There is no folder {quoted(folder)}: name the one that holds the cassettes."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    library = anything_goes(os.path.realpath(place))
    specs = ActionRegistry(default_tools()).specs()
    paths = [entry.path for entry in library.walk() if entry.kind == "file" and _is_cassette(entry.path)]
    found = [each for path in paths for each in _findings(library, path, specs)]
    alone = orphans(paths, dict(_modules(anything_goes(os.path.realpath(root)), library.root)))
    found += [LintFinding(path, 1, "no test plays it", "delete it, or name it in a test") for path in alone]
    named = (replace(each, path=os.path.join(folder, each.path)) for each in found)
    return tuple(sorted(named, key=lambda each: (each.path, each.line)))


def _is_cassette(path: str) -> bool:
    """Whether this may be one: the files of a run, which lie in `files/` beside its cassette, are none."""
    folders = path.split("/")[:-1]
    kept = any(pair in {("files", "before"), ("files", "after")} for pair in pairwise(folders))
    return path.endswith(SUFFIX) and not kept


def _findings(library: Workspace, path: str, specs: Sequence[ToolSpec]) -> Iterator[LintFinding]:
    content = library.read_file(path, MOST_BYTES)
    text = content if isinstance(content, ToolError) else decode(content.data, "the file")
    if isinstance(text, ToolError):
        yield _unusable(path, text)
        return
    yield from _must_not_hold(path, text)
    cassette = parse(text, "the file")
    if isinstance(cassette, ToolError):
        yield _unusable(path, cassette)
        return
    yield from _foreign_headers(path, text, cassette)
    first = _first_exchange(text)
    asked = [f"{exchange.method} {exchange.path}" for exchange in cassette.exchanges]
    if asked and not any(each.endswith(_KNOWN_PATH) for each in asked):
        what = f"drift was not looked for: it is known for {_KNOWN_PATH}, and this begins with {asked[0]}"
        yield LintFinding(path, first, what, "its test tells of every request that differs", note=True)
        return
    for difference in islice(drift(cassette, specs), _SHOWN):
        yield LintFinding(path, first, f"this version sends something else: {difference}", RECORD_AGAIN)


def _unusable(path: str, why: ToolError) -> LintFinding:
    what, _, remedy = why.message.partition(": ")
    return LintFinding(path, 1, what.removeprefix("the file "), remedy or RECORD_AGAIN)


def _must_not_hold(path: str, text: str) -> Iterator[LintFinding]:
    for found in secrets_in(text):
        yield LintFinding(path, found.line, f"holds {found.what}", f"revoke it, and {RECORD_AGAIN}")
    for secret in known_values(os.environ):
        if secret in text:
            line = text.count("\n", 0, text.index(secret)) + 1
            yield LintFinding(path, line, "holds a secret of this environment", f"revoke it, and {RECORD_AGAIN}")
    for found in machine_traces_in(text):
        remedy = "record it in a folder that tests have everywhere, such as `tmp_path`, with relative paths"
        yield LintFinding(path, found.line, f"holds {found.what}", remedy)


def _foreign_headers(path: str, text: str, cassette: CassetteFile) -> Iterator[LintFinding]:
    """Headers that no recording keeps: who wrote them by hand or with another tool may have kept a key."""
    named = {name for exchange in cassette.exchanges for name in (*exchange.request_headers, *exchange.headers)}
    lines = text.lower().split("\n")
    for name in sorted(named - _KEPT_HEADERS):
        line = next((number for number, line in enumerate(lines, start=1) if f"{name}:" in line), 1)
        yield LintFinding(path, line, f"holds the header {name}", f"remove it, or {RECORD_AGAIN}")


def _first_exchange(text: str) -> int:
    """The line in which the first exchange begins, 1 where it is laid out otherwise."""
    lines = enumerate(text.split("\n"), start=1)
    return next((number for number, line in lines if line.startswith(("- request:", "- response:"))), 1)


def _modules(root: Workspace, library: str) -> Iterator[tuple[str, str]]:
    """The Python files that may name a cassette, with their text."""
    found = (entry.path for entry in root.walk() if entry.kind == "file" and _may_test(entry.path))
    beside = (path for path in found if not os.path.join(root.root, path).startswith(f"{library}/"))
    for path in islice(beside, MOST_MODULES):
        content = root.read_file(path, _LARGEST_MODULE)
        if isinstance(content, FileContent):
            yield path, content.data.decode("utf-8", "replace")


def _may_test(path: str) -> bool:
    return path.endswith(".py") and "test" in path
