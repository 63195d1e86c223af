from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.block_prompt import bounded_request, estimated_tokens, latest_turns
from nodes.call_model.turn_view import TurnView
from tests.nodes.call_model.prompting import assistant, user

TASK = "Fix b.py"
FILES = {"a.py": "a" * 300, "b.py": "b" * 300, "c.py": "c" * 300, "d.py": "d" * 300}
FOUND = ("f" * 300,)


def told(view: TurnView, left_out: Sequence[str]) -> str:
    """What is shown, in the sizes that it has, and what is not."""
    return "".join([TASK, *view.files.values(), *view.found, *(f"-{path}" for path in left_out)])


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (503, "a b c d f"),
        (502, "b c d f -a.py"),
        (405, "b c d f -a.py"),
        (404, "b d f -a.py -c.py"),
        (304, "b d -a.py -c.py"),
        (204, "b -a.py -c.py -d.py"),
        (104, "-a.py -c.py -d.py -b.py"),
        (0, "-a.py -c.py -d.py -b.py"),
    ],
)
def test_what_the_task_needs_least_goes_first(tokens: int, shown: str) -> None:
    text = bounded_request(TASK, TurnView(files=FILES, found=FOUND), told, tokens)
    files = "".join(name * 300 for name in shown.split() if len(name) == 1)
    assert text == TASK + files + "".join(name for name in shown.split() if len(name) > 1)


@given(
    st.dictionaries(st.sampled_from(["a.py", "b.py", "c.py", "d.py"]), st.text(max_size=400)),
    st.lists(st.text(max_size=200), max_size=2),
    st.integers(0, 500),
)
def test_a_bounded_request_fits_unless_nothing_is_left(files: dict[str, str], found: list[str], tokens: int) -> None:
    text = bounded_request(TASK, TurnView(files=files, found=tuple(found)), told, tokens)
    everything = told(TurnView(files=files, found=tuple(found)), ())
    if len(everything.encode("utf-8", "replace")) <= 3 * tokens:
        assert text == everything
    least = [path for path in files if path != "b.py"] + [path for path in files if path == "b.py"]
    assert len(text.encode("utf-8", "replace")) <= 3 * tokens or text == told(TurnView(), least)


def test_tokens_are_estimated_from_bytes_messages_and_tools() -> None:
    assert estimated_tokens([]) == 0
    assert estimated_tokens([user("abc"), assistant("é")]) == 5 + 5
    assert estimated_tokens([user("")], [{"a": 1}]) == 4 + 4


def test_the_oldest_turns_are_dropped_as_wholes() -> None:
    turns = [message for at in range(4) for message in (user(f"ask {at}" * 10), assistant(f"say {at}" * 10))]
    each = estimated_tokens(turns[:2])
    assert latest_turns(turns, 4 * each) == turns
    assert latest_turns(turns, 4 * each - 1) == turns[2:]
    assert latest_turns(turns, each) == turns[6:]
    assert latest_turns(turns, each - 1) == []
    assert latest_turns(turns[1:], 4 * each) == turns[1:]
