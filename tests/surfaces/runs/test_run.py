"""Runs from Python: one task to its outcome, as events, and with a function that approves calls."""

import asyncio
from contextlib import aclosing, closing, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from mendgraph import (
    AgentContext,
    ApprovalAnswer,
    ApprovalRequest,
    Approve,
    Asked,
    Ended,
    Event,
    RunResult,
    RunState,
    Session,
    Text,
    arun_task,
    astream_task,
    list_runs,
    open_run,
    resume_run,
    run_task,
    stream_task,
)
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import Chunked, ScriptedServer, Stall
from tests.doubles.tool_use import Use, in_protocol, message_of, use
from tests.extent import LEVEL, sampled, slow
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.vocabulary import Protocol
from tests.workspace_files import changed_files, write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, CALC)
    return tmp_path


def native_model(*replies: Use | Say) -> ScriptedModel:
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


def context(folder: Path, **more: Any) -> AgentContext:
    """A run whose only calls are the model's."""
    return AgentContext(workspace=str(folder), evidence=False, read_ahead=False, **more)


# --- Fields of the context as keyword arguments


def test_fields_of_the_context_are_keyword_arguments(folder: Path) -> None:
    fields = {"workspace": folder, "max_calls_per_turn": 3, "evidence": False, "read_ahead": False}
    result = run_task(TASK, AgentContext(mode="read-only"), model=native_model(use(READ), DONE), **fields)  # type: ignore[arg-type]
    assert result.ok
    stored = list_runs(folder)
    assert isinstance(stored, tuple)
    context = stored[0].context
    assert (context.workspace, context.max_calls_per_turn, context.mode) == (str(folder), 3, "read-only")
    with pytest.raises(ValueError, match="max_calls_per_turn"):
        run_task(TASK, workspace=folder, max_calls_per_turn=0)
    with pytest.raises(TypeError, match="max_callz: there is no such option"):
        run_task(TASK, workspace=folder, max_callz=1)  # type: ignore[call-arg]


# --- Approvals


def approve_first(request: ApprovalRequest) -> ApprovalAnswer:
    """Approves the first call and rejects what else was asked, with a reason."""
    first, *others = (str(call["index"]) for call in request["calls"])
    answer = ApprovalAnswer(decisions={first: {"action": "approve"}})
    for other in others:
        answer["decisions"][other] = {"action": "reject", "reason": "one is enough"}
    return answer


async def approve_first_later(request: ApprovalRequest) -> ApprovalAnswer:
    await asyncio.sleep(0)
    return approve_first(request)


NEW = ("write_file", {"path": "new.py", "content": "new = 1\n"})


@slow
@pytest.mark.parametrize(
    ("way", "approve"),
    [
        ("run", approve_first),
        ("arun", approve_first_later),
        ("stream", approve_first_later),
        ("astream", approve_first),
    ],
)
def test_calls_are_approved_one_by_one(folder: Path, way: str, approve: Approve) -> None:
    model = native_model(use(READ), use(EDIT, NEW), DONE)
    settings: Any = {"context": context(folder, mode="ask"), "approve": approve, "model": model}

    async def events() -> list[Event]:
        return [event async for event in astream_task(TASK, **settings)]

    if way == "run":
        outcome = run_task(TASK, **settings).outcome
    elif way == "arun":
        outcome = asyncio.run(arun_task(TASK, **settings)).outcome
    else:
        told_of = list(stream_task(TASK, **settings)) if way == "stream" else asyncio.run(events())
        assert [type(event) for event in told_of if isinstance(event, Asked | Ended)] == [Asked, Ended]
        assert isinstance(told_of[-1], Ended)
        outcome = told_of[-1].outcome
    assert (outcome.kind, outcome.changed_files) == ("FINISHED", ("calc.py",))
    assert changed_files(folder, CALC) == {"calc.py": MENDED}
    assert "one is enough" in str(model.calls[-1].prompt.messages)


def test_run_whose_approve_function_raises_waits_for_another_answer(folder: Path) -> None:
    def gone(_: ApprovalRequest) -> ApprovalAnswer:
        raise LookupError("nobody at the door")

    with pytest.raises(LookupError, match="nobody at the door"):
        run_task(TASK, context(folder, mode="ask"), approve=gone, model=native_model(use(READ), use(EDIT)))
    session = open_run(workspace=str(folder), model=native_model(DONE))
    assert isinstance(session, Session)
    with session:
        assert isinstance(session.work_on("approve"), Ended)
    assert changed_files(folder, CALC) == {"calc.py": MENDED}


# --- Event by event


def leaves_early(folder: Path, after: int, way: str, model: ScriptedModel) -> bool:
    """Whether the run was left after so many events, by a `break`, by an error or in an event loop."""

    async def leave() -> bool:
        async with aclosing(astream_task(TASK, context(folder), model=model)) as events:
            seen = 0
            async for _ in events:
                seen += 1
                if seen == after:
                    return True
        return False

    if way == "async":
        return asyncio.run(leave())
    with suppress(LookupError), closing(stream_task(TASK, context(folder), model=model)) as events:
        for seen, _ in enumerate(events, start=1):
            if seen == after and way == "raise":
                raise LookupError
            if seen == after:
                return True
        return False
    return True


@sampled
def test_run_abandoned_after_any_event_continues_from_there(tmp_path: Path) -> None:
    for after, way in zip(range(1, 100, (11, 5, 1)[LEVEL]), cycle(("break", "async", "raise")), strict=False):
        folder = tmp_path / str(after)
        write_files(folder, CALC)
        if not leaves_early(folder, after, way, native_model(use(READ), use(EDIT), DONE)):
            break
        listed = list_runs(str(folder))
        assert isinstance(listed, tuple)
        assert changed_files(folder, CALC) in ({}, {"calc.py": MENDED})
        if listed[0].standing is RunState.FINISHED:
            continue
        edited = bool(changed_files(folder, CALC))
        result = resume_run(
            workspace=str(folder), model=native_model(*(() if edited else (use(READ), use(EDIT))), DONE)
        )
        assert isinstance(result, RunResult)
        assert (result.ok, changed_files(folder, CALC)) == (True, {"calc.py": MENDED})
        assert [change.path for change in result.changes] == ["calc.py"]
    assert after > 30


@slow
@pytest.mark.parametrize("way", ["break", "async"])
def test_closing_the_stream_does_not_wait_for_the_model(folder: Path, way: str) -> None:
    """The endpoint stalls forever in the middle of its reply."""

    def settings() -> AgentContext:
        return context(folder, base_url=server.base_url, model="m")

    async def leave() -> None:
        async with aclosing(astream_task(TASK, settings())) as events:
            async for event in events:
                if isinstance(event, Text):
                    return

    stalled = Stall(3, Chunked(Say("I will look at it. " * 5), 10))
    with ScriptedServer(
        [stalled, *(in_protocol(reply, Protocol.NATIVE) for reply in (use(READ), use(EDIT), DONE))]
    ) as server:
        if way == "async":
            asyncio.run(leave())
        else:
            for event in stream_task(TASK, settings()):
                if isinstance(event, Text):
                    break
        result = resume_run(workspace=str(folder))
    assert isinstance(result, RunResult)
    assert (result.ok, result.usage["total_calls"]) == (True, 4)
    assert changed_files(folder, CALC) == {"calc.py": MENDED}
