"""The request of the block form: one clean message made anew from what the turn has brought to light.

It holds the task, the files as they are, and what failed in words. A small model that sees its own failed try repeats
it, and a form that is described is not imitated, so the form is shown in examples as real chat turns.
Source: 551 logged replies of a 1.5B model.
"""

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.messages import AIMessage, AnyMessage

from nodes.call_model.offered_tools import owes_a_value
from nodes.call_model.turn_view import TurnView, view_turn
from nodes.call_model.wire import describe_tool, message_of, on_the_wire
from nodes.language.blocks import EXAMPLE_EDITS, render_file
from nodes.language.history import is_request
from nodes.records import Correction, JsonMap, ToolSpec

BLOCKS_SYSTEM = """\
You are a coding agent. You change the files of one workspace.
To change a file, answer with its path on one line, then a fenced block with the new text of the functions or classes \
that change. Leave the rest out.
To look at a file that is not shown, answer with one line: tool: read_file({"path": "PATH"})
To find something, answer with one line: tool: search_files({"pattern": "TEXT"})
If nothing is to be changed, answer in plain text."""

_WORDS = """\
def whisper(text):
    return text.lower()


def shout(text):
    return text.lower()
"""
_LIMITS = """\
{
  "depth": 2,
  "width": 8
}
"""
EXAMPLES = (
    (
        "What does words.py do?",
        render_file("words.py", _WORDS),
        "It changes the case of a text: whisper lowers it, shout raises it.",
    ),
    (
        "shout in words.py should return upper case, but it returns lower case. Fix it.",
        render_file("words.py", _WORDS),
        render_file("words.py", EXAMPLE_EDITS["words.py"]),
    ),
    (
        "Set depth to 3 in limits.json.",
        render_file("limits.json", _LIMITS),
        render_file("limits.json", EXAMPLE_EDITS["limits.json"]),
    ),
    (
        "Create colors.md with red and blue in it.",
        render_file("words.py", _WORDS),
        render_file("colors.md", EXAMPLE_EDITS["colors.md"]),
    ),
)
"""A question, a repair, a file that is no code, a new file: request, file shown with it, the reply to imitate."""

UNTOLD_TOOLS = frozenset(
    {
        *("read_file", "list_files", "glob_files", "search_files"),
        *("edit_file", "edit_blocks", "write_file", "update_plan", "final_answer"),
    }
)
"""What a small model does not have to be told of in the block form: each line of a tool list is one to imitate."""

RETRY_TEMPERATURE = 0.8
"""From the second retry on, a small model is sampled: at temperature 0 it would repeat itself.

Source: measured on a 1.5B model, fresh retries at 0.7 to 0.9.
"""


class BlockRequest(NamedTuple):
    """The messages of a request in block form, and how many tries of this turn have failed before it."""

    messages: list[JsonMap]
    failures: int


def block_request(
    specs: Sequence[ToolSpec], history: Sequence[AnyMessage], corrections: Sequence[Correction]
) -> BlockRequest:
    """Make the request anew from the turn's history: earlier turns as they were said, this one as facts."""
    view = view_turn(history)
    start = max(index for index, message in enumerate(history) if is_request(message))
    earlier = [on_the_wire(m, native=False) for m in history[:start] if is_request(m) or _is_answer(m)]
    examples = [
        message
        for task, file, reply in EXAMPLES
        for message in (message_of("user", f"{task}\n\n{file}"), message_of("assistant", reply))
    ]
    request = message_of("user", _told(history[start].text, view, corrections))
    messages = [message_of("system", _system(specs)), *examples, *earlier, request]
    return BlockRequest(messages, view.failed_steps + len(corrections))


def retry_temperature(temperature: float, failures: int) -> float:
    """The temperature of the next try: the run's own, and from the second failure on at least `RETRY_TEMPERATURE`."""
    return max(temperature, RETRY_TEMPERATURE) if failures > 1 else temperature


def _system(specs: Sequence[ToolSpec]) -> str:
    """The block form's short prompt, and a line for each tool of the user's own and for an answer that has a shape."""
    told = [spec for spec in specs if spec.name not in UNTOLD_TOOLS or owes_a_value(spec)]
    if not told:
        return BLOCKS_SYSTEM
    return "\n".join([BLOCKS_SYSTEM, "More tools, called in the same way:", *map(describe_tool, told)])


def _is_answer(message: AnyMessage) -> bool:
    return isinstance(message, AIMessage) and not message.tool_calls and not message.text.startswith("tool:")


def _told(task: str, view: TurnView, corrections: Sequence[Correction]) -> str:
    """The task, the files as they are now, what was found, and what failed: in words, never as failed text."""
    parts = [task.strip(), *(render_file(path, content) for path, content in view.files.items())]
    if view.found:
        parts.append("\n".join(view.found))
    if view.changed:
        parts.append("Already changed: " + ", ".join(view.changed))
    failed = [*view.failures[-2:], *(correction.prompt for correction in corrections[-1:])]
    if failed:
        parts.append("\n".join(failed) + "\nIf it is a question, answer it in one sentence.")
    return "\n\n".join(parts)
