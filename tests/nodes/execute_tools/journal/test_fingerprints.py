from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.journal.journal import call_fingerprint, idempotency_key

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_maps = st.dictionaries(st.text(), json_values, max_size=4)


def test_key_is_the_same_in_every_process_and_version() -> None:
    """The SHA-256 of ["thread",3,0,"write_file",{"content":"ä","path":"a.py"}], as sha256sum gives it."""
    assert idempotency_key("thread", 3, 0, "write_file", {"path": "a.py", "content": "ä"}) == (
        "26c8a5c3b22ba35f09262302f96f364be7000a603db85eb89a84a8320bdfd28a"
    )


def test_fingerprint_knows_the_tool_and_the_arguments() -> None:
    prints = [call_fingerprint(*call) for call in (("a", {"x": 1}), ("b", {"x": 1}), ("a", {"x": 2}))]
    assert len(set(prints)) == 3


@given(json_maps, st.randoms(use_true_random=False))
def test_order_of_arguments_does_not_matter(arguments: dict[str, Any], random: Any) -> None:
    items = list(arguments.items())
    random.shuffle(items)
    assert idempotency_key("t", 1, 2, "tool", dict(items)) == idempotency_key("t", 1, 2, "tool", arguments)
    assert call_fingerprint("tool", dict(items)) == call_fingerprint("tool", arguments)


@pytest.mark.parametrize("odd", ["a\ud83d", 2**64, -(2**70)])
def test_arguments_that_no_file_can_hold_have_keys_nevertheless(odd: Any) -> None:
    key = idempotency_key("t", 1, 2, "tool", {"b": 1, "a": odd})
    assert key == idempotency_key("t", 1, 2, "tool", {"a": odd, "b": 1})
    assert key != idempotency_key("t", 1, 2, "tool", {"a": "a?", "b": 1})
