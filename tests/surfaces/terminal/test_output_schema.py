"""JSON output matches the published schema."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mendgraph.graph.runs.events import Asked, Event, FellBack, OfChild, Paid, Text, ToolStarted, Traced
from mendgraph.graph.terminal.chat import chat
from mendgraph.graph.terminal.json_output import event_as_map, line_schema, object_schema
from mendgraph.graph.terminal.output import as_json
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.turns import run_once
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure, ToolCall
from tests.extent import slow
from tests.surfaces.terminal.played_terminal import FIX, READ, Terminal
from tests.surfaces.terminal.signalled_models import Interrupted, InterruptedTwice


def closed_schema(schema: Any) -> Any:
    """The same schema, which allows no key that it does not name."""
    if isinstance(schema, list):
        return [closed_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: closed_schema(part) for key, part in schema.items()}
    if isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


@slow
def test_schema_is_valid_and_has_a_version() -> None:
    for schema in (object_schema(), line_schema()):
        Draft202012Validator.check_schema(schema)
        assert (schema["$schema"], schema["version"]) == ("https://json-schema.org/draft/2020-12/schema", 1)


LINES = ["fix", "/diff", "/plan", "/usage", "/model", "/undo", "/undoo", "/help", "/exit"]
NAMES = ["diff", "plan", "usage", "model", "undo", "error", "help", "exit"]


@slow
@pytest.mark.parametrize("json_lines", [False, True])
def test_chat_command_output_matches_the_published_schema(tmp_path: Path, json_lines: bool) -> None:
    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=LINES, as_json=True, json_lines=json_lines)
    assert chat(terminal.setup) is ExitCode.FINISHED
    objects = [json.loads(line) for line in terminal.out.splitlines()][-len(NAMES) :]
    judge = Draft202012Validator(closed_schema(line_schema() if json_lines else object_schema()))
    for name, value in zip(NAMES, objects, strict=True):
        judge.validate(value)
        assert set(value) == ({name, "event"} if json_lines else {name})
        assert value.get("event", name) == name


DOWN = ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="The endpoint refuses the key.")
BROKEN, SECRETS = "tool: read_file(", 'tool: read_file({"path": ".env"})'
RUNS: dict[str, tuple[list[Any], dict[str, Any], ExitCode]] = {
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


@pytest.mark.parametrize("name", RUNS)
def test_run_output_lines_match_the_published_schema(tmp_path: Path, name: str) -> None:
    script, options, code = RUNS[name]
    terminal = Terminal(tmp_path, script, as_json=True, json_lines=True, **options)
    assert run_once(terminal.setup, "Does it add?") is code
    assert terminal.out.isascii()
    objects = [json.loads(line, parse_constant=pytest.fail) for line in terminal.out.splitlines()]
    judge = Draft202012Validator(closed_schema(line_schema()))
    for line_object in objects:
        judge.validate(line_object)
    ends = [line_object["event"] for line_object in objects if line_object["event"] in {"ended", "error"}]
    assert ends == [objects[-1]["event"]] == ["error" if code is ExitCode.INTERRUPTED else "ended"]


# --- Events

SECRET = "hunter2-hunter2"  # noqa: S105 - a made-up one
CALL = ToolCall(
    call_id="1",
    tool="read_file",
    arguments={"path": "a.py", "token": "s3cret-value", SECRET: [SECRET]},
    raw_arguments=f'{{"path": "{SECRET}"}}',
)
PAID = {"step": 1, "purpose": "reply", "model": "gpt-x", "input_tokens": 10, "output_tokens": 2, "cached_tokens": 0}
TRACED = {"input_tokens": 10, "api_key": "k", "odd": {1, 2}}
EVENTS: tuple[tuple[Event, dict[str, Any]], ...] = (
    (Text("Hi"), {"event": "text", "text": "Hi"}),
    (
        FellBack("a", "b", f"said {SECRET}"),
        {"event": "fell_back", "model": "a", "following": "b", "reason": "said [redacted secret]"},
    ),
    (
        Paid(1, "reply", "gpt-x", 10, 2, 0, None, 0.5),
        {"event": "paid", **PAID, "cost_usd": None, "seconds": 0.5, "reasoning_tokens": 0, "cache_write_tokens": 0},
    ),
    (
        Traced("model.usage", TRACED, "run", "1", 3),
        {
            "event": "traced",
            "name": "model.usage",
            "payload": {"input_tokens": 10, "api_key": "***", "odd": [1, 2]},
            "run_id": "run",
            "step_id": "1",
            "ms": 3,
        },
    ),
    (
        Asked({"calls": [object()], "kind": None}),
        {"event": "asked", "request": {"calls": ["<object>"], "kind": None}},
    ),
)


def test_event_is_its_name_and_its_fields_without_secrets() -> None:
    scrub = Redactor((SECRET,)).text
    assert [event_as_map(event, scrub) for event, _ in EVENTS] == [expected for _, expected in EVENTS]
    event_object = event_as_map(ToolStarted(CALL), scrub)
    arguments = {"path": "a.py", "token": "***", "[redacted secret]": ["[redacted secret]"]}
    assert (event_object["call"]["arguments"], SECRET in as_json(event_object)) == (arguments, False)
    of_child = event_as_map(OfChild("1.1", "abc", ToolStarted(CALL)), scrub)
    assert (of_child["task"], of_child["inner"]) == ("abc", event_object)


RAW = (
    ('{"path": "a.py", "token": "s3cret-value"}', '{"path": "a.py", "token": "***"}'),
    ('{"headers": [{"Authorization": "Basic YTpi"}]}', '{"headers": [{"Authorization": "***"}]}'),
    ('{"path":"a.py"}', '{"path":"a.py"}'),
    (f'{{"path": "{SECRET}"', '{"path": "[redacted secret]"'),
)


def test_raw_arguments_are_redacted_under_secret_names() -> None:
    scrub = Redactor((SECRET,)).text
    event_objects = [event_as_map(ToolStarted(CALL.model_copy(update={"raw_arguments": raw})), scrub) for raw, _ in RAW]
    assert [event_object["call"]["raw_arguments"] for event_object in event_objects] == [
        expected for _, expected in RAW
    ]


def test_json_output_is_strict_and_ascii() -> None:
    values: tuple[tuple[Any, str], ...] = (
        ({"a": float("nan"), "b": [float("inf"), -float("inf"), 1.5]}, '{"a": null, "b": [null, null, 1.5]}'),
        ("half \ud83d and \x1b[2J", r'"half \ufffd and \u001b[2J"'),
        ({"\ud83d": ("é", True, None, 7)}, r'{"\ufffd": ["\u00e9", true, null, 7]}'),
        (Path("/w"), '"/w"'),
    )
    assert [as_json(value) for value, _ in values] == [text for _, text in values]
