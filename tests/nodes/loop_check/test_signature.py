import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.loop_check.repetition import action_signature, signature_of, target_of
from mendgraph.nodes.records import Effect, ToolCall, ToolSpec

READ = ToolSpec(name="read_file", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
MOVE = ToolSpec(name="move_file", description="", parameters={}, effect=Effect.WRITE, path_fields=("source", "target"))
PLAN = ToolSpec(name="update_plan", description="", parameters={}, effect=Effect.NONE)
ROOT = "/home/dev/project"
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=6,
)
json_maps = st.dictionaries(st.text(st.characters(), max_size=5), json_values, max_size=4)


def call(tool: ToolSpec, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool.name, arguments=arguments, raw_arguments="")


def signature(tool: ToolSpec, root: str = "", **arguments: Any) -> str:
    return signature_of(call(tool, **arguments), tool, root)


def test_a_signature_is_stable_across_versions() -> None:
    assert action_signature("read", "read_file", {"path": "a.py", "limit": 5}, "a.py") == "7747c0e8c69c426e"


@pytest.mark.parametrize(
    "other",
    [
        ("write", "read_file", {"limit": 5}, "a.py"),
        ("read", "list_files", {"limit": 5}, "a.py"),
        ("read", "read_file", {"limit": 6}, "a.py"),
        ("read", "read_file", {"limit": "5"}, "a.py"),
        ("read", "read_file", {}, "a.py"),
        ("read", "read_file", {"limit": 5}, "b.py"),
    ],
)
def test_every_part_of_an_action_counts(other: tuple[str, str, dict[str, Any], str]) -> None:
    assert action_signature(*other) != action_signature("read", "read_file", {"limit": 5}, "a.py")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, NESTED])
def test_what_is_no_json_has_a_signature_all_the_same(value: Any) -> None:
    expected = action_signature("read", "t", {"x": float("nan")}, "")
    assert action_signature("read", "t", {"x": value}, "") == expected


@pytest.mark.parametrize("path", ["./a.py", "a.py/", "x/../a.py", ".//a.py", f"{ROOT}/a.py", "../project/a.py"])
def test_other_spellings_of_a_path_are_the_same_action(path: str) -> None:
    assert signature(READ, ROOT, path=path) == signature(READ, ROOT, path="a.py")


@pytest.mark.parametrize("root", ["/", "/home/dev/X", "/home/dev/X/"])
def test_paths_below_any_root_are_relative_to_it(root: str) -> None:
    assert target_of(call(READ, path=f"{root.rstrip('/')}/a.py"), READ, root) == "a.py"


@pytest.mark.parametrize(
    ("tool", "arguments", "target"),
    [
        (READ, {"path": "./src/a.py"}, "src/a.py"),
        (READ, {"path": "."}, "."),
        (READ, {"path": ROOT}, "."),
        (READ, {"path": "/home/dev/project-b/a.py"}, "/home/dev/project-b/a.py"),
        (READ, {"path": ["./a.py", 3, "b.py"]}, "a.py, b.py"),
        (READ, {"path": 3}, ""),
        (READ, {}, ""),
        (MOVE, {"target": "b.py", "source": "./a.py"}, "a.py, b.py"),
        (PLAN, {"path": "a.py"}, ""),
    ],
)
def test_the_target_is_what_the_call_names(tool: ToolSpec, arguments: dict[str, Any], target: str) -> None:
    assert target_of(call(tool, **arguments), tool, ROOT) == target


@settings(max_examples=30)
@given(json_maps, json_values, st.sampled_from([READ, MOVE, PLAN]), st.sampled_from(["", ROOT, "/"]))
def test_every_call_has_a_signature(arguments: dict[str, Any], path: Any, tool: ToolSpec, root: str) -> None:
    named = arguments | dict.fromkeys(tool.path_fields, path)
    item = ToolCall(call_id="1", tool=tool.name, arguments=named, raw_arguments="")
    assert re.fullmatch("[0-9a-f]{16}", signature_of(item, tool, root))
