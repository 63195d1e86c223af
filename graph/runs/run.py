"""Run tasks from Python: one task to its outcome, or event by event, with a person or a program that approves calls.

A session, a thread of turns, is what runs from Python and from the terminal are made of. It keeps its thread in the
workspace's database or in a checkpointer of the user's, and closes what it opened.
"""

import asyncio
import hashlib
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager, suppress
from functools import partial
from typing import Any, Self, Unpack, cast
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.bound_nodes import StopRequest
from mendgraph.graph.machine.build import BuildArguments, NodeTimeoutError, SessionOptions, build_machine, checked
from mendgraph.graph.machine.routes import recursion_limit
from mendgraph.graph.machine.run_records import REQUEST_ID, resuming_request
from mendgraph.graph.runs.events import Asked, Ended, Event, EventReader, RunResult, net_diffs
from mendgraph.graph.runs.run_keeper import (
    AT_WORK,
    CALLING,
    TO_THE_CALL,
    ResumePlan,
    RunKeeper,
    TurnStart,
    asking,
    given_up,
    requests_of,
    resume_plan,
)
from mendgraph.nodes.call_model.ledger import Spending, usage_report
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.guard.approvals import Action, ApprovalAnswer, ApprovalRequest
from mendgraph.nodes.records import FileChange, JsonMap, Outcome, OutcomeKind, Plan, StopCause, StopReason
from mendgraph.nodes.stop.report import stopped

__all__ = ["Approve", "RunResult", "Session", "arun_task", "astream_task", "run_task", "stream_task"]

Begin = Callable[[], TurnStart | StopCause]
"""How a turn begins, or why it cannot."""


