"""Actions that a registry holds: what an Environment executes of them, their schemas and their cancel flags."""

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.documents.environment import Environment
from mendgraph.nodes.execute_tools.registry import ActionError, ActionRegistry, ToolContext, tool
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.records import Effect, JsonMap
from mendgraph.nodes.workspace.files.deadline import call_within
from tests.row_tables import rows
from tests.workspace.execute_tools.action_doubles import Do


def test_action_can_see_that_it_is_cancelled() -> None:
    seen: list[str] = []

    class Patient:
        name = "patient"

        def execute(self, rounds: int, context: ToolContext) -> None:
            for number in range(rounds):
                if context.cancelled:
                    seen.append(f"stopped after {number}")
                    return
                time.sleep(0.01)

    environment = Environment(timeout_s=0.1, max_retries=0)
    result = call_within(10, lambda: environment.execute_action(Patient(), {"rounds": 1_000}))
    assert result["error"] == "Action 'patient' timed out after 0.1s"
    until = time.monotonic() + 10
    while not seen and time.monotonic() < until:
        time.sleep(0.01)
    assert seen[0].startswith("stopped after")


class Notebook:
    """Look at a file."""

    name = "read_file"

    def execute(self, file_name: str, lines=10) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return Path(file_name).read_text().splitlines()[:lines]


@tool(effect=Effect.READ, name="read_file")
def peek(file_name: str) -> str:
    """Look at a file."""
    return Path(file_name).read_text()


@rows((Notebook(), ["hello"]), (peek, "hello"))
def test_registered_action_is_executed_by_an_environment(action: Any, data: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    registry = ActionRegistry()
    registry.register(action)
    environment = Environment(base_dir=str(tmp_path), actions=registry)
    registered = registry.get("read_file")
    assert registered is not None

    results = [
        environment.execute_action(target, {"file_name": "notes.txt"}) for target in (registered, "read_file", action)
    ]

    assert [result["data"] for result in results] == [data] * 3
    assert (registered.description, registered.effect) == ("Look at a file.", Effect.READ)
    assert environment.execute_action(registered, {"file_name": "../notes.txt"})["error"] == "Path traversal blocked."
    assert registered.execute(file_name=str(tmp_path / "notes.txt")) == data


def test_tool_of_the_package_raises_its_error_if_executed_directly() -> None:
    with pytest.raises(ActionError, match="no workspace") as raised:
        read_file.execute(path="notes.txt")
    assert raised.value.kind == "permission_denied"


class Louder:
    def __call__(self, text: str) -> str:
        return text.upper()


class Shout:
    name = "shout"
    execute = Louder()


def test_execute_of_an_action_may_be_any_callable() -> None:
    result = Environment(allowed_exts=None).execute_action(Shout(), {"text": "a"})
    assert (result["data"], result["error"]) == ("A", None)


def circle() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


def test_self_referencing_value_is_redacted_if_secrets_are_known() -> None:
    environment = Environment(allowed_exts=None, secrets=["xyzzy" + "-4711-plugh"])
    assert environment.execute_action(Do("circle", circle), {})["data"] == MARK


def test_registered_action_has_a_schema_that_checks_arguments() -> None:
    registry = ActionRegistry([Notebook()])
    [spec] = registry.specs()
    assert spec.parameters["required"] == ["file_name"]
    assert spec.parameters["properties"]["file_name"] == {"type": "string"}
    registered = registry.get("read_file")
    assert registered is not None
    result = Environment(allowed_exts=None).execute_action(registered, {"name": "a.txt"})
    assert (result["ok"], result["error_type"]) == (False, "ValueError")
    assert result["error"].startswith("The arguments of read_file do not fit: file_name: field required")


def first_two(rows: Any) -> list[Any]:
    """Take two."""
    return list(itertools.islice(rows, 2))


def first_two_numbers(rows: Iterable[int]) -> list[int]:
    """Take two."""
    return list(itertools.islice(rows, 2))


@rows(first_two, first_two_numbers)
def test_registered_action_receives_an_endless_iterator_unconsumed(execute: Callable[..., Any]) -> None:
    action = Do("take", execute)
    environment = Environment(actions=ActionRegistry([tool(execute, effect=Effect.READ, name="take")]))
    named = environment.execute_action("take", {"rows": itertools.count(3)})
    assert (named["data"], named["error"]) == ([3, 4], None)
    assert environment.execute_action(action, {"rows": itertools.count(3)})["data"] == [3, 4]


def test_only_registered_names_are_known_and_duplicates_are_refused() -> None:
    unknown = Environment(actions=ActionRegistry([Notebook()])).execute_action("launch_rocket", {"x": 1})
    assert unknown["error"] == "There is no action 'launch_rocket'. There are: read_file."
    assert unknown["error_type"] == Environment().execute_action("read_file", {})["error_type"] == "unknown_tool"
    with pytest.raises(ValueError, match="Two tools are called 'read_file'"):
        ActionRegistry([Notebook(), peek])
    with pytest.raises(TypeError, match="an action needs a name"):
        ActionRegistry([object()])  # type: ignore[list-item]


def test_tool_of_the_package_works_on_the_base_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "notes.bin").write_text("hello\n")
    environment = Environment(base_dir=str(tmp_path))
    assert "hello" in environment.execute_action(read_file, {"path": "notes.txt"})["data"]["content"]
    assert environment.execute_action(read_file, {"path": "notes.bin"})["error"] == "Extension '.bin' not allowed."
    assert environment.execute_action(read_file, {"path": "missing.txt"})["error_type"] == "not_found"
    assert Environment().execute_action(read_file, {"path": "notes.txt"})["error_type"] == "permission_denied"


def test_registry_validator_runs_after_the_schema_and_normalizes() -> None:
    def positive(args: JsonMap) -> JsonMap:
        if args["lines"] < 1:
            raise ValueError("lines must be positive")
        return {**args, "lines": min(args["lines"], 5)}

    registry = ActionRegistry([Notebook()], {"read_file": positive})
    assert registry.validate("read_file", {"file_name": "a", "lines": 9}) == {"file_name": "a", "lines": 5}
    assert registry.validate("read_file", {"file_name": "a", "lines": 0}) == ["lines must be positive"]
    assert registry.validate("read_file", {"lines": 0}) == ["file_name: field required"]
    odd = ActionRegistry([Notebook()], {"read_file": lambda _: ["a"]})  # type: ignore[dict-item, return-value]
    assert odd.validate("read_file", {"file_name": "a"}) == [
        "the validator of read_file gave back list and no arguments"
    ]
    with pytest.raises(ValueError, match="'nope'"):
        ActionRegistry([Notebook()], {"nope": positive})


def test_registry_validator_applies_in_an_environment(tmp_path: Path) -> None:
    def first_line(args: JsonMap) -> JsonMap:
        if args["lines"] < 1:
            raise ValueError("lines must be positive")
        return {**args, "lines": 1}

    (tmp_path / "notes.txt").write_text("a\nb\n")
    registry = ActionRegistry([Notebook()], {"read_file": first_line})
    environment = Environment(base_dir=str(tmp_path), actions=registry)
    for action in ("read_file", registry.get("read_file"), Notebook()):
        result = environment.execute_action(action, {"file_name": "notes.txt"})  # type: ignore[arg-type]
        assert (result["data"], result["args"]["lines"]) == (["a"], 1)
        refused = environment.execute_action(action, {"file_name": "notes.txt", "lines": 0})  # type: ignore[arg-type]
        assert (refused["error"], refused["error_type"]) == ("lines must be positive", "ValueError")
