"""The content of a checkpoint is restored unchanged, and nothing else is ever built from one."""

import hashlib
import json
import logging
from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.routes import NODES
from mendgraph.graph.machine.serializer import CHECKPOINT_TYPES, serializer
from mendgraph.graph.machine.state import AgentState
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import Mending, RunLimits, Spending
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prompts.estimates import Gauge
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.policy.alerts import Vitals
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.records import (
    Answer,
    CallError,
    CallResult,
    ChangeKind,
    Correction,
    EditForm,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    FinishReason,
    LoopRecord,
    LoopVerdict,
    Mark,
    ModelReply,
    Outcome,
    OutcomeKind,
    OverrideConstraint,
    Plan,
    PlanStatus,
    PlanStep,
    Profile,
    Protocol,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolInvocation,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
    Verification,
)
from mendgraph.nodes.workspace.store.database import FINGERPRINT
from mendgraph.nodes.workspace.store.database_schema import SQLITE_TABLES
from tests.architecture.product import text_of

JSON = {"text": "é\n", "number": 1.5, "whole": 2**63, "nothing": None, "list": [True, {"deep": []}]}
ERROR = ExtractionError(ExtractionErrorType.UNKNOWN_TOOL_NAME, 3, "tool: x({})", "Unknown tool 'x'.")
TOOL_ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="No such file.", suggestions=("a.py", "b.py"))
CHANGE = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="-a\n+b\n")
OVERRIDE = OverrideConstraint(signature="f" * 16, tool="read_file", target="a.py", repeats=3)
RAW = RawCall(call_id="c", tool="read_file", arguments='{"path": ')

EXAMPLES: tuple[Any, ...] = (
    AgentContext(workspace="/w", max_seconds=1.5, response_format=JSON),
    APILimits(1, 2, 3, 4),
    APIUsageStats(1, 2, 3, 4),
    HealingAttempt(0, "said", [ERROR], "again"),
    Mending(rescued=1, asked_again=2, cut=3),
    PendingCall(edge="next model", model=1, attempt=2, wait_s=0.5, waited_s=1.5, failures=("a: timeout",)),
    RunLimits(api=APILimits(1), max_cost_usd=0.1),
    Gauge(size=300, messages=2, tokens=90),
    Spending(
        usage=APIUsageStats(4, 3, 2, 1),
        steps=2,
        seconds=0.25,
        mending=Mending(rescued=1),
        cost_usd=0.5,
        gauge=Gauge(size=300, messages=2, tokens=90),
        booked=7,
    ),
    Window(first="a", head="What was before.", cleared=("b",), tokens=8_192),
    ProjectNotes(path="AGENTS.md", text="Use tabs.", cut=True),
    Vitals(tools=(True, False), replies=(False,), costs=(3.0,), cost_unit="tokens", replies_alerted=True),
    RAW,
    ModelReply(text="x", calls=(RAW, RAW), finish_reason=FinishReason.LENGTH, input_tokens=7, seconds=0.5),
    ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message="late", retry_after_s=1.0),
    Profile(protocol=Protocol.NATIVE, edit_form=EditForm.BLOCKS, embedded=True, family="qwen", small=True),
    ERROR,
    ToolInvocation("read_file", JSON, 3),
    ToolCall(call_id="c", tool="read_file", arguments=JSON, raw_arguments="{}", line_number=2),
    CallError(call_id="c", tool="", raw_arguments="(", error=ERROR),
    Correction(reply="x", prompt="y", schema_repair=True, claim=True),
    Answer(text="done", value=JSON),
    TOOL_ERROR,
    ToolResult(ok=True, data=JSON),
    CHANGE,
    CallResult(call_id="c", tool="t", result=ToolResult(ok=False, error=TOOL_ERROR), changes=(CHANGE,), ms=3),
    PlanStep(title="look", status=PlanStatus.DONE),
    Plan(steps=(PlanStep(title="look"), PlanStep(title="mend", status=PlanStatus.IN_PROGRESS))),
    ToolSpec(name="t", description="d", parameters=JSON, effect=Effect.WRITE, path_fields=("path",), terminal=True),
    Verdict(kind=VerdictKind.DENY, rule="env_file", error=TOOL_ERROR, path=".env"),
    Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", pins=(("a.py", "", "mark"),), edited=("path",)),
    Permission(rule="ask_before_run", tool="run_command", subject="/usr/bin/git", prefix=("git", "log"), place="t"),
    OVERRIDE,
    LoopRecord(recent=(("a", "b"), ("a",)), overrides=(OVERRIDE,), verdict=LoopVerdict.OVERRIDE, missed=("a.py",)),
    Mark(kind="tests_weakened", path="tests/test_a.py", detail="2 assertions fewer"),
    StopCause(reason=StopReason.WALL_CLOCK, message="late", diagnostics=("a", "b")),
    Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="m", value=JSON, changed_files=("a.py",)),
    Verification(kind="passed", ran=("pytest: 2 tests",), lines=("a.py:1-3",)),
)


