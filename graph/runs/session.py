"""A session, a thread of turns: what runs from Python and from the terminal are made of.

It keeps its thread in the workspace's database or in a checkpointer of the user's, and closes what it opened.
"""

import asyncio
import hashlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Self, Unpack, cast
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine import run_records
from mendgraph.graph.machine.build import BuildArguments, NodeTimeoutError, SessionOptions, build_machine, checked
from mendgraph.graph.machine.routes import recursion_limit
from mendgraph.graph.machine.state import PrunedHistoryError, serializer
from mendgraph.graph.machine.workspace import decide_open_changes, kept_content
from mendgraph.graph.persistence.store import Store, memory_store
from mendgraph.graph.runs.events import Asked, Ended, Event, EventReader
from mendgraph.graph.runs.run_result import RunResult, net_diffs
from mendgraph.nodes.call_model.ledger import Spending, usage_report
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import run_folder, workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock, WorkspaceLock
from mendgraph.nodes.records import (
    FileChange,
    JsonMap,
    LoopRecord,
    Outcome,
    OutcomeKind,
    Plan,
    StopCause,
    StopReason,
    ToolError,
    ToolErrorCode,
)
from mendgraph.nodes.stop.report import stopped


class Begun(NamedTuple):
    """A turn that may run. `request_id` is the id of the message that began it, the same whenever it is sent again.

    `undone` says that a person has taken back since what the turn changed.
    """

    request: str
    request_id: str
    undone: bool = False


class TurnStart(NamedTuple):
    """What a turn gives to the machine, and from which checkpoint on; `ended` says that there is nothing to do."""

    request: Any = None
    config: RunnableConfig | None = None
    ended: Outcome | None = None


Begin = Callable[[], TurnStart | StopCause]
"""How a turn begins, or why it cannot."""

AT_WORK = StopCause(
    reason=StopReason.WORKSPACE_BUSY,
    message="This session is at work on another request: wait for its end, or use another session.",
)
"""Why a session cannot begin a second turn."""
_FORGOTTEN = "This run was removed meanwhile (`mendgraph runs prune`), and its history with it: begin a new one."


