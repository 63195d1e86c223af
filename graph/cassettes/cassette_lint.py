"""`mendgraph cassette lint`: what a folder's cassettes must not hold, each finding with its place and its remedy."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mendgraph.graph.cassettes.cassette_file import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    CassetteFile,
    cassettes_below,
    machine_traces_in,
    parse,
    read_text,
    secrets_in,
)
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.records import ToolError, ToolErrorCode

RECORD_AGAIN: Final = "record it again with `pytest --mendgraph-record`"
_KEPT_HEADERS: Final = REQUEST_HEADERS | RESPONSE_HEADERS | {"content-encoding"}


@dataclass(frozen=True)
class LintFinding:
    """Something to mend. `path` is as the folder was named, `line` from 1."""

    path: str
    line: int
    what: str
    remedy: str


def lint_cassettes(folder: str = "cassettes", root: str = ".") -> tuple[LintFinding, ...] | ToolError:
    """All findings, by path and line. `folder` is relative to `root`; NOT_FOUND where there is no such folder."""
    place = os.path.join(root, folder)
    if not os.path.isdir(place):
        message = f"There is no folder {quoted(folder)}: name the one that holds the cassettes."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    return tuple(
        LintFinding(os.path.join(folder, path), line, what, remedy)
        for path in cassettes_below(place)
        for line, what, remedy in sorted(_findings(os.path.join(place, path)))
    )


def _findings(path: str) -> Iterator[tuple[int, str, str]]:
    text = read_text(path, "the file")
    cassette = text if isinstance(text, ToolError) else parse(text, "the file")
    if isinstance(cassette, ToolError):
        what, _, remedy = cassette.message.partition(": ")
        yield 1, what.removeprefix("the file "), remedy or RECORD_AGAIN
    if isinstance(text, str):
        yield from _must_not_hold(text)
    if isinstance(text, str) and isinstance(cassette, CassetteFile):
        yield from _foreign_headers(text, cassette)


def _must_not_hold(text: str) -> Iterator[tuple[int, str, str]]:
    for found in secrets_in(text):
        yield found.line, f"holds {found.what}", f"revoke it, and {RECORD_AGAIN}"
    for secret in known_values(os.environ):
        if secret in text:
            line = text.count("\n", 0, text.index(secret)) + 1
            yield line, "holds a secret of this environment", f"revoke it, and {RECORD_AGAIN}"
    for found in machine_traces_in(text):
        remedy = "record it in a folder that tests have everywhere, such as `tmp_path`, with relative paths"
        yield found.line, f"holds {found.what}", remedy


def _foreign_headers(text: str, cassette: CassetteFile) -> Iterator[tuple[int, str, str]]:
    """Headers that no recording keeps: who wrote them by hand or with another tool may have kept a key."""
    named = {name for exchange in cassette.exchanges for name in (*exchange.request_headers, *exchange.headers)}
    lines = text.lower().split("\n")
    for name in sorted(named - _KEPT_HEADERS):
        line = next((number for number, line in enumerate(lines, start=1) if f"{name}:" in line), 1)
        yield line, f"holds the header {name}", f"remove it, or {RECORD_AGAIN}"
