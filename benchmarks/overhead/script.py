"""What the benchmark's endpoint answers: so many steps of reading files, then the end. Pure.

The script is told in the address that a client is given, and how far a run has come is told by its request. So the
endpoint remembers nothing that could mix two runs up.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Calls, Message, Say, completion_document, stream_documents

LINES: Final = 90
FILE: Final = "".join(f"line_{number:03} = {'x' * 30!r}\n" for number in range(LINES))
"""What stands in each file, 4 kB."""
FILES: Final = 200
PIECE: Final = 8
"""Characters of a chunk, in replies that come in many."""
END: Final = b"data: [DONE]\n\n"

_RESULT: Final = re.compile(rb'"role"\s*:\s*"tool"')
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true')
_WITH_USAGE: Final = re.compile(rb'"include_usage"\s*:\s*true')
_ADDRESS: Final = re.compile(
    r"/(?P<steps>\d+)/(?P<parallel>\d+)/(?P<pieces>\d+)/(?P<argument>\w+)/(?P<recorded>[01])/(?P<run>[\w-]+)/v1"
)


@dataclass(frozen=True)
class Script:
    """`parallel` calls in each of `steps` replies, after a text of `pieces` chunks.

    `argument` is what the tool calls the path of a file. Of a `recorded` run, each request is compared with the last.
    """

    steps: int
    parallel: int = 1
    pieces: int = 0
    argument: str = "path"
    recorded: bool = False

    def path(self, run: str) -> str:
        """Where a client finds this script, for the run of this name."""
        return f"/{self.steps}/{self.parallel}/{self.pieces}/{self.argument}/{int(self.recorded)}/{run}/v1"

    def reply(self, results: int) -> Message:
        """The next reply to a request with so many tool results."""
        done = results // self.parallel
        text = "".join(f"word_{number:02} " for number in range(self.pieces))
        if done >= self.steps:
            return Say(f"{text}Done.")
        return Calls([self._call(done * self.parallel + each) for each in range(self.parallel)], text)

    def _call(self, number: int) -> tuple[str, str]:
        root = "/" if self.argument == "file_path" else ""  # deepagents sees its folder as a file system
        return "read_file", json.dumps({self.argument: root + file_name(number)})


def file_name(number: int) -> str:
    """The file that the call of this number reads."""
    return f"data_{number % FILES:03}.py"


def find_script(path: str) -> tuple[Script, str] | None:
    """The script and the run's name in the path of a request."""
    found = _ADDRESS.match(path)
    if found is None:
        return None
    steps, parallel, pieces = (int(found[name]) for name in ("steps", "parallel", "pieces"))
    return Script(steps, parallel, pieces, found["argument"], found["recorded"] == "1"), found["run"]


def count_results(body: bytes) -> int:
    """How many tool results a request carries; inside of a text their key would have its quotes escaped."""
    return len(_RESULT.findall(body))


def answer(script: Script, body: bytes) -> tuple[str, list[bytes]]:
    """Content type and parts of the answer to a request, an event each where it is streamed.

    What it used is about a token for four bytes.
    """
    results = count_results(body)
    reply = script.reply(results)
    message = Message(reply.text, reply.calls, reply.finish_reason, usage=(len(body) // 4, 20))
    number = results // script.parallel + 1
    if not _STREAM.search(body):
        return "application/json", [json.dumps(completion_document(message, {}, number)).encode()]
    asked: JsonMap = {"stream_options": {"include_usage": bool(_WITH_USAGE.search(body))}}
    chunks = stream_documents(message, asked, number, PIECE if script.pieces else 0)
    return "text/event-stream", [*(b"data: %s\n\n" % json.dumps(each).encode() for each in chunks), END]
