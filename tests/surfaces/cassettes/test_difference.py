"""How a miss compares the request that was sent with the one that was recorded."""

import json
from typing import Any

from mendgraph.graph.cassettes.player import MOST_LINES, difference


def difference_of(recorded: Any, sent: Any) -> list[str]:
    return difference(json.dumps(recorded).encode(), json.dumps(sent).encode())


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def tool_use(path: str) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"path": path}}]}]}


def tool(name: str, about: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about}}


CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "read_file", "arguments": "{}"}}]}
LONG, X60 = "x" * 300, "x" * 60
CONTENT = "messages[0] (user).content"
DIFFERENCES: tuple[tuple[Any, Any, list[str]], ...] = (
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    ({"t": 0.0, "n": 1}, {"t": 1.0, "n": 1}, ["t: recorded 0.0, sent 1.0"]),
    ({"t": 1}, {"t": True}, ["t: recorded 1, sent true"]),
    ({"t": [1, 2]}, {"t": [1.0, 2]}, ["t[0]: recorded 1, sent 1.0"]),
    ({}, {"seed": 5}, ["seed: not recorded, sent 5"]),
    ({"seed": None}, {}, ["seed: recorded null, not sent"]),
    ({"f": {"a": [1, 2]}}, {"f": {"a": [1]}}, ["f.a[1]: recorded 2, not sent"]),
    ([1], {}, ["the body: recorded [1], sent {}"]),
    (user("a"), user("b"), [f"{CONTENT}: recorded 'a', sent 'b'"]),
    (user("one\ntwo\nsix"), user("one\nten\nfour"), [f"{CONTENT}, line 2: recorded 'two', sent 'ten'"]),
    (user("one\ntwo"), user("one"), [f"{CONTENT}, line 2: recorded 'two', and what was sent ends before it"]),
    (
        *(user(f"{LONG}a{LONG}"), user(f"{LONG}b{LONG}")),
        [f"{CONTENT}: recorded ...'{X60}a{X60[1:]}'..., sent ...'{X60}b{X60[1:]}'..."],
    ),
    (
        *(user("a"), {"messages": [*user("a")["messages"], CALL]}),
        [f"messages[1] (assistant): not recorded, sent {json.dumps(CALL)}"],
    ),
    ({"messages": [1]}, {"messages": [2]}, ["messages[0]: recorded 1, sent 2"]),
    (tool_use("a"), tool_use("b"), ["messages[0] (assistant).content[0].input.path: recorded 'a', sent 'b'"]),
    ({"input": "a"}, {"input": "b"}, ["input: recorded 'a', sent 'b'"]),
    (
        *({"tools": [tool("a", "old"), tool("b")]}, {"tools": [tool("a", "new")]}),
        [
            "tools[0].function.description: recorded 'old', sent 'new'",
            f"tools[1]: recorded {json.dumps(tool('b'))}, not sent",
        ],
    ),
    ({"tools": [tool("a")]}, {}, [f"tools: recorded {json.dumps([tool('a')])}, not sent"]),
)
NO_JSON: tuple[tuple[bytes, bytes, list[str]], ...] = (
    (b"", b"", []),
    (b"", b"{}", ["the body: recorded null, sent {}"]),
    (b"not json", b"not jam", ["the body: recorded 'not json', sent 'not jam'"]),
    (b"\xff", b"\xfe", [r"the body: recorded b'\xff', sent b'\xfe'"]),
)


def test_difference_names_the_place_and_both_sides() -> None:
    assert [difference_of(recorded, sent) for recorded, sent, _ in DIFFERENCES] == [lines for *_, lines in DIFFERENCES]
    assert [difference(recorded, sent) for recorded, sent, _ in NO_JSON] == [lines for *_, lines in NO_JSON]


def test_difference_is_bounded() -> None:
    lines = difference_of({str(i): 0 for i in range(50)}, {str(i): 1 for i in range(50)})
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == f"... and {50 - MOST_LINES} more differences"
    assert len(difference_of({"a": LONG * 9}, {"a": 1})[0]) < 200
