"""Every class of reply that a model can give, as a letter: the reply at a given step, in either protocol.

A letter that is about the same action each time (`LOOP`, `DENIED`) repeats itself; one that is work (`READ`, `WRITE`)
does something new at each step. Whether the machine takes the same way in both protocols can be asked of all letters
but those that `only` one protocol can spell.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from mendgraph.nodes.language.text_protocol import MAX_ARGUMENT_CHARS
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure
from tests.doubles.replies import Empty, Filtered, Message, Refuse, Say, Think
from tests.doubles.scripted_model import Line
from tests.doubles.tool_use import Use, message_of
from tests.vocabulary import Protocol

LINES = 60
"""The lines of notes.txt: each step reads another one."""
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "notes.txt": "".join(f"line {number}\n" for number in range(1, LINES + 1)),
    ".env": "TOKEN=swordfish\n",
}
USAGE = (100, 10)


@dataclass(frozen=True)
class Letter:
    """A class of replies; `say(step)` is one of them, the steps of a turn counted from 1.

    With `first` the endpoint fails so before it replies, and the call is tried again.
    """

    name: str
    say: Callable[[int], Use | Message | ProviderFailure]
    only: Protocol | None = None
    first: ProviderFailure | None = None

    def __str__(self) -> str:
        return self.name

    def spoken(self, step: int, protocol: Protocol) -> Line:
        line = self.say(step)
        return line if isinstance(line, ProviderFailure) else as_protocol(message_of(line, protocol))


def as_protocol(message: Message) -> Message:
    """The message with a count of tokens that does not depend on its protocol."""
    parts = {field.name: getattr(message, field.name) for field in fields(message)}
    return message if message.usage is not None else Message(**{**parts, "usage": USAGE})


def calls_line(*calls: tuple[str, JsonMap | str], cut: bool = False) -> Use:
    return Use(calls, USAGE, cut)


def read_line(step: int) -> tuple[str, JsonMap]:
    return ("read_file", {"path": "notes.txt", "start_line": step})


def failure(kind: ProviderErrorKind) -> ProviderFailure:
    return ProviderFailure(kind=kind, message="scripted", retry_after_s=0.0)


SAME_READ = ("read_file", {"path": "calc.py"})
BAD_JSON = ("read_file", '{"path": calc.py}')

READ = Letter("read", lambda step: calls_line(read_line(step)))
MADE = "made"
"""The folder of what is written."""
WRITE = Letter("write", lambda step: calls_line(("write_file", {"path": f"{MADE}/{step}.txt", "content": f"{step}\n"})))
LOOP = Letter("loop", lambda _: calls_line(SAME_READ))
DENIED = Letter("denied", lambda _: calls_line(("read_file", {"path": ".env"})))
MIXED = Letter("mixed", lambda step: calls_line(read_line(step), BAD_JSON, ("read_file", {"path": ".env"})))
UNKNOWN = Letter("unknown tool", lambda _: calls_line(("read_files", {"path": "calc.py"})))
INVALID_JSON = Letter("invalid JSON", lambda _: calls_line(BAD_JSON))
INVALID_ARGUMENTS = Letter("invalid arguments", lambda _: calls_line(("read_file", {})))
OVERSIZED = Letter("oversized", lambda _: calls_line(("read_file", f'{{"path": "{"x" * MAX_ARGUMENT_CHARS}"}}')))
"""A megabyte of arguments: not in the alphabet, as nothing with so much to read is repeated thousands of times."""
NO_NAME = Letter("no name", lambda _: calls_line(("", {})))
NO_PREFIX = Letter(
    "no prefix", lambda _: Say('I would call {"name": "read_file", "arguments": {"path": "calc.py"}} now')
)
PRINTED = Letter(
    "printed",
    lambda step: Say(
        f'```json\n{{"name": "read_file", "arguments": {{"path": "notes.txt", "start_line": {step}}}}}\n```'
    ),
)
NO_OPENING = Letter("no opening parenthesis", lambda _: Say("tool: read_file"), only=Protocol.TEXT)
NO_CLOSING = Letter("no closing parenthesis", lambda _: Say('tool: read_file({"path": "calc.py"}'), only=Protocol.TEXT)
TRUNCATED = Letter(
    "truncated", lambda step: calls_line(("write_file", {"path": f"{MADE}/{step}.txt", "content": "half"}), cut=True)
)
EMPTY = Letter("empty", lambda _: Empty())
THOUGHT = Letter("only a thought", lambda _: Think("Let me see."))
REFUSED = Letter("refused", lambda _: Refuse("I will not."))
FILTERED = Letter("filtered", lambda _: Filtered("The"))
CLAIM = Letter("claim", lambda _: Say("I have fixed calc.py."))
ERROR = Letter("error", lambda _: failure(ProviderErrorKind.AUTHENTICATION))
BUSY = Letter("busy", lambda _: failure(ProviderErrorKind.RATE_LIMITED))
BUSY_AT_FIRST = Letter(
    "busy at first", lambda step: calls_line(read_line(step)), first=failure(ProviderErrorKind.RATE_LIMITED)
)
FINAL = Letter("final", lambda _: Say("Nothing is wrong there."))
TERMINAL_TOOL = Letter("final answer", lambda _: calls_line(("final_answer", {"answer": "Nothing is wrong there."})))
ANSWER_BESIDE = Letter(
    "answer beside a call",
    lambda step: calls_line(read_line(step), ("final_answer", {"answer": "Nothing is wrong there."})),
)

ALPHABET: tuple[Letter, ...] = (
    READ, WRITE, LOOP, DENIED, MIXED, UNKNOWN, INVALID_JSON, INVALID_ARGUMENTS, NO_NAME, NO_PREFIX, PRINTED,
    NO_OPENING, NO_CLOSING, TRUNCATED, EMPTY, THOUGHT, REFUSED, FILTERED, CLAIM, ERROR, BUSY,
    BUSY_AT_FIRST, FINAL, TERMINAL_TOOL,
    ANSWER_BESIDE,
)  # fmt: skip

ALIKE: dict[Letter, tuple[Letter, ...]] = {
    READ: (BUSY_AT_FIRST, PRINTED),
    INVALID_JSON: (UNKNOWN, NO_NAME, NO_PREFIX, NO_OPENING, NO_CLOSING, TRUNCATED, EMPTY, THOUGHT),
    FINAL: (TERMINAL_TOOL, ANSWER_BESIDE),
    REFUSED: (FILTERED,),
    ERROR: (BUSY,),
}
"""Letters that lead to the same state as another one does, from wherever they are said; a test compares them."""
REPRESENTATIVES: tuple[Letter, ...] = (
    READ, WRITE, LOOP, DENIED, INVALID_JSON, INVALID_ARGUMENTS, REFUSED, ERROR, FINAL,
)  # fmt: skip
"""One letter for each class that the machine can tell from the others, but for replies of several calls, and claims."""


def letters_of(protocol: Protocol, letters: Iterable[Letter] = ALPHABET) -> list[Letter]:
    return [letter for letter in letters if letter.only in {None, protocol}]