class Session:
    """A thread of turns. Use it as a context manager: it closes the connections that it opened."""

    def __init__(self, context: AgentContext | None = None, **options: Unpack[SessionOptions]) -> None:
        """Nothing runs and nothing is connected until the first request. `thread_id` goes on with a known thread.

        The thread is kept in the workspace's own database, unless a `checkpointer` is given. `durability` says when a
        step is on the disk: "sync" (the default) before the next one begins, so that a kill loses nothing; "async"
        while the next one runs, so that a kill may lose the last step and its model call; "exit" when the turn ends, so
        that a kill loses the turn. Changes of files are recorded before they happen, whatever is chosen. The other
        options are those of `build_graph`.
        """
        thread_id, self._durability = options.pop("thread_id", None), options.pop("durability", "sync")
        arguments: dict[str, Any] = {**options}
        given = checked(BuildArguments(context=context, **arguments))
        checkpointer = given.checkpointer
        if isinstance(checkpointer, bool):
            raise TypeError("checkpointer: give a saver, or none to keep the thread in the workspace's own database.")
        context = context or AgentContext()
        if isinstance(given.model, str):  # which is kept with the run, so that a resume asks it again
            context, given = context.model_copy(update={"model": given.model}), given._replace(model=None)
        self.thread_id = str(thread_id) if thread_id else uuid4().hex
        self._reader = EventReader()
        self._keeper = RunKeeper(
            context, self.thread_id, secrets=given.secrets, durability=self._durability, checkpointer=checkpointer
        )
        self.context = self._keeper.context
        self._last: Event | None = None
        self._in_node = False
        self._failed: Outcome | None = None
        self._result: RunResult | None = None
        self._values: Mapping[str, Any] = {}
        self._stop = StopRequest()
        given = given._replace(checkpointer=self._keeper.saver, context=None)
        self._machine, self._nodes = build_machine(**given._asdict(), stop=self._stop)

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close what was opened."""
        self.close()

    def stream(self, request: str) -> Generator[Event, None, None]:
        """Work on one request; the last event is `Ended`, or `Asked` when a person has to decide.

        Closing it early stops the run, after the call at work; `astream` and `stream_task` drop a model call at once.
        """
        return self._stream(partial(self._begin, request))

    def work(self, request: str) -> Event:
        """Work on one request that nobody watches: its last event alone, `Ended` or `Asked`, at a lower cost."""
        return deque(self._stream(partial(self._begin, request), watched=False), maxlen=1)[0]

    def answer(self, decisions: Mapping[str, Any] | str) -> Generator[Event, None, None]:
        """Go on after `Asked`, with "approve", "reject", "stop", or decisions call by call."""
        return self._stream(partial(self._answered, decisions), new=False)

    def work_on(self, decisions: Mapping[str, Any] | str) -> Event:
        """Go on after `Asked`, as `answer` does, while nobody watches."""
        return deque(self._stream(partial(self._answered, decisions), new=False, watched=False), maxlen=1)[0]

    def resume(self) -> Generator[Event, None, None]:
        """Go on where the last turn was cut off or stopped; a run that has finished gives its outcome once more."""
        return self._stream(self._begin_again)

    def astream(self, request: str) -> AsyncGenerator[Event, None]:
        """Work on one request without blocking the event loop."""
        return self._astream(partial(self._begin, request))

    def aanswer(self, decisions: Mapping[str, Any] | str) -> AsyncGenerator[Event, None]:
        """Go on after `Asked` without blocking the event loop."""
        return self._astream(partial(self._answered, decisions), new=False)

    def aresume(self) -> AsyncGenerator[Event, None]:
        """Go on where the last turn was cut off or stopped, without blocking the event loop."""
        return self._astream(self._begin_again)

    def stop(self, reason: str = "by the program", *, in_step: bool = True) -> None:
        """Let the turn at work end early; any thread and any signal handler may ask. `reason` says who did.

        A model call is dropped, a tool that runs is waited for, and nothing begins after it. The outcome says
        `cancelled`, and `resume` goes on from there; calls that had not begun are told to the model as cancelled, or
        without `in_step` are run first: who goes on then finds the step whole.
        """
        self._stop.ask(reason, in_step=in_step)

    def scrub(self, text: str) -> str:
        """The text without the secrets that this session knows of."""
        return self._nodes.scrub(text)

    def result(self) -> RunResult:
        """The thread as it stands after a run that ended; also after `close`."""
        return self._result or self._read_result()

    def usage(self) -> JsonMap:
        """What the thread has used so far, a turn that was cut off included; the keys are those of an outcome.

        Raises:
            StoreError: the thread cannot be read.
        """
        spending = self._machine.get_state(self._config()).values.get("spending") or Spending()
        return usage_report(spending)

    def close(self) -> None:
        """Close the connections of sync calls, and the store."""
        self._nodes.close()
        self._keeper.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, those of sync calls, and the store."""
        await self._nodes.aclose()
        await asyncio.to_thread(self._keeper.close)

    # --- One turn

    def _begin(self, request: str) -> TurnStart | StopCause:
        if not isinstance(request, str):
            raise TypeError(f"request: {type(request).__name__} is no text: say in words what is wanted.")
        begun = self._keeper.begin(self._nodes.records, self.scrub(request))
        if isinstance(begun, StopCause):
            return begun
        self._reader = EventReader()
        if begun.request_id:
            first = begun.request_id == f"{REQUEST_ID}1"
            self._nodes.mark_turn(self.context, self.thread_id, first=first)
        return asking(begun)

    def _answered(self, decisions: Mapping[str, Any] | str) -> TurnStart | StopCause:
        """Somebody may have asked in another process, which is gone: then the workspace has to be taken again."""
        begun = self._keeper.begin(self._nodes.records)
        if isinstance(begun, StopCause):
            return begun
        state = self._machine.get_state(self._config())
        if not state.interrupts:
            self._keeper.release()
            return _impossible("Nobody is asked for anything in this thread: resume it, or send it a request.")
        self._reader = EventReader.taking_up(state.values)
        unclear = decisions is None or (isinstance(decisions, Mapping) and "decisions" not in decisions)
        return TurnStart(Command(resume="reject" if unclear else decisions))  # what LangGraph would fail on, too

    def _begin_again(self) -> TurnStart | StopCause:
        """Take the turn up again, as its own state says; see `mendgraph.graph.runs.run_keeper`."""
        begun = self._keeper.begin(self._nodes.records)
        if isinstance(begun, StopCause):
            return begun
        values = self._machine.get_state(self._config()).values
        if not values and not begun.request:
            self._keeper.release()
            return _impossible("There is nothing to go on with: this thread has no request yet. Send it one.")
        self._reader = EventReader.taking_up(values)
        match resume_plan(values, begun.request_id, undone=begun.undone):
            case ResumePlan.NOTHING:
                return TurnStart(ended=values["outcome"])
            case ResumePlan.NEW_TURN:
                task = begun.request or next((each.text for each in reversed(requests_of(values))), "")
                self._keeper.wait()
                return self._begin(resuming_request(task, undone=begun.undone))
            case ResumePlan.GO_BACK:
                start = TurnStart(config=self._before_the_stop(values))
            case ResumePlan.GO_ON:
                start = TurnStart()
            case ResumePlan.SEND_AGAIN:
                start = asking(begun)
        self._keeper.take_up()
        return start

    def _before_the_stop(self, values: Mapping[str, Any]) -> RunnableConfig | None:
        """The checkpoint before the model call that did not happen; what has been spent since stays spent."""
        history = self._machine.get_state_history(self._config())
        found = next((snapshot for snapshot in history if snapshot.next == CALLING), None)
        if found is None:
            return None
        return self._machine.update_state(found.config, {"spending": values["spending"]}, as_node=TO_THE_CALL)

    def _opened(self, begin: Begin, *, new: bool) -> TurnStart | Ended:
        """How this turn starts, or its end, where there is nothing to do or nothing can be done.

        What somebody asked of the turn before does not concern a new one; one that is at work is left alone.
        """
        if self._keeper.at_work:
            return Ended(self._stopped(AT_WORK))
        if new:
            self._stop.clear()
        self._last, self._failed, self._result, self._values = None, None, None, {}
        try:
            start = begin()
        except StoreError as error:
            self._keeper.release()
            start = given_up(error)
        if isinstance(start, StopCause):
            return self._gives_up(start)
        if start.ended is not None:
            self._finish(start.ended)
            return Ended(start.ended)
        return start

    def _stream(self, begin: Begin, *, new: bool = True, watched: bool = True) -> Generator[Event, None, None]:
        """The turn's events. Where only the last one is wanted, LangGraph runs the nodes in this thread."""
        start = self._opened(begin, new=new)
        if isinstance(start, Ended):
            yield start
            return
        parts = cast("Generator[Any, None, None]", self._machine.stream(**self._arguments(start, watched)))
        with self._working(), closing(parts):
            try:
                for mode, part in parts:
                    yield from self._read(mode, part)
            except GeneratorExit:
                self._left(parts)
                raise
        if isinstance(self._last, Ended):
            self._finish(self._last.outcome)
            yield self._last

    async def _astream(self, begin: Begin, *, new: bool = True) -> AsyncGenerator[Event, None]:
        start = await self._aopened(begin, new=new)
        if isinstance(start, Ended):
            yield start
            return
        parts = cast("AsyncGenerator[Any, None]", self._machine.astream(**self._arguments(start)))
        with self._working():
            async with aclosing(parts):
                async for mode, part in parts:
                    for event in self._read(mode, part):
                        yield event
        if isinstance(self._last, Ended):
            await asyncio.to_thread(self._finish, self._last.outcome)
            yield self._last

    @contextmanager
    def _working(self) -> Iterator[None]:
        """What fails in the turn is its end; the workspace is left where nothing of it is still to be written.

        It is kept while a person is asked, and until the end of a turn that has one is written down.
        """
        over = False
        try:
            yield
            over = True
        except (StoreError, NodeTimeoutError) as error:
            self._last, over = self._gives_up(given_up(error)), True
        finally:
            if over and isinstance(self._last, Asked):
                self._keeper.wait()
            elif not (over and isinstance(self._last, Ended)):
                self._keeper.release()

    def _left(self, parts: Iterator[Any]) -> None:
        """Who leaves early drops the model call at work, and waits for a step at work; nothing begins any more.

        So the parts are read until the node at work has ended, if one is, and those of the terminal too, where it ended
        the run. A stream that is closed sooner waits for the node as well, but may shut its threads down before they
        have handed over what came of it, a reply that is paid for. Source: measured on LangGraph 1.2,
        "cannot schedule new futures after shutdown" in `BackgroundExecutor`.
        """
        self._stop.ask("by the program, which closed the stream", in_step=False)
        ending = False
        with suppress(StoreError):
            for mode, part in parts if self._in_node else ():
                deque(self._read(mode, part), maxlen=0)
                if mode == "updates":
                    ending = ending or any(isinstance(each, Mapping) and each.get("stop") for each in part.values())
                    if not ending:
                        break
            if isinstance(self._last, Ended):
                self._finish(self._last.outcome)

    def _read(self, mode: str, part: Any) -> Iterator[Event]:
        """The events of one part but `Ended`, which is told once it is on the disk.

        A thread's own words are kept, so that nobody reads them back from there. What a node says of its own comes
        while it is at work, its update once it has ended.
        """
        self._in_node = mode == "custom"
        if mode == "values":
            self._values = part
            return
        for event in self._reader.read(mode, part):
            self._last = event
            if not isinstance(event, Ended):
                yield event

    async def _aopened(self, begin: Begin, *, new: bool) -> TurnStart | Ended:
        """The same in a thread. It is waited for even where nobody waits for the turn: what it has locked is freed."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._opened, begin, new=new))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            self._keeper.release()
            raise

    def _finish(self, outcome: Outcome) -> None:
        """Write down how the turn ended, keep what came of it, and leave the workspace."""
        self._keeper.end(outcome)
        with suppress(StoreError):
            ended = self._failed is None and self._values.get("outcome") == outcome
            self._result = self._result_of(self._values) if ended else self._read_result()
        self._values = {}

    def _gives_up(self, cause: StopCause) -> Ended:
        self._failed = self._stopped(cause)
        return Ended(self._failed)

    def _stopped(self, cause: StopCause) -> Outcome:
        usage = usage_report(Spending())
        return stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), self._reader.changes, usage)

    def _read_result(self) -> RunResult:
        if self._failed is not None:
            return self._result_of({"outcome": self._failed, "changes": self._reader.changes})
        return self._result_of(self._machine.get_state(self._config()).values)

    def _result_of(self, values: Mapping[str, Any]) -> RunResult:
        changes: tuple[FileChange, ...] = tuple(values.get("changes", ()))
        return RunResult(
            outcome=values["outcome"],
            messages=tuple(values.get("messages", ())),
            changes=changes,
            plan=values.get("plan") or Plan(),
            thread_id=self.thread_id,
            diffs=tuple(map(self.scrub, net_diffs(changes, self._bytes))),
        )

    def _bytes(self, path: str, sha256: str) -> bytes | None:
        """What a file held: what it holds now, or what the journal kept of it."""
        now = self._nodes.read_file(self.context, path)
        same = now is not None and hashlib.sha256(now).hexdigest() == sha256
        return now if same else self._keeper.kept_bytes(sha256)

    def _arguments(self, start: TurnStart, watched: bool = True) -> dict[str, Any]:
        return {
            "input": start.request,
            "config": start.config or self._config(),
            "context": self.context,
            "stream_mode": ["custom", "updates", "values"] if watched else ["updates", "values"],
            "durability": self._durability,
        }

    def _config(self) -> RunnableConfig:
        limit = recursion_limit(self.context.max_calls_per_turn)
        return {"configurable": {"thread_id": self.thread_id}, "recursion_limit": limit}


def _impossible(message: str) -> StopCause:
    return StopCause(reason=StopReason.INVALID_REQUEST, message=message)


# --- One task

Answer = Action | ApprovalAnswer
"""One word for all calls, such as "approve" or "reject", or a decision for each: see `ApprovalAnswer`."""

Approve = Callable[[ApprovalRequest], Answer | Awaitable[Answer]]
"""Decides on the calls of one reply that need approval, in mode "ask": a function of the request, sync or async."""

_NOBODY: Answer = "nobody"


def run_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> RunResult:
    """Run one task to its outcome.

    Args:
        task: what is wanted, in words.
        context: workspace, model, permissions and limits; by default those of `AgentContext()`.
        approve: answers what needs a person's approval in mode "ask". Without it every such call is refused with the
            code `approval_required`, and the model goes on without it.
        options: those of `Session`: model, tools, rules, roles, secrets, checkpointer, store, thread_id, durability.

    Returns:
        How the run ended, what it answered and changed. A limit, a failing provider, a refused command or a busy
        workspace are outcomes of a run; none of them raises.

    Raises:
        TypeError, ValueError: the options are wrong, such as a tool that is none.
        Exception: what `approve` raises. The run then waits where it asked, and `open_run` goes on with it.
    """
    with Session(context, **options) as session:
        last = session.work(task)
        while isinstance(last, Asked):
            last = session.work_on(_answer(approve, last))
        return session.result()


async def arun_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> RunResult:
    """Run one task to its outcome without blocking the event loop; otherwise as `run_task`.

    A sync `approve` is called in a thread, so that it may wait for a person. A cancelled run changes nothing any more
    and can be resumed.
    """
    session = Session(context, **options)
    try:
        last = await _last_of(session.astream(task))
        while isinstance(last, Asked):
            last = await _last_of(session.aanswer(await _aanswer(approve, last)))
        return await asyncio.to_thread(session.result)
    finally:
        await session.aclose()


def stream_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> Generator[Event, None, None]:
    """Run one task and yield what happens, as the typed events of `mendgraph.graph.runs.events`; `Ended` is last.

    Arguments and failures are those of `run_task`. `Asked` tells what needs approval; `approve` is called when the next
    event is wanted. The run stops when the generator is closed, as a `break` out of a `for` statement does: the model
    call is dropped, a tool that runs is waited for, files are whole, the workspace is free, and `resume_run` goes on
    from there. Nothing runs before the first event is wanted.
    """
    with Session(context, **options) as session:
        events = session.stream(task)
        while True:
            last: Event | None = None
            with closing(events):
                for last in events:
                    yield last
            if not isinstance(last, Asked):
                return
            events = session.answer(_answer(approve, last))


async def astream_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> AsyncGenerator[Event, None]:
    """Run one task and yield what happens, without blocking the event loop; otherwise as `stream_task`.

    Python closes an async generator late. Who may leave before its end writes
    `async with contextlib.aclosing(astream_task(...)) as events`, which stops the run at once.
    """
    session = Session(context, **options)
    try:
        events = session.astream(task)
        while True:
            last: Event | None = None
            async with aclosing(events):
                async for last in events:
                    yield last
            if not isinstance(last, Asked):
                return
            events = session.aanswer(await _aanswer(approve, last))
    finally:
        await session.aclose()


async def _last_of(events: AsyncGenerator[Event, None]) -> Event:
    return [event async for event in events][-1]


def _answer(approve: Approve | None, asked: Asked) -> Answer:
    """What is decided, in this thread. An async function gets a loop of its own, so it fails inside a running one."""
    if approve is None:
        return _NOBODY
    answer = approve(cast("ApprovalRequest", asked.request))
    if not inspect.isawaitable(answer):
        return answer
    waiting = _awaited(answer)
    try:
        return asyncio.run(waiting)
    finally:
        waiting.close()


async def _aanswer(approve: Approve | None, asked: Asked) -> Answer:
    """What is decided; a sync function is called in a thread."""
    if approve is None:
        return _NOBODY
    answer = await asyncio.to_thread(approve, cast("ApprovalRequest", asked.request))
    return await answer if inspect.isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer
