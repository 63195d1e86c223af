"""The replies of the benchmark's endpoint: a number of file reads, then an answer. Pure.

The client's base URL encodes the script, and each request shows the progress of its run. So the endpoint needs no
state, and cannot confuse two runs.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Calls, Message, Say, completion_document, stream_documents

LINES: Final = 90
FILE: Final = "".join(f"line_{number:03} = {'x' * 30!r}\n" for number in range(LINES))
"""The content of each file, 4 kB."""
FILES: Final = 200
PIECE: Final = 8
"""Characters of a chunk in a reply of many chunks."""
END: Final = b"data: [DONE]\n\n"

_RESULT: Final = re.compile(rb'"role"\s*:\s*"tool"')
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true')
_WITH_USAGE: Final = re.compile(rb'"include_usage"\s*:\s*true')
_ADDRESS: Final = re.compile(
    r"/(?P<steps>\d+)/(?P<parallel>\d+)/(?P<pieces>\d+)/(?P<argument>\w+)/(?P<recorded>[01])/(?P<run>[\w-]+)/v1"
)


@dataclass(frozen=True)
class Script:
    """`steps` replies with `parallel` calls each, after a text of `pieces` chunks.

    `argument` is the name of the tool's path parameter. In a `recorded` run the endpoint compares each request with the
    previous one.
    """

    steps: int
    parallel: int = 1
    pieces: int = 0
    argument: str = "path"
    recorded: bool = False

    def path(self, run: str) -> str:
        """Return the path of the base URL for a run of this script."""
        return f"/{self.steps}/{self.parallel}/{self.pieces}/{self.argument}/{int(self.recorded)}/{run}/v1"

    def reply(self, results: int) -> Message:
        """Return the reply to a request with this number of tool results."""
        completed = results // self.parallel
        text = "".join(f"word_{number:02} " for number in range(self.pieces))
        if completed >= self.steps:
            return Say(f"{text}Done.")

        first = completed * self.parallel
        calls = [self._call(number) for number in range(first, first + self.parallel)]
        return Calls(calls, text)

    def _call(self, number: int) -> tuple[str, str]:
        root = "/" if self.argument == "file_path" else ""  # deepagents sees its folder as a file system
        return "read_file", json.dumps({self.argument: root + file_name(number)})


def file_name(number: int) -> str:
    """Return the name of the file that this call reads."""
    return f"data_{number % FILES:03}.py"


def find_script(path: str) -> tuple[Script, str] | None:
    """Return the script and the name of the run in the path of a request; None for other paths."""
    match = _ADDRESS.match(path)
    if match is None:
        return None

    script = Script(
        steps=int(match["steps"]),
        parallel=int(match["parallel"]),
        pieces=int(match["pieces"]),
        argument=match["argument"],
        recorded=match["recorded"] == "1",
    )
    return script, match["run"]


def count_results(body: bytes) -> int:
    """Return the number of tool results in a request. Inside of a text, JSON escapes the quotes of the pattern."""
    return len(_RESULT.findall(body))


def answer(script: Script, body: bytes) -> tuple[str, list[bytes]]:
    """Return the content type and the parts of the response; a part is an event if the request asks for a stream.

    The reported usage is one token for four bytes.
    """
    results = count_results(body)
    reply = script.reply(results)
    message = Message(reply.text, reply.calls, reply.finish_reason, usage=(len(body) // 4, 20))
    number = results // script.parallel + 1

    if not _STREAM.search(body):
        completion = completion_document(message, {}, number)
        return "application/json", [json.dumps(completion).encode()]

    request: JsonMap = {"stream_options": {"include_usage": bool(_WITH_USAGE.search(body))}}
    piece = PIECE if script.pieces else 0
    chunks = stream_documents(message, request, number, piece)
    events = [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks]
    return "text/event-stream", [*events, END]
