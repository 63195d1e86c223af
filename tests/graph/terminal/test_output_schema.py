"""The published schema is that of what is really written, and says all of it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from graph.terminal.chat import chat
from graph.terminal.ending import error_object
from graph.terminal.exit_codes import ExitCode
from graph.terminal.output_schema import EVENTS, line_schema, object_schema
from graph.terminal.turns import run_once
from nodes.records import JsonMap, ProviderErrorKind, ProviderFailure
from tests.graph.terminal.played_terminal import READ, Terminal
from tests.graph.terminal.signalled_models import Interrupted, InterruptedTwice

FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
DOWN = ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="The endpoint refuses the key.")
BROKEN, SECRETS = "tool: read_file(", 'tool: read_file({"path": ".env"})'

RUNS: Mapping[str, tuple[list[Any], dict[str, Any], ExitCode]] = {
    "finished": ([f"I look.\n{READ}", FIX, "It adds now."], {}, ExitCode.FINISHED),
    "healed": ([BROKEN, READ, "Done."], {}, ExitCode.FINISHED),
    "refused": ([SECRETS, "I may not."], {}, ExitCode.FINISHED),
    "nobody asked": ([FIX, "I may not."], {"context": {"mode": "ask"}}, ExitCode.FINISHED),
    "repeated": ([READ, READ, READ, READ, "Enough."], {}, ExitCode.SYSTEM_ERROR),
    "budget": ([READ, READ], {"context": {"max_calls_per_turn": 1}}, ExitCode.BUDGET_STOP),
    "failed": ([DOWN], {}, ExitCode.SYSTEM_ERROR),
    "drained": ([FIX, "I go on"], {"model": Interrupted}, ExitCode.BUDGET_STOP),
    "interrupted": ([FIX, "I go on"], {"model": InterruptedTwice}, ExitCode.INTERRUPTED),
    "odd text": (["half \ud83d a \x1b[2J pair\r\n", "Done."], {}, ExitCode.FINISHED),
}

REFUSED = {
    "refused": ["permission_denied"],
    "nobody asked": ["approval_required"],
    "repeated": ["loop_override"],
}
"""The codes of what was not allowed."""


def _strict(schema: Any) -> Any:
    """The same schema, which allows no key that it does not name."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(each) for key, each in schema.items()}
    if isinstance(strict.get("properties"), dict):
        strict.setdefault("additionalProperties", False)
    return strict


OBJECTS = Draft202012Validator(_strict(object_schema()))
LINES = Draft202012Validator(_strict(line_schema()))


def _values(text: str) -> Iterator[JsonMap]:
    assert text.isascii()
    for line in text.splitlines():
        yield json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("name", RUNS)
def test_the_object_of_each_kind_of_run_is_as_published(tmp_path: Path, name: str) -> None:
    script, options, code = RUNS[name]
    terminal = Terminal(tmp_path, script, as_json=True, **options)
    assert run_once(terminal.setup, "Does it add?") is code
    (shown,) = _values(terminal.out)
    OBJECTS.validate(shown)
    assert [each["code"] for each in shown.get("refused", [])] == REFUSED.get(name, [])


@pytest.mark.parametrize("name", RUNS)
def test_each_line_of_each_kind_of_run_is_as_published(tmp_path: Path, name: str) -> None:
    script, options, code = RUNS[name]
    terminal = Terminal(tmp_path, script, as_json=True, json_lines=True, **options)
    assert run_once(terminal.setup, "Does it add?") is code
    shown = list(_values(terminal.out))
    for each in shown:
        LINES.validate(each)
    ends = [each["event"] for each in shown if each["event"] in {"ended", "error"}]
    assert ends == [shown[-1]["event"]] == ["error" if code is ExitCode.INTERRUPTED else "ended"]


def test_a_chat_tells_its_turns_one_after_the_other(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "Bye."], lines=["hi", "/usage", "bye"], as_json=True, json_lines=True)
    assert chat(terminal.setup) is ExitCode.FINISHED
    shown = list(_values(terminal.out))
    for each in shown:
        LINES.validate(each)
    told = [each["event"] for each in shown if each["event"] in {"ended", "usage"}]
    assert told == ["ended", "usage", "ended"]


def test_a_line_is_written_when_its_event_happens(tmp_path: Path) -> None:
    seen: list[int] = []

    class Looking(Interrupted):
        signals = ()

        def complete(self, call: Any, on_text: Any) -> Any:
            seen.append(len(terminal.out.splitlines()))
            return super().complete(call, on_text)

    terminal = Terminal(tmp_path, [READ, "Done."], model=Looking, as_json=True, json_lines=True)
    assert run_once(terminal.setup, "Does it add?") is ExitCode.FINISHED
    assert seen[1] > seen[0]


@pytest.mark.parametrize("schema", [object_schema(), line_schema()])
def test_the_schema_is_one_itself_and_tells_its_version(schema: JsonMap) -> None:
    Draft202012Validator.check_schema(schema)
    assert (schema["$schema"], schema["version"]) == ("https://json-schema.org/draft/2020-12/schema", 1)


def test_every_event_is_published_under_its_name() -> None:
    definitions = line_schema()["$defs"]
    names = {definitions[f"{kind.__name__}Line"]["properties"]["event"]["const"] for kind in EVENTS}
    assert len(names) == len(EVENTS)
    assert {"text", "step_done", "tool_started", "healing_began"} <= names


@pytest.mark.parametrize(
    "value",
    [{}, {"error": {}}, {"outcome": {}}, {"schema": 1}, [{}], {"error": {"code": 1, "message": "x"}}],
)  # fmt: skip
def test_what_is_not_written_is_no_object_of_ours(value: Any) -> None:
    assert not OBJECTS.is_valid(value)


def test_errors_are_objects_too() -> None:
    error = error_object("usage_error", "no")
    OBJECTS.validate(error)
    LINES.validate({"event": "error", **error})
    LINES.validate({"event": "error", "error": {"code": "not_found", "message": "no", "suggestions": ["a"]}})