class Unlisted(BaseModel):
    """A type that must not be built from a checkpoint."""

    x: int = 1


class UnlistedEnum(Enum):
    """Another one."""

    A = "a"


def round_trip(value: Any) -> Any:
    return serializer().loads_typed(serializer().dumps_typed(value))


@pytest.mark.parametrize("strict", [True, False])
def test_listed_types_are_restored_and_others_become_plain_data(
    strict: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    """Whatever LANGGRAPH_STRICT_MSGPACK says (langgraph reads it once, on its import)."""
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", strict)
    for value in EXAMPLES:
        with subtests.test(type=type(value).__name__):
            back = round_trip({"one": value, "many": [value, [value]]})
            assert back == {"one": value, "many": [value, [value]]}
            assert type(back["one"]) is type(value)
            if isinstance(value, BaseModel):
                assert back["one"].model_dump() == value.model_dump()
    with caplog.at_level(logging.CRITICAL):
        for other in (Unlisted(), UnlistedEnum.A):
            assert type(round_trip({"x": other})["x"]) in {dict, str, type(None)}


def test_every_checkpoint_type_has_an_example() -> None:
    assert {type(value) for value in EXAMPLES} == {kind for kind in CHECKPOINT_TYPES if not issubclass(kind, Enum)}
    assert len(CHECKPOINT_TYPES) == len(set(CHECKPOINT_TYPES))


def types_in(hint: Any) -> set[type]:
    """All classes that a type annotation is made of, those of the fields of our records included."""
    if get_args(hint):
        return set().union(*map(types_in, get_args(hint)))
    if not isinstance(hint, type) or hint is Any:
        return set()
    if not hint.__module__.startswith("mendgraph.") or issubclass(hint, Enum):
        return {hint}
    fields = {name: field for name, field in get_type_hints(hint).items() if name in hint.__annotations__}
    return {hint}.union(*(types_in(field) for name, field in fields.items() if name != "model_config"))


def test_state_holds_only_listed_types() -> None:
    hints = get_type_hints(AgentState, include_extras=False)
    types = set(chain.from_iterable(types_in(hint) for hint in hints.values()))
    ours = {kind for kind in types if kind.__module__.startswith("mendgraph.")}
    assert ours <= set(CHECKPOINT_TYPES)
    assert {kind.__module__.split(".")[0] for kind in types - ours} == {"builtins", "langchain_core"}


def test_langgraph_json_lists_the_same_types() -> None:
    """In the form of langgraph_cli.schemas: a list of [module, name]."""
    config = json.loads(text_of("langgraph.json"))
    assert config["checkpointer"] == {
        "serde": {"allowed_msgpack_modules": [[word.__module__, word.__qualname__] for word in CHECKPOINT_TYPES]}
    }


# --- The format


def shape(kind: type[Any]) -> Any:
    """What of a type is stored and read: its words, or its fields with their types, bounds and defaults."""
    if issubclass(kind, Enum):
        return {word.name: word.value for word in kind}
    schema = TypeAdapter(kind).json_schema()
    return without_prose(schema) | {"defaults": repr(getattr(kind, "_field_defaults", {}))}


def without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_prose(item) for key, item in value.items() if key not in {"title", "description"}}
    return [without_prose(item) for item in value] if isinstance(value, list) else value


def fingerprint(types: Iterable[type[Any]], channels: Iterable[str], nodes: Iterable[str], tables: str) -> str:
    shapes = {f"{kind.__module__}.{kind.__qualname__}": shape(kind) for kind in types}
    parts = [shapes, sorted(channels), sorted(nodes), tables.split()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def test_change_of_a_stored_type_needs_a_new_fingerprint() -> None:
    now = fingerprint([*CHECKPOINT_TYPES, ToolOutcome], AgentState.__annotations__, NODES, ";".join(SQLITE_TABLES))
    assert now == FINGERPRINT, (
        f"What a database stores has changed: its fingerprint is {now!r} now. Can this version read what the last"
        " released one has stored, with the same meaning? Then put the new FINGERPRINT into"
        " nodes/workspace/store/database.py: tests/contract shows whether it can. Else raise FORMAT in"
        " database_schema.py as well, and convert older databases, or leave them refused."
    )
