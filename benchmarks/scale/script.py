"""The script of each run, which reads two files, edits both, searches and answers; and the check of its work. Pure.

A request shows the progress of its run, so the endpoint needs no state.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from benchmarks.overhead.script import count_results
from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Calls, Message, Say, stream_documents

CALLS: Final = 5
"""The model calls of a run."""
ANSWER: Final = "Both rates are raised, and nothing else uses the old ones."
EDITS: Final = (
    ("shop/orders.py", "RATE_17 = 0.17", "RATE_17 = 0.17 + 0.02"),
    ("shop/prices.py", "RATE_42 = 0.42", "RATE_42 = 0.42 + 0.01"),
)
"""The path, old text and new text of the two edits. A second application changes the file again."""
PATHS: Final = (*(path for path, _, _ in EDITS), *(f"shop/part_{number}.py" for number in range(10)))
PIECE: Final = 16
"""The number of characters in a chunk of a streamed reply."""
END: Final = b"data: [DONE]\n\n"

_RUN: Final = re.compile(rb"Order ([\w-]+):")
_WITH_USAGE: Final = re.compile(rb'"include_usage"\s*:\s*true')


def task(run: str) -> str:
    """Return the request of a run. It names no file, so that no file is read in advance."""
    return f"Order {run}: raise both rates of the shop, and see that nothing uses the old ones."


def files() -> dict[str, str]:
    """Return a small project of twelve files with 4 kB each."""
    lines = "".join(f"RATE_{number:02} = 0.{number:02}\n" for number in range(100))
    return {path: f'"""{path}"""\n\n{lines}\nUNITS = {"x" * 2_300!r}\n' for path in PATHS}


def changed_files() -> dict[str, str]:
    """Return the project after a successful run."""
    contents = files()
    for path, old, new in EDITS:
        contents[path] = contents[path].replace(old, new)
    return contents


def run_of(body: bytes) -> str | None:
    """Return the name of the run that sent a request; None for other requests."""
    match = _RUN.search(body)
    return match[1].decode() if match else None


def reply(results: int) -> Message:
    """Return the reply to a request with this number of tool results."""
    if results == 0:
        return Calls([_call("read_file", path=path) for path, _, _ in EDITS], "I look at both files first.")
    if results < len(EDITS) * 2:
        path, old, new = EDITS[results - len(EDITS)]
        return Calls([_call("edit_file", path=path, old_str=old, new_str=new)], "I raise this rate.")
    if results == len(EDITS) * 2:
        return Calls([_call("search_files", pattern=r"RATE_(17|42)\b", glob="*.py")], "Who uses them?")
    return Say(ANSWER)


def events(body: bytes) -> list[bytes]:
    """Return the events of the streamed response. The reported usage is one token for four bytes."""
    results = count_results(body)
    next_reply = reply(results)
    message = Message(next_reply.text, next_reply.calls, next_reply.finish_reason, usage=(len(body) // 4, 40))

    request: JsonMap = {"stream_options": {"include_usage": bool(_WITH_USAGE.search(body))}}
    chunks = stream_documents(message, request, results + 1, PIECE)
    return [*(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks), END]


def work_problems(run: str, outcome: str, answer: str, contents: Mapping[str, str]) -> list[str]:
    """Return a sentence for each part of its work that a run did not do."""
    problems: list[str] = []
    if outcome != "FINISHED" or answer != ANSWER:
        problems.append(f"{run} ended {outcome}: {answer[:200]}")
    for path, text in changed_files().items():
        if contents.get(path) != text:
            problems.append(f"{run}: {path} has a wrong content")
    return problems


def _call(tool: str, **arguments: str) -> tuple[str, str]:
    return tool, json.dumps(arguments)
