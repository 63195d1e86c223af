"""What every run of the benchmark has to do: read two files, edit both, search, answer; and whether it did. Pure.

How far a run has come is told by its request, so the endpoint needs no memory to answer it.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from benchmarks.overhead.script import count_results
from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Calls, Message, Say, stream_documents

CALLS: Final = 5
"""Model calls of a run."""
ANSWER: Final = "Both rates are raised, and nothing else uses the old ones."
EDITS: Final = (
    ("shop/orders.py", "RATE_17 = 0.17", "RATE_17 = 0.17 + 0.02"),
    ("shop/prices.py", "RATE_42 = 0.42", "RATE_42 = 0.42 + 0.01"),
)
"""Path, old text and new text of the two changes; a change that is made twice leaves another file."""
PATHS: Final = (*(path for path, _, _ in EDITS), *(f"shop/part_{number}.py" for number in range(10)))
PIECE: Final = 16
"""Characters of a chunk of a streamed reply."""
END: Final = b"data: [DONE]\n\n"

_RUN: Final = re.compile(rb"Order ([\w-]+):")
_WITH_USAGE: Final = re.compile(rb'"include_usage"\s*:\s*true')


def task(run: str) -> str:
    """The request of a run; it names no file, so that none is read ahead."""
    return f"Order {run}: raise both rates of the shop, and see that nothing uses the old ones."


def files() -> dict[str, str]:
    """A small project: twelve files of 4 kB."""
    lines = "".join(f"RATE_{number:02} = 0.{number:02}\n" for number in range(100))
    return {path: f'"""{path}"""\n\n{lines}\nUNITS = {"x" * 2_300!r}\n' for path in PATHS}


def changed_files() -> dict[str, str]:
    """The same after a run that did its work."""
    found = files()
    for path, old, new in EDITS:
        found[path] = found[path].replace(old, new)
    return found


def run_of(body: bytes) -> str | None:
    """The run that a request belongs to, None where it is none of ours."""
    found = _RUN.search(body)
    return found[1].decode() if found else None


def reply(results: int) -> Message:
    """The next reply to a request with so many tool results."""
    if results == 0:
        return Calls([_call("read_file", path=path) for path, _, _ in EDITS], "I look at both files first.")
    if results < len(EDITS) * 2:
        path, old, new = EDITS[results - len(EDITS)]
        return Calls([_call("edit_file", path=path, old_str=old, new_str=new)], "I raise this rate.")
    if results == len(EDITS) * 2:
        return Calls([_call("search_files", pattern=r"RATE_(17|42)\b", glob="*.py")], "Who uses them?")
    return Say(ANSWER)


def events(body: bytes) -> list[bytes]:
    """The streamed answer to a request, event by event. What it used is about a token for four bytes."""
    results = count_results(body)
    said = reply(results)
    message = Message(said.text, said.calls, said.finish_reason, usage=(len(body) // 4, 40))
    asked: JsonMap = {"stream_options": {"include_usage": bool(_WITH_USAGE.search(body))}}
    chunks = stream_documents(message, asked, results + 1, PIECE)
    return [*(b"data: %s\n\n" % json.dumps(each).encode() for each in chunks), END]


def problems(run: str, outcome: str, answer: str, found: Mapping[str, str]) -> list[str]:
    """What of its work a run has not done, a sentence each."""
    said: list[str] = []
    if outcome != "FINISHED" or answer != ANSWER:
        said.append(f"{run} ended {outcome}: {answer[:200]}")
    wrong = [path for path, text in changed_files().items() if found.get(path) != text]
    return [*said, *(f"{run}: {path} is not as it should be" for path in wrong)]


def _call(tool: str, **arguments: str) -> tuple[str, str]:
    return tool, json.dumps(arguments)
