"""Whatever a model may reply, as hypothesis strategies: from good work to nonsense, in any order."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from mendgraph.nodes.call_model.model import TRANSIENT
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure
from tests.doubles.replies import Empty, Filtered, Message, Refuse, Say
from tests.doubles.scripted_model import Line
from tests.doubles.tool_use import Use, message_of
from tests.vocabulary import Protocol

HIDDEN = "swordfish"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "notes.txt": "one\ntwo\nthree\n",
    "src/deep/x.py": "X = 1\n",
    ".env": f"TOKEN={HIDDEN}\n",
}
ANSWER_SCHEMA: JsonMap = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

Call = tuple[str, JsonMap | str]
USAGE = (100, 10)


def edit(old: str, new: str) -> Call:
    """An edit of calc.py."""
    return ("edit_file", {"path": "calc.py", "old_str": old, "new_str": new})


GOOD_CALLS: tuple[Call, ...] = (
    ("read_file", {"path": "calc.py"}),
    ("read_file", {"filename": "./src/deep/x.py"}),
    *(("read_file", {"path": "notes.txt", "start_line": line}) for line in (1, 2)),
    edit("a - b", "a + b"),
    edit("a + b", "a - b"),
    ("write_file", {"path": "new/made.txt", "content": "new\n"}),
    ("write_file", {"path": "notes.txt", "content": "four\n"}),
    ("list_files", {"path": "."}),
    ("glob_files", {"pattern": "**/*.py"}),
    ("update_plan", {"steps": [{"title": "mend", "status": "in_progress"}, {"title": "tell"}]}),
)
MISSES: tuple[Call, ...] = (
    ("read_file", {"path": "clac.py"}),
    ("read_file", {"path": "notes.txt", "start_line": 99}),
    edit("not there", "neither"),
    ("write_file", {"path": "calc.py/below.txt", "content": ""}),
)
DENIED: tuple[Call, ...] = (
    ("read_file", {"path": ".env"}),
    ("write_file", {"path": "sub/.ENV.local", "content": ""}),
    ("list_files", {"path": "../"}),
    ("read_file", {"path": "/etc/passwd"}),
    ("write_file", {"path": ".git/config", "content": ""}),
    ("read_file", {"path": "a\0b"}),
)
MALFORMED: tuple[Call, ...] = (
    ("read_file", '{"path": calc.py}'),
    ("read_file", '{"path": "a", "path": "b"}'),
    ("read_file", "[1]"),
    ("read_file", '{"path": NaN}'),
    ("edit_file", '{"path": "calc.py", "old_str": "a"'),
    ("read_file", {}),
    ("read_file", {"path": "calc.py", "lines": 3}),
    ("read_files", {"path": "calc.py"}),
    ("", {}),
)
UNCLOSED: tuple[Call, ...] = (("edit_file", '{"path": "calc.py", "old_str": "a'),)
"""In text, the string runs on to the end of the reply; a native call ends where it ends."""
ANSWERS: tuple[Call, ...] = (
    ("final_answer", {"answer": "Done.", "value": {"n": 1}}),
    ("final_answer", {"answer": "Done.", "value": {"n": "one"}}),
)
ODD: tuple[Message, ...] = (
    Say("Done.", usage=USAGE),
    Say("", usage=USAGE),
    Say('```json\n{"name": "read_file", "arguments": {"path": "calc.py"}}\n```', usage=USAGE),
    Say('I would call {"name": "read_file", "arguments": {"path": "calc.py"}} now', usage=USAGE),
    Empty(),
    Refuse("I will not."),
    Filtered("The"),
)
TEXT_ALONE: tuple[Message, ...] = (
    Say("tool: read_file", usage=USAGE),
    Say("calc.py\n```python\ndef add(a, b):\n    return a + b\n```", usage=USAGE),
    Say("calc.py\n```python\ndef add(a, b):\n    return a +", usage=USAGE),
    Say(".env\n```\nTOKEN=1\n```\nnotes.txt\n```\nfour\n```", usage=USAGE),
    Say("new.py\n```python\nX = 1\n```\nThat is all.", usage=USAGE),
)
"""Calls, good or bad, that only the text protocol or the block form takes for any."""
FAILURES: tuple[ProviderFailure, ...] = tuple(
    ProviderFailure(kind=kind, message="scripted", retry_after_s=0.0)
    for kind in (*sorted(TRANSIENT) * 2, *ProviderErrorKind)
)


@dataclass(frozen=True)
class Story:
    """A model's replies in order; after the last one either an answer or the same reply forever."""

    lines: tuple[Use | Message | ProviderFailure, ...]
    endless: bool = False

    def script(self, protocol: Protocol) -> tuple[list[Line], Line | None]:
        """The lines in one protocol, and what comes after them (None: an answer)."""
        messages = [line if isinstance(line, ProviderFailure) else message_of(line, protocol) for line in self.lines]
        return messages, messages[-1] if messages and self.endless else None


def stories(*, same_in_both: bool = False) -> SearchStrategy[Story]:
    """Stories in which a line may be said again and again.

    `same_in_both` leaves out what means one thing in text and another natively.
    """
    malformed = MALFORMED if same_in_both else (*MALFORMED, *UNCLOSED)
    calls = st.one_of(*map(st.sampled_from, (GOOD_CALLS, GOOD_CALLS, MISSES, DENIED, malformed, ANSWERS)))
    uses = st.builds(
        lambda calls, cut: Use(tuple(calls), USAGE, cut),
        st.lists(calls, min_size=1, max_size=3),
        st.sampled_from([False] * 9 + [True]),
    )
    odd = st.sampled_from(ODD if same_in_both else (*ODD, *TEXT_ALONE * 2))
    failures = st.sampled_from(FAILURES)
    lines = st.sampled_from([uses] * 7 + [odd] * 2 + [failures]).flatmap(lambda kind: kind)
    repeated = st.lists(st.tuples(lines, st.sampled_from([1, 1, 1, 1, 2, 3, 4])), max_size=8)
    story_lines = repeated.map(lambda pairs: tuple(line for line, times in pairs for _ in range(times)))
    return st.builds(Story, story_lines, st.booleans())


def contexts() -> SearchStrategy[JsonMap]:
    """Limits from tight to loose, and other settings of a run."""
    return st.fixed_dictionaries(
        {
            "max_calls_per_turn": st.integers(1, 12),
            "max_calls_per_session": st.integers(1, 30),
            "max_healing_attempts": st.integers(0, 3),
            "max_schema_repairs": st.integers(0, 2),
            "provider_retries": st.integers(0, 2),
            "loop_repeat_threshold": st.integers(2, 3),
            "mode": st.sampled_from(["auto", "auto", "read-only"]),
        },
        optional={"max_steps": st.integers(1, 4), "response_format": st.just(ANSWER_SCHEMA)},
    )


def tight_tokens() -> SearchStrategy[JsonMap]:
    """Limits on tokens and money that a few calls reach; none, as often as not."""
    prices: JsonMap = {"usd_per_million_input": 1.0, "usd_per_million_output": 10.0}
    tight = st.fixed_dictionaries(
        {},
        optional={
            "max_input_tokens_per_session": st.integers(1, 20_000),
            "max_output_tokens_per_session": st.integers(1, 90),
            "max_input_tokens_per_turn": st.integers(1, 20_000),
            "max_output_tokens_per_turn": st.integers(1, 90),
            "max_output_tokens_per_call": st.integers(16, 40),
            "max_cost_usd": st.floats(0.002, 0.02),
        },
    )
    return st.one_of(st.just({}), tight.map(lambda limits: limits | prices))
