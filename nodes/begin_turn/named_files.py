"""Which files a request is about, and the reply that reads them before the model is asked.

A small model edits what it has not read and invents what it has not seen. Reading the named files first costs no
model call and takes that error away. The reads are ordinary calls, which guard judges like any other.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from mendgraph.nodes.begin_turn.turn_start import Files
from mendgraph.nodes.language.names import TEXT_SUFFIXES, named_identifiers, named_paths
from mendgraph.nodes.language.requests import asks_for_a_change, is_question, reports_a_problem
from mendgraph.nodes.records import EditForm, ModelReply, Profile, Protocol, RawCall

MAX_NAMED_FILES = 5
"""More files than this would fill a small model's window."""

MAX_FEW_BYTES = 6_000
"""About 2,000 tokens, a quarter of a small model's window."""

MAX_SMALL_BYTES, MAX_BYTES = 12_000, 60_000
"""Of all files that are read ahead, for a small model (half of its window, about 4,000 tokens) and for others."""

MAX_NAMES = 3
"""Names in code that are searched for; each may have many hits."""


def few_files(files: Iterable[tuple[str, int]]) -> list[str]:
    """All text files of a small workspace, for a request that names none; nothing where there are too many.

    `files` gives paths and sizes in bytes; no more of it is taken than it needs to see that a workspace is not small.
    """
    text = ((path, size) for path, size in files if path.rpartition(".")[2].lower() in TEXT_SUFFIXES)
    seen = list(islice(text, MAX_NAMED_FILES + 1))
    small = len(seen) <= MAX_NAMED_FILES and sum(size for _, size in seen) <= MAX_FEW_BYTES
    return [path for path, _ in seen] if small else []


def preload(request: str, profile: Profile, files: Files, *, checked: bool = False) -> ModelReply | None:
    """The calls that are made before the model is asked, as a reply; None where there are none.

    Files that the request names are read, and with `checked` their code is checked. In the block form, whose requests
    show files and no conversation, a request that names none is about all of a small workspace. In a larger one the
    names in code that it speaks of are searched for, or else the workspace is listed.
    """
    named = [path for path in named_paths(request) if files.exists(path)][:MAX_NAMED_FILES]
    shown = _within(named, files.size_of, MAX_SMALL_BYTES if profile.small else MAX_BYTES)
    if profile.edit_form is not EditForm.BLOCKS:
        return read_ahead(shown, profile.protocol) if shown else None
    asked = is_question(request)
    if asked or (not shown and (asks_for_a_change(request) or reports_a_problem(request))):
        shown = list(dict.fromkeys((*shown, *few_files(files.readable()))))[:MAX_NAMED_FILES]
    code = [path for path in shown if path.endswith((".py", ".pyi"))] if checked and not asked else []
    names = [] if shown else named_identifiers(request)[:MAX_NAMES]
    return read_ahead(shown, profile.protocol, code, names)


def _within(paths: Sequence[str], size_of: Callable[[str], int], most: int) -> list[str]:
    """Those of these files that fit together into so many bytes, the first ones first; the model may ask for others."""
    kept: list[str] = []
    for path in paths:
        size = size_of(path)
        if size <= most:
            most -= size
            kept.append(path)
    return kept


def read_ahead(
    paths: Sequence[str], protocol: Protocol, checked: Sequence[str] = (), names: Sequence[str] = ()
) -> ModelReply:
    """The reply that reads these files, checks some and searches for names, or lists the workspace for want of all."""
    calls: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": path}) for path in paths]
    if checked:
        calls.append(("run_checks", {"paths": list(checked)}))
    if names:
        calls.append(("search_files", {"pattern": "|".join(rf"\b{name}\b" for name in names)}))
    calls = calls or [("list_files", {"path": "."})]
    if protocol is Protocol.NATIVE:
        raw = tuple(
            RawCall(call_id=f"ahead_{index}", tool=tool, arguments=json.dumps(arguments))
            for index, (tool, arguments) in enumerate(calls)
        )
        return ModelReply(calls=raw, preloaded=True)
    text = "\n".join(f"tool: {tool}({json.dumps(arguments, ensure_ascii=False)})" for tool, arguments in calls)
    return ModelReply(text=text, preloaded=True)
