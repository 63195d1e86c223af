"""Whole runs against endpoints that fail in the ways of real ones: sync and async runs end in the same way."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph import AgentContext, Outcome, build_graph, run_task
from tests.doubles.model_clock import set_clock
from tests.doubles.scripted_server import (
    NO_USAGE,
    Calls,
    Chunked,
    Cut,
    CutAt,
    Disconnect,
    Drip,
    Filtered,
    NoFinish,
    Refuse,
    Reply,
    Say,
    ScriptedServer,
    Stall,
    Status,
    Think,
)
from tests.extent import slow
from tests.vocabulary import JsonMap
from tests.workspace_files import write_files

KEY = "sk-hunter2-hunter2-hunter2"
TASK = "Is all well?"
FINE = Say("All is well.", usage=(100, 10))
READ = Calls([("read_file", '{"path":"big.txt","limit":120}')], usage=(100, 10))
OVERFLOW = {"error": {"message": "This is too long.", "code": "context_length_exceeded"}}

Script = Sequence[Reply | Callable[[JsonMap], Reply]]


@dataclass(frozen=True)
class Ended:
    """How a run ended, its requests, and its events; `waits` are in seconds."""

    outcome: Outcome
    messages: list[tuple[str, Any, Any]]
    waits: list[float]
    usage: list[JsonMap]
    compactions: list[JsonMap]
    requests: list[list[list[JsonMap]]]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits are recorded and take no time."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return set_clock(monkeypatch)


def run_twice(folder: Path, waits: list[float], *scripts: Script, **settings: Any) -> Ended:
    """How a run ends against servers with these scripts, of which all but the first are fallbacks."""
    ends = [_ended(folder, waits, scripts, settings, asynchronous=asynchronous) for asynchronous in (False, True)]
    assert ends[0] == ends[1]
    assert KEY not in repr(ends[0])
    return ends[0]


def _ended(
    folder: Path, waits: list[float], scripts: Sequence[Script], settings: JsonMap, *, asynchronous: bool
) -> Ended:
    write_files(folder, {"big.txt": "".join(f"{number} {'word ' * 12}\n" for number in range(400))})
    waits.clear()
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(script)) for script in scripts]
        fallbacks = tuple(f"model-{place} @ {server.base_url}" for place, server in enumerate(servers[1:], start=2))
        off = dict.fromkeys(("evidence", "read_ahead", "audit"), False)
        fields: JsonMap = {"protocol": "native", "fallback_models": fallbacks, **off, **settings}
        context = AgentContext(workspace=str(folder), model="model-1", base_url=servers[0].base_url, **fields)
        values, parts = asyncio.run(_arun(context)) if asynchronous else _run(context)
        for server in servers[1:]:  # a key is for the endpoint that it was set for
            assert all(KEY not in headers.get("authorization", "") for headers in server.headers)
        text = values["outcome"].model_dump_json()
        for place, server in enumerate(servers, start=1):
            text = text.replace(server.base_url, f"http://server-{place}/v1")
        traces = [part for part in parts if part["type"] == "trace"]
        return Ended(
            outcome=without_seconds(Outcome.model_validate_json(text)),
            messages=[(m.type, m.content, getattr(m, "tool_calls", None)) for m in values["messages"][:-1]],
            waits=list(waits),
            usage=[{**t["payload"], "seconds": 0.0} for t in traces if t["name"] == "model.usage"],
            compactions=[t["payload"] for t in traces if t["name"] == "context.compacted"],
            requests=[[request["messages"] for request in server.requests] for server in servers],
        )


def _run(context: AgentContext) -> tuple[Any, list[JsonMap]]:
    values: Any = {}
    parts: list[Any] = []
    for mode, part in build_graph().stream(*_turn_input(context), context=context, stream_mode=["values", "custom"]):
        values = part if mode == "values" else values
        parts += [part] if mode == "custom" else []
    return values, parts


async def _arun(context: AgentContext) -> tuple[Any, list[JsonMap]]:
    values: Any = {}
    parts: list[Any] = []
    stream = build_graph().astream(*_turn_input(context), context=context, stream_mode=["values", "custom"])
    async for mode, part in stream:
        values = part if mode == "values" else values
        parts += [part] if mode == "custom" else []
    return values, parts


def _turn_input(context: AgentContext) -> tuple[Any, Any]:
    return {"messages": [HumanMessage(TASK)]}, {"recursion_limit": 20 * context.max_calls_per_turn}


def without_seconds(outcome: Outcome) -> Outcome:
    usage = {name: value for name, value in outcome.usage.items() if "seconds" not in name}
    return outcome.model_copy(update={"usage": usage})


def end_of(ended: Ended) -> tuple[str, str, int]:
    return ended.outcome.kind, ended.outcome.answer, ended.outcome.usage["total_calls"]


# --- Transient failures

PASSING: tuple[tuple[Reply, float], ...] = (
    (Status(429, headers={"Retry-After": "7"}), 7.0),
    (Status(429, headers={"Retry-After": "0"}), 0.0),
    (Status(429), 0.5),
    (Status(500), 0.5),
    (Status(503, headers={"Retry-After": "30"}), 30.0),
    (Status(529, body="overloaded"), 0.5),
    (Status(408), 0.5),
    (Disconnect(0), 0.5),
    (Disconnect(2), 0.5),
    (Disconnect(1, reset=True), 0.5),
    (NoFinish("All is"), 0.5),
    (CutAt(120, Chunked(FINE, 3)), 0.5),
)


def test_transient_failure_is_retried_after_a_wait(tmp_path: Path, waits: list[float]) -> None:
    for first, waited in PASSING:
        ended = run_twice(tmp_path, waits, [first, FINE])
        assert (end_of(ended), ended.waits) == (("FINISHED", "All is well.", 2), [waited]), first
        assert [row["model"] for row in ended.usage] == ["model-1", "model-1"]
        assert ended.requests[0][0] == ended.requests[0][1]


def test_retry_after_that_is_too_long_ends_the_run(tmp_path: Path, waits: list[float]) -> None:
    ended = run_twice(tmp_path, waits, [Status(429, headers={"Retry-After": "31"}), FINE])
    assert (ended.outcome.kind, ended.outcome.reason) == ("SYSTEM_ERROR", "provider_failed")
    assert (ended.waits, len(ended.requests[0])) == ([], 1)


@pytest.mark.parametrize("stalls", [Stall(2, Chunked(FINE, 3)), Drip(2, Chunked(FINE, 3))], ids=["silent", "comments"])
def test_stalled_reply_is_given_up_and_retried(stalls: Reply, tmp_path: Path, waits: list[float]) -> None:
    ended = run_twice(tmp_path, waits, [stalls, FINE], idle_timeout_s=0.15, request_timeout_s=30.0)
    assert (end_of(ended), ended.waits) == (("FINISHED", "All is well.", 2), [0.5])
    assert ended.outcome.usage["total_input_tokens"] > 100  # the estimate of the first, as its endpoint had begun


def test_reply_that_never_starts_times_out(tmp_path: Path, waits: list[float]) -> None:
    ended = run_twice(tmp_path, waits, [Stall(0)], request_timeout_s=0.15, provider_retries=0)
    assert (ended.outcome.kind, ended.outcome.reason) == ("SYSTEM_ERROR", "provider_failed")
    assert "did not answer in time" in ended.outcome.message
    assert ended.outcome.diagnostics == ("provider error: timeout",)


# --- Permanent failures

UNPAID: JsonMap = {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}
LASTING: tuple[tuple[Reply, str, str], ...] = (
    (Disconnect(0), "cannot be reached", "connection (3 tries)"),
    (Disconnect(2), "was cut off", "incomplete_stream (3 tries)"),
    (NoFinish("All is"), "broke off", "incomplete_stream (3 tries)"),
    (Status(503), "scripted status 503", "server_error (3 tries)"),
    (Status(429), "too many requests", "rate_limited (3 tries)"),
    (Status(429, UNPAID), "has no credit left", "authentication"),
    (Status(429, json.dumps([UNPAID])), "has no credit left", "authentication"),
    (Status(401), "OPENAI_API_KEY", "authentication"),
    (Status(404), "--model", "model_unavailable"),
    (Status(400), "refuses the request", "bad_request"),
)


@slow
def test_permanent_failure_ends_the_run(tmp_path: Path, waits: list[float]) -> None:
    for bad, words, diagnostics in LASTING:
        ended = run_twice(tmp_path, waits, [bad] * 3)
        assert (ended.outcome.kind, ended.outcome.reason) == ("SYSTEM_ERROR", "provider_failed"), bad
        assert ended.outcome.diagnostics == (f"provider error: {diagnostics}",)
        assert len(ended.requests[0]) == (3 if "3 tries" in diagnostics else 1)
        assert words in ended.outcome.message
        assert "\n" not in ended.outcome.message


@slow
def test_base_url_without_v1_is_corrected_once(tmp_path: Path, waits: list[float]) -> None:
    """A host without a path is accepted; for another server the message names the usual path."""
    context = AgentContext(workspace=str(tmp_path), model="scripted")
    with ScriptedServer([Calls([("list_directory", "{}")]), FINE]) as server:
        host = server.base_url.removesuffix("/v1")
        outcome = run_task(TASK, context.model_copy(update={"base_url": host})).outcome
    assert (outcome.answer, server.paths) == ("All is well.", ["/chat/completions", *["/v1/chat/completions"] * 2])
    with ScriptedServer([Status(200, {"error": "Unexpected endpoint or method."})] * 3) as server:
        host = server.base_url.removesuffix("/v1")
        outcome = run_task(TASK, context.model_copy(update={"base_url": host})).outcome
    assert f"Most servers answer below /v1: try {host}/v1." in outcome.message
    with ScriptedServer([FINE]) as server:
        update = {"base_url": server.base_url, "model": None}
        outcome = run_task(TASK, context.model_copy(update=update)).outcome
    assert (outcome.answer, server.requests[0]["model"]) == ("All is well.", "scripted")
    assert waits == [0.5, 1.0]


# --- Other models


@slow
def test_next_model_answers_after_all_retries(tmp_path: Path, waits: list[float]) -> None:
    ended = run_twice(tmp_path, waits, [Status(500)] * 3, [READ, FINE])
    # each call begins with the run's own model, whose circuit is open after five failures: its last try is not sent
    assert end_of(ended) == ("FINISHED", "All is well.", 3 + 1 + 2 + 1)
    assert [len(requests) for requests in ended.requests] == [5, 2]
    assert ended.requests[1][0] == ended.requests[0][0]
    assert [row["model"] for row in ended.usage] == [*["model-1"] * 3, "model-2", *["model-1"] * 3, "model-2"]
    assert ended.waits == [0.5, 1.0, 0.5, 1.0]


def test_refused_key_is_named_and_never_shown(tmp_path: Path, waits: list[float]) -> None:
    quoted = {"error": {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}}
    ended = run_twice(tmp_path, waits, [Status(401, quoted)])
    assert (ended.outcome.reason, ended.waits, len(ended.requests[0])) == ("provider_failed", [], 1)
    assert "check OPENAI_API_KEY" in ended.outcome.message


@slow
def test_refused_key_moves_on_to_the_next_model(tmp_path: Path, waits: list[float]) -> None:
    for status in (401, 402, 403):
        ended = run_twice(tmp_path, waits, [Status(status)], [FINE])
        assert (end_of(ended), ended.waits) == (("FINISHED", "All is well.", 2), []), status
        assert [row["input_tokens"] for row in ended.usage] == [0, 100]


def test_error_names_the_key_variable_of_the_fallbacks_host(tmp_path: Path, waits: list[float]) -> None:
    ended = run_twice(tmp_path, waits, [Status(404)], [Status(403)])
    assert "check MENDGRAPH_API_KEY_127_0_0_1" in ended.outcome.message
    assert ended.outcome.diagnostics == ("model-1: model unavailable; model-2 at 127.0.0.1: authentication",)


def test_bad_request_is_sent_to_no_other_model(tmp_path: Path, waits: list[float]) -> None:
    ended = run_twice(tmp_path, waits, [Status(400)], [FINE])
    assert (ended.outcome.reason, [len(requests) for requests in ended.requests]) == ("provider_failed", [1, 0])


# --- A window that is too small


@slow
def test_second_context_overflow_ends_the_run(tmp_path: Path, waits: list[float]) -> None:
    on = [Calls([("read_file", f'{{"path":"big.txt","start_line":{at},"limit":120}}')]) for at in (121, 241)]
    ended = run_twice(tmp_path, waits, [READ, *on, *[Status(400, OVERFLOW)] * 5])
    assert (ended.outcome.kind, ended.outcome.reason) == ("SYSTEM_ERROR", "context_overflow")
    assert (len(ended.requests[0]), len(ended.compactions)) == (5, 1)

    nothing_to_clear = run_twice(tmp_path, waits, [Status(400, OVERFLOW)] * 5)
    assert nothing_to_clear.outcome.reason == "context_overflow"
    assert (len(nothing_to_clear.requests[0]), nothing_to_clear.compactions) == (1, [])
    assert "nothing more can be left out" in nothing_to_clear.outcome.message
    assert "longer than the model's window" in nothing_to_clear.outcome.diagnostics[-1]


def test_summary_of_a_compaction_is_charged_and_reported_like_any_call(tmp_path: Path, waits: list[float]) -> None:
    """The model's own messages are so long that clearing results cannot make room."""
    summary = json.dumps({"done": ["read a part"], "findings": ["only words"], "left": [], "files": ["big.txt"]})

    def answer(request: JsonMap) -> Reply:
        messages = request["messages"]
        if messages[0]["content"].startswith("You sum up the first part"):
            return Say(summary, usage=(500, 40))
        place = sum("start_line" in json.dumps(message.get("tool_calls", "")) for message in messages)
        if "only words" in json.dumps(messages):
            return FINE
        call = json.dumps({"path": "big.txt", "start_line": place + 1, "limit": 1})
        return Calls([("read_file", call)], text="I look at it once more. " * 60)

    ended = run_twice(
        tmp_path, waits, [answer] * 30, window_tokens=6_000, max_output_tokens_per_call=300, max_calls_per_turn=30
    )
    assert end_of(ended)[:2] == ("FINISHED", "All is well.")
    assert "summary" in [row["purpose"] for row in ended.usage]
    assert ended.outcome.usage["total_calls"] == len(ended.usage) == len(ended.requests[0])
    assert ended.outcome.usage["total_input_tokens"] == sum(row["input_tokens"] for row in ended.usage)
    assert ended.outcome.usage["total_output_tokens"] == sum(row["output_tokens"] for row in ended.usage)
    assert "summarised" in [compaction["kind"] for compaction in ended.compactions]


