"""What programs are given is as published."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mendgraph.graph.runs.events import Asked, Event, FellBack, Paid, Text, ToolStarted, Traced
from mendgraph.graph.terminal.answers import as_json
from mendgraph.graph.terminal.chat import chat
from mendgraph.graph.terminal.output_lines import event_as_map, line_schema, object_schema
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.turns import run_once
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure, ToolCall
from tests.graph.terminal.played_terminal import FIX, READ, Terminal
from tests.graph.terminal.signalled_models import Interrupted, InterruptedTwice

LINES = ["fix", "/diff", "/plan", "/usage", "/model", "/undo", "/undoo", "/help", "/exit"]
NAMES = ["diff", "plan", "usage", "model", "undo", "error", "help", "exit"]


@pytest.mark.parametrize("json_lines", [False, True])
def test_each_command_answers_as_published(tmp_path: Path, json_lines: bool) -> None:
    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=LINES, as_json=True, json_lines=json_lines)
    assert chat(terminal.setup) is ExitCode.FINISHED
    told = [json.loads(line) for line in terminal.out.splitlines()][-len(NAMES) :]
    judge = Draft202012Validator(_strict(line_schema() if json_lines else object_schema()))
    for name, value in zip(NAMES, told, strict=True):
        judge.validate(value)
        assert set(value) == ({name, "event"} if json_lines else {name})
        assert value.get("event", name) == name


SECRET = "hunter2-hunter2"  # noqa: S105 - a made-up one
SCRUB = Redactor((SECRET,)).text
CALL = ToolCall(
    call_id="1",
    tool="read_file",
    arguments={"path": "a.py", "token": "s3cret-value", SECRET: [SECRET]},
    raw_arguments=f'{{"path": "{SECRET}"}}',
)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Text("Hi"), {"event": "text", "text": "Hi"}),
        (
            FellBack("a", "b", f"said {SECRET}"),
            {"event": "fell_back", "model": "a", "following": "b", "reason": "said [redacted secret]"},
        ),
        (
            Paid(1, "reply", "gpt-x", 10, 2, 0, None, 0.5),
            {
                "event": "paid",
                "step": 1,
                "purpose": "reply",
                "model": "gpt-x",
                "input_tokens": 10,
                "output_tokens": 2,
                "cached_tokens": 0,
                "cost_usd": None,
                "seconds": 0.5,
                "reasoning_tokens": 0,
                "cache_write_tokens": 0,
            },
        ),
        (
            Traced("model.usage", {"input_tokens": 10, "api_key": "k", "odd": {1, 2}}, "run", "1", 3),
            {
                "event": "traced",
                "name": "model.usage",
                "payload": {"input_tokens": 10, "api_key": "***", "odd": [1, 2]},
                "run_id": "run",
                "step_id": "1",
                "ms": 3,
            },
        ),
    ],
)
def test_event_is_its_name_and_its_fields(event: Event, expected: object) -> None:
    assert event_as_map(event, SCRUB) == expected


def test_arguments_are_shown_without_what_stands_under_a_secrets_name() -> None:
    shown = event_as_map(ToolStarted(CALL), SCRUB)["call"]
    assert shown["arguments"] == {"path": "a.py", "token": "***", "[redacted secret]": ["[redacted secret]"]}
    assert SECRET not in as_json(shown)


def test_what_is_no_value_of_json_is_told_by_its_type() -> None:
    shown = event_as_map(Asked({"calls": [object()], "kind": None}), SCRUB)
    assert shown == {"event": "asked", "request": {"calls": ["<object>"], "kind": None}}


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


SCHEMA_OF_LINES = Draft202012Validator(_strict(line_schema()))


@pytest.mark.parametrize("name", RUNS)
def test_each_line_of_each_kind_of_run_is_as_published(tmp_path: Path, name: str) -> None:
    script, options, code = RUNS[name]
    terminal = Terminal(tmp_path, script, as_json=True, json_lines=True, **options)
    assert run_once(terminal.setup, "Does it add?") is code
    assert terminal.out.isascii()
    shown = [json.loads(line, parse_constant=pytest.fail) for line in terminal.out.splitlines()]
    for each in shown:
        SCHEMA_OF_LINES.validate(each)
    ends = [each["event"] for each in shown if each["event"] in {"ended", "error"}]
    assert ends == [shown[-1]["event"]] == ["error" if code is ExitCode.INTERRUPTED else "ended"]


@pytest.mark.parametrize("schema", [object_schema(), line_schema()])
def test_schema_is_one_itself_and_tells_its_version(schema: JsonMap) -> None:
    Draft202012Validator.check_schema(schema)
    assert (schema["$schema"], schema["version"]) == ("https://json-schema.org/draft/2020-12/schema", 1)
