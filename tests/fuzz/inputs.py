"""Input as from other people: real texts with a few changed parts.

Hypothesis and not atheris, which has wheels for Linux on x86_64 alone: what reads here are mostly regular expressions,
orjson and libyaml, in whose C the coverage that would guide atheris is not seen.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from hypothesis import HealthCheck, given, settings, strategies as st

from mendgraph.graph.cassettes.cassette_file import render
from mendgraph.nodes.records import ModelReply
from tests.architecture.product import ROOT, text_of
from tests.fuzz.recorded import recorded_replies, reply_of
from tests.recorded.cassette import cassette_path, read
from tests.recorded.table import RUNS
from tests.rules.parse.readings import REGISTRY

SLOWEST_MS: Final = 10_000
"""How long one input may take. Everything here is linear, and inputs are small."""

EXAMPLES: Final = int(os.environ.get("MENDGRAPH_EXPLORE") or 20)
LONGEST: Final = 3_000
"""Characters of a real text that is changed: longer ones show nothing else, and take time."""

MOST_CHANGES: Final = 6
TOOLS: Final = sorted(REGISTRY.names())

ODD: Final = (
    *("\x00", "\r", "\r\n", "\n", "\t", "\x0b", "\x85", "\u2028", "\ufeff", "\u200d", "\ud800", "\udc00", "ä漢😀", "İ"),
)
JSON_WORDS: Final = (
    *'{}[],:"\\',
    *("[" * 70, '{"a":' * 70, "null", "NaN", "-1", "1e999", str(2**64), "\\ud83d", "\\u0000", "true"),
)
CALL_WORDS: Final = (
    *("tool:", "tool: ", "(", ")", "({", "})", "```", "````", "~~~", "```python\n", "\n```\n", "<think>", "</think>"),
    *('tool_result({"ok":true})', "\nuser: ", "<tool_call>", "</tool_call>", '{"name": "', '", "arguments": {', "'"),
    *('"""',),
    *("<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n", "calc.py\n", "def f():\n", "path", "content"),
    *("final_answer",),
    *(f'tool: {tool}({{"path": "calc.py"}})\n' for tool in TOOLS),
)


def fuzz(inputs: Callable[[], st.SearchStrategy[Any]]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """A test of generated inputs: a few in `make test`, as many as requested in `make fuzz`."""

    def decorated(test: Callable[[Any], None]) -> Callable[..., None]:
        few = settings(max_examples=EXAMPLES, deadline=SLOWEST_MS, suppress_health_check=[*HealthCheck])
        return few(given(st.deferred(inputs))(test))

    return decorated


class Change(NamedTuple):
    """One change of a text: from `start` on, in parts of 1,000 of its length, `size` characters become `word`."""

    start: int
    size: int
    word: str
    times: int


def mutated(seeds: Sequence[str], words: Sequence[str]) -> st.SearchStrategy[str]:
    """One of the texts, changed in a few places by words that matter to its reader, or by pieces of the others."""
    piece = st.builds(lambda seed, at: seed[at : at + 40], st.sampled_from(seeds), st.integers(0, LONGEST))
    word = st.one_of(st.sampled_from(words), st.sampled_from(ODD), st.just(""), piece, st.text(max_size=3))
    change = st.builds(
        Change, st.integers(0, 1_000), st.sampled_from([0, 0, 1, 3, 20, 400]), word, st.sampled_from([1, 1, 1, 2, 60])
    )
    changes = st.lists(change, max_size=MOST_CHANGES)
    return st.builds(_changed, st.sampled_from(seeds), changes)


def _changed(text: str, changes: Iterable[Change]) -> str:
    text = text[:LONGEST]
    for change in changes:
        at = len(text) * change.start // 1_000
        text = text[:at] + change.word * change.times + text[at + change.size :]
    return text


def byte_text(data: bytes) -> str:
    """Bytes as text of the characters up to 255."""
    return data.decode("latin-1")


def as_bytes(text: str) -> bytes:
    """The bytes of such a text; a mutation may have put other characters between them."""
    return text.encode("latin-1", "replace")


@cache
def replies() -> tuple[ModelReply, ...]:
    """The replies of all recorded runs."""
    parsed = map(reply_of, recorded_replies())
    return tuple(reply for reply in parsed if isinstance(reply, ModelReply))


@cache
def reply_texts() -> tuple[str, ...]:
    """What models said: in recorded runs, in the tests of real replies, and each recorded call as a line of text."""
    real: list[dict[str, Any]] = json.loads((ROOT / "tests/surfaces/runs/replies/real_replies.json").read_text("utf-8"))
    texts = [reply.text for reply in replies()] + [str(case["reply"]) for case in real]
    calls = [f"tool: {call.tool}({call.arguments})" for reply in replies() for call in reply.calls]
    return tuple(sorted({text for text in (*texts, *calls) if text}))


@cache
def argument_texts() -> tuple[str, ...]:
    """The arguments of recorded calls."""
    return tuple(sorted({"{}", *(call.arguments for reply in replies() for call in reply.calls)}))


@cache
def files() -> tuple[str, ...]:
    """Pieces of this project's own files, some with the line ends of other systems."""
    texts = [text_of(path.relative_to(ROOT).as_posix()) for path in sorted((ROOT / "nodes" / "language").glob("*.py"))]
    pieces = [text[at : at + LONGEST // 2] for text in texts for at in (0, LONGEST)]
    return (*pieces, *(piece.replace("\n", "\r\n") for piece in pieces[:8]), "", "a", "a\n", "\n\n", "a\r\nb\nc")


@cache
def cassettes() -> tuple[str, ...]:
    """The texts of the shorter recordings, in the form that our users have."""
    names = sorted((run.name for run in RUNS), key=lambda name: cassette_path(name).stat().st_size)
    return tuple(render(read(name)) for name in names[:12])