# --- Unusable replies

KINDS: tuple[tuple[Reply, str, str], ...] = (
    (Refuse("I will not."), "SYSTEM_ERROR", "refused"),
    (Filtered("All"), "SYSTEM_ERROR", "refused"),
    (Think("Let me see."), "SYSTEM_ERROR", "empty_reply"),
    (Say(""), "SYSTEM_ERROR", "empty_reply"),
    (Cut("All is"), "SYSTEM_ERROR", "healing_exhausted"),
    (Think("Let me see.", "All is well."), "FINISHED", "answered"),
    (Say("All is well.", usage=NO_USAGE), "FINISHED", "answered"),
)


@slow
def test_each_kind_of_unusable_reply_has_its_own_stop_reason(tmp_path: Path, waits: list[float]) -> None:
    for reply, kind, reason in KINDS:
        ended = run_twice(tmp_path, waits, [reply] * 10)
        assert (ended.outcome.kind, ended.outcome.reason, ended.waits) == (kind, reason, []), reply
        assert ended.outcome.usage["total_input_tokens"] == sum(row["input_tokens"] for row in ended.usage) > 0
        cut = "The model's reply was still cut at the token limit after 3 retries."
        assert (ended.outcome.message == cut) is (reason == "healing_exhausted")


PARTS: tuple[tuple[JsonMap, tuple[int, int, int]], ...] = (
    ({"cached_tokens": 60, "cache_write_tokens": 30}, (60, 30, 0)),
    ({"cached_tokens": 150}, (100, 0, 0)),
    ({"cache_write_tokens": 150}, (0, 100, 0)),
    ({"cached_tokens": 60, "cache_write_tokens": 80}, (60, 40, 0)),
    ({"cached_tokens": 100, "cache_write_tokens": 100}, (100, 0, 0)),
    ({"cached_tokens": -5, "cache_write_tokens": -5, "reasoning_tokens": -5}, (0, 0, 0)),
    ({"reasoning_tokens": 50}, (0, 0, 10)),
)


@slow
def test_token_details_never_exceed_the_totals(tmp_path: Path, waits: list[float]) -> None:
    prices = {"usd_per_million_input": 10.0, "usd_per_million_output": 20.0}
    prices |= {"usd_per_million_cached_input": 1.0, "usd_per_million_cache_write": 100.0}
    for counts, (cached, written, reasoning) in PARTS:
        of_output = {name: counts[name] for name in counts.keys() & {"reasoning_tokens"}}
        of_input = {name: count for name, count in counts.items() if name not in of_output}
        reported_usage: JsonMap = {"prompt_tokens": 100, "completion_tokens": 10}
        reported_usage |= {"prompt_tokens_details": of_input, "completion_tokens_details": of_output}
        usage = run_twice(tmp_path, waits, [Say("All is well.", usage=reported_usage)], **prices).outcome.usage
        parts = usage["cached_tokens"], usage["cache_write_tokens"], usage["reasoning_tokens"]
        assert parts == (cached, written, reasoning), counts
        cost = ((100 - cached - written) * 10.0 + cached * 1.0 + written * 100.0 + 10 * 20.0) / 1_000_000
        assert usage["cost_usd"] == pytest.approx(cost)