class Session:
    """A thread of turns. Use it as a context manager: it closes the connections that it opened."""

    def __init__(self, context: AgentContext | None = None, **options: Unpack[SessionOptions]) -> None:
        """Nothing runs and nothing is connected until the first request. `thread_id` goes on with a known thread.

        The thread is kept in the workspace's own database, unless a `checkpointer` is given. `durability` says when a
        step is on the disk: "sync" (the default) before the next one begins, so that a kill loses nothing; "async"
        while the next one runs, so that a kill may lose the last step and its model call; "exit" when the turn ends, so
        that a kill loses the turn. Changes of files are recorded before they happen, whatever is chosen. With
        `kept_permissions` a person may allow calls in this workspace for good ("approve_always"), which is kept in the
        user's settings and taken up from there. The other options are those of `build_graph`.
        """
        thread_id = options.pop("thread_id", None)
        self._durability = options.pop("durability", "sync")
        kept_permissions = options.pop("kept_permissions", False)
        arguments: dict[str, Any] = {**options}
        build_arguments = checked(BuildArguments(context=context, **arguments))
        checkpointer = build_arguments.checkpointer
        if isinstance(checkpointer, bool):
            raise TypeError("checkpointer: give a saver, or none to keep the thread in the workspace's own database.")
        context = context or AgentContext()
        if isinstance(build_arguments.model, str):  # which is kept with the run, so that a resume asks it again
            context = context.model_copy(update={"model": build_arguments.model})
            build_arguments = build_arguments._replace(model=None)
        context = context.model_copy(update=build_arguments.fields())
        self.thread_id = str(thread_id) if thread_id else uuid4().hex
        self._reader = EventReader()
        root = check_workspace(context.workspace)
        self._root = None if isinstance(root, ToolError) else root
        self.context = context if self._root is None else context.model_copy(update={"workspace": self._root})
        self._at_work = False  # nor is it while a person is asked
        self._beginning = threading.Lock()
        self._turns = 0
        self._locks: list[RunLock | WorkspaceLock] = []
        self._failure: StoreError | None = None
        self._store: Store | None = None
        kept: Any = checkpointer
        if checkpointer is None and self._root is not None:
            try:
                store = Store(self._root, build_arguments.secrets)
                self._store, kept = store, store.saver  # which opens it
            except StoreError as error:
                self._failure = error
        self._memory = None
        if context.memory and build_arguments.store is None and self._root is not None:
            try:
                self._memory = memory_store(self._root)
                build_arguments = build_arguments._replace(store=self._memory)
            except StoreError as error:
                self._failure = error
        self._last: Event | None = None
        self._in_node = False
        self._failed: Outcome | None = None
        self._result: RunResult | None = None
        self._values: Mapping[str, Any] = {}
        self._stop = StopRequest()
        saver = InMemorySaver(serde=serializer(build_arguments.secrets)) if kept is None else kept
        build_arguments = build_arguments._replace(checkpointer=saver, context=None)
        self._machine, self._nodes = build_machine(
            **build_arguments._asdict(), stop=self._stop, kept_permissions=kept_permissions
        )
        self._nodes.servers_outlive_turns = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def aresume(self, *, anew: bool = False) -> AsyncGenerator[Event, None]:
        """The same without blocking the event loop; with `anew` its task goes on in a new turn under this context."""
        return self._astream(partial(self._begin_again, anew=anew))

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

    def file_content(self, path: str, sha256: str) -> bytes | None:
        """The bytes with this hash that a file of the workspace holds, or held before a change of this session.

        None where they are not known, as for the hash "" of a file that was not there.
        """
        now = self._nodes.read_file(self.context, path)
        same = now is not None and hashlib.sha256(now).hexdigest() == sha256
        if same or self._root is None:
            return now if same else None

        return kept_content(self._root, sha256)

    def usage(self) -> JsonMap:
        """What the thread has used so far, a turn that was cut off included; the keys are those of an outcome.

        Raises:
            StoreError: the thread cannot be read.
        """
        spending = self._machine.get_state(self._config()).values.get("spending") or Spending()
        return usage_report(spending)

    def close(self) -> None:
        """Close the connections of sync calls, the MCP servers and the store."""
        self._nodes.close()
        self._close_store()

    async def aclose(self) -> None:
        """Close the connections of this event loop, those of sync calls, the MCP servers and the store."""
        await self._nodes.aclose()
        await asyncio.to_thread(self._close_store)

    # --- One turn

    def _begin(self, request: str) -> TurnStart | StopCause:
        if not isinstance(request, str):
            raise TypeError(f"request: {type(request).__name__} is no text: say in words what is wanted.")
        if isinstance(started := self._take(self.scrub(request)), StopCause):
            return started

        self._reader = EventReader()
        if started.request_id:
            first = started.request_id == f"{run_records.REQUEST_ID}1"
            self._nodes.mark_turn(self.context, self.thread_id, first=first)

        return asking(started)

    def _answered(self, decisions: Mapping[str, Any] | str) -> TurnStart | StopCause:
        """Somebody may have asked in another process, which is gone: then the workspace has to be taken again."""
        if isinstance(started := self._take(), StopCause):
            return started

        state = self._machine.get_state(self._config())
        if not state.interrupts:
            self._release()
            return _impossible("This thread is not waiting for an approval: resume it, or send a new request.")

        if self._began_elsewhere(state.values):
            self._release()
            return _impossible("The workspace has moved since the approval was requested: resume the run.")

        self._reader = EventReader.taking_up(state.values)
        unclear = decisions is None or (isinstance(decisions, Mapping) and "decisions" not in decisions)
        return TurnStart(Command(resume=str(decisions) if unclear else decisions))  # LangGraph would fail on it

    def _begin_again(self, *, anew: bool = False) -> TurnStart | StopCause:
        """Take the turn up again, as its own state says: see `ResumePlan`."""
        if isinstance(started := self._take(), StopCause):
            return started

        values = self._machine.get_state(self._config()).values
        if not values and not started.request:
            self._release()
            return _impossible("There is nothing to go on with: this thread has no request yet. Send it one.")

        self._reader = EventReader.taking_up(values)
        anew = anew or self._began_elsewhere(values)

        match run_records.resume_plan(values, started.request_id, undone=started.undone, anew=anew):
            case run_records.ResumePlan.NOTHING:
                return TurnStart(ended=values["outcome"])
            case run_records.ResumePlan.NEW_TURN:
                task = started.request or next(
                    (message.text for message in reversed(run_records.requests_of(values))), ""
                )
                self._at_work = False
                restored = values.get("outcome") is not None and bool(values["outcome"].restored)

                return self._begin(run_records.resuming_request(task, undone=started.undone or restored))
            case run_records.ResumePlan.GO_BACK:
                start = TurnStart(config=self._before_the_stop(values))
            case run_records.ResumePlan.GO_ON:
                start = TurnStart()
            case run_records.ResumePlan.SEND_AGAIN:
                start = asking(started)

        if self._store is not None:
            self._store.take_up(self.thread_id)

        return start

    def _began_elsewhere(self, values: Mapping[str, Any]) -> bool:
        """Whether the turn began in another folder, which is not locked by this session and must not be changed."""
        context = values.get("context")
        return context is not None and self._root is not None and context.workspace != self._root

    def _before_the_stop(self, values: Mapping[str, Any]) -> RunnableConfig | None:
        """The checkpoint before the model call that did not happen; what has been spent since stays spent."""
        history = self._machine.get_state_history(self._config())
        snapshot_at = next((snapshot for snapshot in history if snapshot.next == run_records.CALLING), None)
        if snapshot_at is None:
            return None
        return self._machine.update_state(
            snapshot_at.config, {"spending": values["spending"], "pending_call": None}, as_node=run_records.TO_THE_CALL
        )

    def _opened(self, begin: Begin, *, new: bool) -> TurnStart | Ended:
        """How this turn starts, or its end, where there is nothing to do or nothing can be done.

        What somebody asked of the turn before does not concern a new one; one that is at work is left alone.
        """
        if self._at_work:
            return Ended(self._stopped(AT_WORK))
        if new:
            self._stop.clear()
        self._last = None
        self._failed = None
        self._result = None
        self._values = {}
        try:
            start = begin()
        except StoreError as error:
            self._release()
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
            self._last = self._gives_up(given_up(error))
            over = True
        finally:
            if over and isinstance(self._last, Asked):
                self._at_work = False
            elif not (over and isinstance(self._last, Ended)):
                self._release()

    def _left(self, parts: Iterator[Any]) -> None:
        """Who leaves early drops the model call at work, and waits for a step at work; nothing begins any more.

        LangGraph 1.2 may shut its threads down before a node has handed over its result, a reply that is paid for: so
        the parts are read until the node at work has ended, and those of the terminal, where it ended the run.
        """
        self._stop.ask("by the program, which closed the stream", in_step=False)
        ending = False
        with suppress(StoreError):
            for mode, part in parts if self._in_node else ():
                deque(self._read(mode, part), maxlen=0)
                if mode == "updates":
                    ending = ending or any(
                        isinstance(values, Mapping) and values.get("stop") for values in part.values()
                    )
                    if not ending:
                        break
            if isinstance(self._last, Ended):
                self._finish(self._last.outcome)

    def _read(self, mode: str, part: Any) -> Iterator[Event]:
        """The events of one part but `Ended`, which is told once it is on the disk. The state is kept as it comes."""
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
            self._release()
            raise

    def _finish(self, outcome: Outcome) -> None:
        """Write down how the turn ended, keep what came of it, and leave the workspace."""
        with suppress(StoreError):  # the checkpoint tells it as well
            record = self._record()
            if self._store is not None and record is not None and record.state == "working":
                self._store.end_turn(self.thread_id, outcome)
                self._store.retain(self.context)
        self._release()
        with suppress(StoreError):
            ended = self._failed is None and self._values.get("outcome") == outcome
            if ended:
                self._result = self._result_of(self._values)
            else:
                self._result = self._read_result()
        self._values = {}

    def _gives_up(self, cause: StopCause) -> Ended:
        self._failed = self._stopped(cause)
        return Ended(self._failed)

    def _stopped(self, cause: StopCause) -> Outcome:
        usage = usage_report(Spending())
        return stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), self._reader.changes, usage, LoopRecord())

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
            structured=values.get("structured_response"),
            thread_id=self.thread_id,
            diffs=tuple(map(self.scrub, net_diffs(changes, self.file_content))),
        )

    def _arguments(self, start: TurnStart, watched: bool = True) -> dict[str, Any]:
        return {
            "input": start.request,
            "config": start.config or self._config(),
            "context": self.context,
            "stream_mode": ["custom", "updates", "values"] if watched else ["updates", "values"],
            "durability": self._durability,
        }

    def _config(self) -> RunnableConfig:
        context = self.context
        limit = recursion_limit(context.max_calls_per_turn, context.provider_retries, len(context.fallback_models))
        return {"configurable": {"thread_id": self.thread_id}, "recursion_limit": limit}

    # --- What makes a turn last: the workspace is its own while it works, and each turn is written down

    def _take(self, request: str | None = None) -> Begun | StopCause:
        """Take the workspace and write the turn down, or say why it cannot begin; without a request the last one."""
        if self._failure is not None:
            return given_up(self._failure)
        with self._beginning:
            if self._at_work:
                return AT_WORK
            locks = self._lock_all()
            self._at_work = locks is None
        if locks is not None:
            return locks
        try:
            started = self._last_turn() if request is None else self._new_turn(request)
        except StoreError as error:
            started = given_up(error)
        if isinstance(started, StopCause):
            self._release()
        return started

    def _new_turn(self, request: str) -> Begun | StopCause:
        if self._store is None:
            return Begun(request, "")
        if self._turns and self._record() is None:
            return StopCause(reason=StopReason.STORE_FAILED, message=_FORGOTTEN)
        self._turns = self._store.begin_turn(self.thread_id, request, self.context, self._durability)
        return Begun(request, f"{run_records.REQUEST_ID}{self._turns}")

    def _last_turn(self) -> Begun:
        record = self._record()
        if record is None:
            return Begun("", "")
        self._turns = record.turns
        return Begun(
            record.request, f"{run_records.REQUEST_ID}{record.turns}", undone=record.reason == run_records.UNDONE
        )

    def _record(self) -> run_records.RunRecord | None:
        stored_run = self._store.run(self.thread_id) if self._store else None
        if isinstance(stored_run, run_records.RunRecord):
            return stored_run
        return None

    def _release(self) -> None:
        """Leave the workspace to others."""
        self._at_work = False
        if self._store is not None:
            with suppress(StoreError):  # a step that is not stored is done once more
                self._store.saver.flush()
        if self._root is not None:
            self._nodes.records.release(self._root)
        while self._locks:
            self._locks.pop().release()

    def _close_store(self) -> None:
        self._release()
        if self._store is not None:
            self._store.close()
        if self._memory is not None:
            self._memory.conn.close()

    def _lock_all(self) -> StopCause | None:
        """Lock the workspace and the thread, and decide what the last run there left open. None: it is ours."""
        if self._locks or self._root is None:
            return None  # ours already, or nothing that could be taken: the machine says so
        if self._store is None and isinstance(workspace_folder(self._root), ToolError):
            return None  # it may look at files; each change will be refused, with the reason
        for folder, kind, what in (
            (workspace_folder(self._root), WorkspaceLock, "in this workspace"),
            (run_folder(self.thread_id), RunLock, f"on the run {self.thread_id}"),
        ):
            problem = folder
            if isinstance(folder, str):
                lock = kind(folder, what=what)
                problem = lock.acquire(Owner(self.thread_id)) or ""
                if not problem:
                    self._locks.append(lock)
            if isinstance(problem, ToolError):
                self._release()
                busy = problem.code is ToolErrorCode.UNAVAILABLE
                reason = StopReason.WORKSPACE_BUSY if busy else StopReason.STORE_FAILED
                return StopCause(reason=reason, message=problem.message)
        self._nodes.records.hold(self._root)
        decided = decide_open_changes(Journal(workspace_folder_path(self._root)), self._root)
        if isinstance(decided, ToolError):
            self._release()
            return StopCause(reason=StopReason.WORKSPACE_FAILED, message=decided.message)
        return None


def given_up(error: StoreError | NodeTimeoutError) -> StopCause:
    """Why a turn ends whose store or history cannot be used, or in which a node did not end in time."""
    if isinstance(error, PrunedHistoryError):
        reason = StopReason.HISTORY_PRUNED
    elif isinstance(error, StoreError):
        reason = StopReason.STORE_FAILED
    else:
        reason = StopReason.WALL_CLOCK
    return StopCause(reason=reason, message=str(error))


def asking(begun: Begun) -> TurnStart:
    """A request. The same one has the same id, so that sending it again adds nothing."""
    return TurnStart({"messages": [HumanMessage(begun.request, id=begun.request_id or None)]})


def _impossible(message: str) -> StopCause:
    return StopCause(reason=StopReason.INVALID_REQUEST, message=message)
