"""Which files a request names, and the reply that reads them before the model is asked.

A small model edits what it has not read and invents what it has not seen. Reading the named files first costs no
model call and takes that error away. The reads are ordinary calls: guard judges them, the gateway runs them.
"""

import json
import re
from collections.abc import Callable

from nodes.records import ModelReply, Protocol, RawCall

MAX_NAMED_FILES = 5
"""More files than this would fill a small model's window."""

_PATH = re.compile(r"(?<![\w@+/.-])(?:\./)?[\w@+-][\w@.+-]*(?:/[\w@.+-]+)*(?:\.[A-Za-z]\w*)|(?<![\w@+/.-])\.[\w.-]+")


def named_files(request: str, exists: Callable[[str], bool]) -> list[str]:
    """The paths in a request that exist in the workspace, in order, at most `MAX_NAMED_FILES`."""
    found = dict.fromkeys(match.group().removeprefix("./").rstrip(".") for match in _PATH.finditer(request))
    return [path for path in found if path and exists(path)][:MAX_NAMED_FILES]


def read_ahead(paths: list[str], protocol: Protocol) -> ModelReply:
    """The reply that reads these files, or that lists the workspace where none is named."""
    calls = [("read_file", {"path": path}) for path in paths] or [("list_files", {"path": "."})]
    if protocol is Protocol.NATIVE:
        raw = tuple(
            RawCall(call_id=f"ahead_{index}", tool=tool, arguments=json.dumps(arguments))
            for index, (tool, arguments) in enumerate(calls)
        )
        return ModelReply(calls=raw, preloaded=True)
    text = "\n".join(f"tool: {tool}({json.dumps(arguments, ensure_ascii=False)})" for tool, arguments in calls)
    return ModelReply(text=text, preloaded=True)
