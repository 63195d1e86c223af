"""A session: the turns of one thread, which the workspace's database or a checkpointer of the user keeps."""

import asyncio
import hashlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine import run_records
from mendgraph.graph.machine.bound_nodes import take_added
from mendgraph.graph.machine.build import NodeTimeoutError, build_machine
from mendgraph.graph.machine.options import MachineOptions, SessionOptions, check_options, context_overrides
from mendgraph.graph.machine.routes import limit_of_run
from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.machine.workspace import kept_content
from mendgraph.graph.persistence.store import Store, memory_store
from mendgraph.graph.runs.events import Asked, Compacted, Ended, Event, EventReader
from mendgraph.graph.runs.images import Image, image_blocks, image_notes
from mendgraph.graph.runs.run_result import RunResult, result_of
from mendgraph.graph.runs.turn_input import (
    AT_WORK,
    NO_SUMMARY,
    REMOVED,
    PrepareTurn,
    SessionLocks,
    TurnInput,
    TurnRequest,
    cause_of,
    checkpoint_before_stop,
    compaction_input,
    end_compaction,
    input_of,
    invalid_request,
    is_of_another_workspace,
    request_to_resume,
    storable_answer,
)
from mendgraph.nodes.call_model.ledger import Spending, usage_report
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import JsonMap, LoopRecord, Outcome, OutcomeKind, Plan, StopCause, StopReason, ToolError
from mendgraph.nodes.stop.report import stopped
from mendgraph.nodes.workspace.files.sandbox import check_workspace
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import workspace_folder

if TYPE_CHECKING:
    from langgraph.store.sqlite import SqliteStore


class Session:
    """The turns of one thread. Use it as a context manager: it closes the connections that it opened."""

    def __init__(self, context: AgentContext | None = None, **options: Unpack[SessionOptions]) -> None:
        """Nothing runs and nothing is connected before the first request. `thread_id` continues a known thread.

        The thread is kept in the workspace's database, unless a `checkpointer` is given. `durability` says when a step
        is written to the disk: "sync" (the default) before the next one begins, so that a kill loses nothing; "async"
        while the next one runs, so that a kill may lose the last step and its model call; "exit" when the turn ends, so
        that a kill loses the turn. Changes of files are always recorded before they happen. With `kept_permissions` a
        person may always allow calls in this workspace ("approve_always"): that is stored in the user's settings. The
        other options are those of `build_graph`.
        """
        arguments: dict[str, Any] = {**options}
        thread_id = arguments.pop("thread_id", None)
        checkpointer = arguments.pop("checkpointer", None)
        kept_permissions = arguments.pop("kept_permissions", False)
        self._durability = arguments.pop("durability", "sync")
        machine_options = check_options(checkpointer, context, cast("MachineOptions", arguments))
        if isinstance(checkpointer, bool):
            raise TypeError("checkpointer: pass a saver, or omit it to use the workspace's database.")

        context = context or AgentContext()
        if isinstance(machine_options["model"], str):  # it is stored with the run, so that a resume uses it again
            context = context.model_copy(update={"model": machine_options["model"]})
            machine_options["model"] = None

        context = context.model_copy(update=context_overrides(machine_options))
        root = check_workspace(context.workspace)
        self._root = None if isinstance(root, ToolError) else root
        if self._root is not None:
            context = context.model_copy(update={"workspace": self._root})

        self.context = context
        self.thread_id = str(thread_id) if thread_id else uuid4().hex
        self._reader = EventReader()
        self._at_work = False  # True while a turn runs; False while it waits for a person
        self._beginning = threading.Lock()
        self._turns = 0
        self._last: Event | None = None
        self._in_node = False
        self._failed: Outcome | None = None
        self._result: RunResult | None = None
        self._values: Mapping[str, Any] = {}
        self._stop = StopRequest()
        self._added: SimpleQueue[str] = SimpleQueue()
        self._failure: StoreError | None = None
        self._store: Store | None = None
        self._memory: SqliteStore | None = None
        if checkpointer is None and self._root is not None:
            checkpointer = self._open_store(self._root, machine_options["secrets"])
        if machine_options["store"] is None and self._root is not None:
            machine_options["store"] = self._open_memory(self._root)
        if checkpointer is None:
            checkpointer = InMemorySaver(serde=serializer(machine_options["secrets"]))

        self._machine, self._nodes = build_machine(
            checkpointer, stop=self._stop, added=self._added, kept_permissions=kept_permissions, **machine_options
        )
        self._nodes.servers_outlive_turns = True
        self._locks: SessionLocks | None = None
        if self._root is not None:
            self._locks = SessionLocks(self._root, self.thread_id, self._nodes.records)

    def _open_store(self, root: str, secrets: Sequence[str]) -> Any:
        """Return the saver of the workspace's database; None if it cannot be opened, which ends the first turn."""
        try:
            store = Store(root, secrets)
            saver = store.saver
        except StoreError as error:
            self._failure = error
            return None

        self._store = store
        return saver

    def _open_memory(self, root: str) -> "SqliteStore | None":
        """Return the workspace's store of notes; None if runs do not use it or it cannot be opened."""
        if not self.context.memory:
            return None

        try:
            self._memory = memory_store(root)
        except StoreError as error:
            self._failure = error

        return self._memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self, request: str, *, images: Sequence[Image] = ()) -> Generator[Event, None, None]:
        """Work on one request; the last event is `Ended`, or `Asked` when a person must decide.

        `images` are files, or the bytes of images, that the model sees with the request. Closing it early stops the run
        after the current call; `astream` and `stream_task` drop a model call at once.
        """
        return self._stream(partial(self._begin_turn, request, images))

    def work(self, request: str, *, images: Sequence[Image] = ()) -> Event:
        """Work on one request and return its last event, `Ended` or `Asked`; cheaper than `stream`."""
        return deque(self._stream(partial(self._begin_turn, request, images), watched=False), maxlen=1)[0]

    def answer(self, decisions: Mapping[str, Any] | str) -> Generator[Event, None, None]:
        """Continue after `Asked`, with "approve", "reject", "stop", an answer in words, or a decision for each call."""
        return self._stream(partial(self._answer_turn, decisions), new=False)

    def work_on(self, decisions: Mapping[str, Any] | str) -> Event:
        """Continue after `Asked`, and return the last event."""
        return deque(self._stream(partial(self._answer_turn, decisions), new=False, watched=False), maxlen=1)[0]

    def resume(self) -> Generator[Event, None, None]:
        """Continue the last turn where it was cut off or stopped; a finished turn yields its outcome again."""
        return self._stream(self._resume_turn)

    def astream(self, request: str, *, images: Sequence[Image] = ()) -> AsyncGenerator[Event, None]:
        """Work on one request without blocking the event loop."""
        return self._astream(partial(self._begin_turn, request, images))

    def aanswer(self, decisions: Mapping[str, Any] | str) -> AsyncGenerator[Event, None]:
        """Continue after `Asked` without blocking the event loop."""
        return self._astream(partial(self._answer_turn, decisions), new=False)

    def aresume(self, *, anew: bool = False) -> AsyncGenerator[Event, None]:
        """Resume without blocking the event loop; with `anew` in a new turn with this session's context."""
        return self._astream(partial(self._resume_turn, anew=anew))

    async def acompact(self) -> AsyncGenerator[Event, None]:
        """Summarise the conversation for the next turns, in a model call that is paid like any other.

        `Compacted` is among the events; otherwise the last one is `Ended`, which says why there is no summary.
        """
        compacted = False
        started: list[TurnInput] = []
        try:
            async with aclosing(self._astream(partial(self._begin_compaction, started))) as events:
                async for event in events:
                    compacted = compacted or isinstance(event, Compacted | Ended)
                    yield event
        finally:
            if started:  # another turn may run in this thread
                with suppress(StoreError):
                    await asyncio.to_thread(end_compaction, self._machine, self._config())

        if not compacted:
            yield Ended(self._failed_outcome(self._values.get("stop") or NO_SUMMARY))

    def stop(self, reason: str = "by the program", *, in_step: bool = True) -> None:
        """Request an early end of the running turn, from any thread or signal handler. `reason` says who asks.

        A model call is dropped, a running tool is waited for, and nothing begins after it. The outcome is `cancelled`,
        and `resume` continues from there. Calls that have not begun are cancelled; without `in_step` they run first, so
        that the step is complete.
        """
        self._stop.ask(reason, in_step=in_step)

    def add_message(self, text: str) -> None:
        """Add a person's words to the running turn, from any thread; the model reads them after the running step."""
        if not isinstance(text, str):
            raise TypeError(f"add_message: {type(text).__name__} is not a text.")
        self._added.put(text)

    def unread_messages(self) -> list[str]:
        """Return and remove the added messages that the turn has not read, as it had no further step."""
        return take_added(self._added)

    def scrub(self, text: str) -> str:
        """Return the text without the secrets that this session knows."""
        return self._nodes.scrub(text)

    def result(self) -> RunResult:
        """Return the result of the last turn; also after `close`."""
        return self._result or self._read_result()

    def file_content(self, path: str, sha256: str) -> bytes | None:
        """Return the bytes with this hash that a file holds or held before a change; None if unknown."""
        now = self._nodes.read_file(self.context, path)
        same = now is not None and hashlib.sha256(now).hexdigest() == sha256
        if same or self._root is None:
            return now if same else None

        return kept_content(self._root, sha256)

    def usage(self) -> JsonMap:
        """Return what the thread has used so far, including a turn that was cut off; the keys are those of an outcome.

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

    def _begin_turn(self, text: str, images: Sequence[Image] = ()) -> TurnInput | StopCause:
        if not isinstance(text, str):
            raise TypeError(f"request: {type(text).__name__} is not a text: describe the task.")

        blocks = image_blocks(images)
        if isinstance(blocks, ToolError):
            return invalid_request(blocks.message)

        text = self.scrub(text)
        request = self._lock_and_record("\n".join([text, *image_notes(images)]))
        if isinstance(request, StopCause):
            return request

        request = request._replace(text=text)
        self._reader = EventReader()
        if request.message_id:
            is_first = request.message_id == f"{run_records.REQUEST_ID}1"
            self._nodes.book_turn(self.context, self.thread_id, first=is_first)

        return input_of(request, blocks)

    def _answer_turn(self, decisions: Mapping[str, Any] | str) -> TurnInput | StopCause:
        """Lock the workspace again, as another process may have requested the approval, and return the decisions."""
        request = self._lock_and_record()
        if isinstance(request, StopCause):
            return request

        state = self._machine.get_state(self._config())
        if not state.interrupts:
            self._release()
            return invalid_request("This thread is not waiting for an approval: resume it, or send a new request.")

        if is_of_another_workspace(state.values, self._root):
            self._release()
            return invalid_request("The workspace has moved since the approval was requested: resume the run.")

        self._reader = EventReader.resuming(state.values)
        return TurnInput(Command(resume=storable_answer(decisions)))

    def _resume_turn(self, *, anew: bool = False) -> TurnInput | StopCause:
        """Return how the last turn continues, by its state: see `ResumePlan`."""
        request = self._lock_and_record()
        if isinstance(request, StopCause):
            return request

        values = self._machine.get_state(self._config()).values
        if not values and not request.text:
            self._release()
            return invalid_request("There is nothing to continue: this thread has no request yet. Send it one.")

        self._reader = EventReader.resuming(values)
        anew = anew or is_of_another_workspace(values, self._root)

        match run_records.resume_plan(values, request.message_id, undone=request.undone, anew=anew):
            case run_records.ResumePlan.NOTHING:
                return TurnInput(ended=values["outcome"])
            case run_records.ResumePlan.NEW_TURN:
                self._at_work = False
                return self._begin_turn(request_to_resume(request, values))
            case run_records.ResumePlan.CARRY_OUT:
                self._at_work = False
                return self._begin_turn(run_records.CARRY_OUT)
            case run_records.ResumePlan.GO_BACK:
                start = TurnInput(config=checkpoint_before_stop(self._machine, self._config(), values))
            case run_records.ResumePlan.GO_ON:
                start = TurnInput()
            case run_records.ResumePlan.SEND_AGAIN:
                start = input_of(request)

        if self._store is not None:
            self._store.take_up(self.thread_id)

        return start

    def _begin_compaction(self, started: list[TurnInput]) -> TurnInput | StopCause:
        request = self._lock_and_record()
        if isinstance(request, StopCause):
            return request

        self._reader = EventReader()
        start = compaction_input(self._machine, self._config())
        if isinstance(start, StopCause):
            self._release()
        else:
            started.append(start)
        return start

    def _open_turn(self, prepare: PrepareTurn, *, new: bool) -> TurnInput | Ended:
        """Return the input of the turn, or its end if there is nothing to do or it cannot begin.

        A stop request of the last turn does not apply to a `new` one; a running turn is not touched.
        """
        if self._at_work:
            return Ended(self._failed_outcome(AT_WORK))
        if new:
            self._stop.clear()

        self._last = None
        self._failed = None
        self._result = None
        self._values = {}

        try:
            start = prepare()
        except StoreError as error:
            self._release()
            start = cause_of(error)

        if isinstance(start, StopCause):
            return self._fail(start)

        if start.ended is not None:
            self._finish(start.ended)
            return Ended(start.ended)

        return start

    def _stream(self, prepare: PrepareTurn, *, new: bool = True, watched: bool = True) -> Generator[Event, None, None]:
        """Yield the turn's events. If the run is not `watched`, LangGraph runs the nodes in this thread."""
        start = self._open_turn(prepare, new=new)
        if isinstance(start, Ended):
            yield start
            return

        parts = cast("Generator[Any, None, None]", self._machine.stream(**self._arguments(start, watched)))
        with self._ending_turn(), closing(parts):
            try:
                for mode, part in parts:
                    yield from self._read(mode, part)
            except GeneratorExit:
                self._abandon(parts)
                raise

        if isinstance(self._last, Ended):
            self._finish(self._last.outcome)
            yield self._last

    async def _astream(self, prepare: PrepareTurn, *, new: bool = True) -> AsyncGenerator[Event, None]:
        start = await self._aopen_turn(prepare, new=new)
        if isinstance(start, Ended):
            yield start
            return

        parts = cast("AsyncGenerator[Any, None]", self._machine.astream(**self._arguments(start)))
        with self._ending_turn():
            async with aclosing(parts):
                async for mode, part in parts:
                    for event in self._read(mode, part):
                        yield event

        if isinstance(self._last, Ended):
            await asyncio.to_thread(self._finish, self._last.outcome)
            yield self._last

    @contextmanager
    def _ending_turn(self) -> Iterator[None]:
        """Convert an expected error of the turn to `Ended`, and release the workspace.

        After `Asked` it is kept, as are the jobs, and the session is idle; after `Ended` the outcome is written first.
        """
        over = False
        try:
            yield
            over = True
        except (StoreError, NodeTimeoutError) as error:
            self._last = self._fail(cause_of(error))
            over = True
        finally:
            if over and isinstance(self._last, Asked):
                self._at_work = False
            elif not (over and isinstance(self._last, Ended)):
                self._release()

    def _abandon(self, parts: Iterator[Any]) -> None:
        """Drop the current model call, or wait for the current step; nothing begins after it.

        LangGraph 1.2 may end its threads before a node has stored its result, such as a paid reply. So the parts are
        read until the current node has ended, and those of the terminal if it ends the run.
        """
        self._stop.ask("by the program, which closed the stream", in_step=False)
        ending = False
        with suppress(StoreError):
            for mode, part in parts if self._in_node else ():
                deque(self._read(mode, part), maxlen=0)
                if mode != "updates":
                    continue

                ending = ending or any(isinstance(update, Mapping) and update.get("stop") for update in part.values())
                if not ending:
                    break

            if isinstance(self._last, Ended):
                self._finish(self._last.outcome)

    def _read(self, mode: str, part: Any) -> Iterator[Event]:
        """Yield the events of one part except `Ended`, which follows once it is written. Keeps the latest state."""
        self._in_node = mode == "custom"
        if mode == "values":
            self._values = part
            return
        for event in self._reader.read(mode, part):
            self._last = event
            if not isinstance(event, Ended):
                yield event

    async def _aopen_turn(self, prepare: PrepareTurn, *, new: bool) -> TurnInput | Ended:
        """Open the turn in a thread. Even a cancelled caller waits for it, so that its locks are released."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_turn, prepare, new=new))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            self._release()
            raise

    def _finish(self, outcome: Outcome) -> None:
        """Write the outcome to the store, keep the result, and unlock the workspace."""
        with suppress(StoreError):  # the checkpoint has it as well
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

    def _fail(self, cause: StopCause) -> Ended:
        self._failed = self._failed_outcome(cause)
        return Ended(self._failed)

    def _failed_outcome(self, cause: StopCause) -> Outcome:
        usage = usage_report(Spending())
        return stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), self._reader.changes, usage, LoopRecord())

    def _read_result(self) -> RunResult:
        if self._failed is not None:
            return self._result_of({"outcome": self._failed, "changes": self._reader.changes})
        return self._result_of(self._machine.get_state(self._config()).values)

    def _result_of(self, values: Mapping[str, Any]) -> RunResult:
        return result_of(values, self.thread_id, self.file_content, self.scrub)

    def _arguments(self, start: TurnInput, watched: bool = True) -> dict[str, Any]:
        return {
            "input": start.input,
            "config": start.config or self._config(),
            "context": self.context,
            "stream_mode": ["custom", "updates", "values"] if watched else ["updates", "values"],
            "durability": self._durability,
            "interrupt_after": start.until or None,
        }

    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread_id}, "recursion_limit": limit_of_run(self.context)}

    # --- Locks and the store

    def _lock_and_record(self, request: str | None = None) -> TurnRequest | StopCause:
        """Lock the workspace and record the turn, by default the last one; or return why it cannot begin."""
        if self._failure is not None:
            return cause_of(self._failure)

        with self._beginning:
            if self._at_work:
                return AT_WORK

            problem = self._lock()
            self._at_work = problem is None

        if problem is not None:
            return problem

        try:
            turn = self._last_turn() if request is None else self._new_turn(request)
        except StoreError as error:
            turn = cause_of(error)

        if isinstance(turn, StopCause):
            self._release()

        return turn

    def _new_turn(self, request: str) -> TurnRequest | StopCause:
        if self._store is None:
            return TurnRequest(request, "")
        if self._turns and self._record() is None:
            return StopCause(reason=StopReason.STORE_FAILED, message=REMOVED)
        self._turns = self._store.begin_turn(self.thread_id, request, self.context, self._durability)
        return TurnRequest(request, f"{run_records.REQUEST_ID}{self._turns}")

    def _last_turn(self) -> TurnRequest:
        record = self._record()
        if record is None:
            return TurnRequest("", "")
        self._turns = record.turns
        return TurnRequest(
            record.request, f"{run_records.REQUEST_ID}{record.turns}", undone=record.reason == run_records.UNDONE
        )

    def _record(self) -> run_records.RunRecord | None:
        stored_run = self._store.run(self.thread_id) if self._store else None
        return stored_run if isinstance(stored_run, run_records.RunRecord) else None

    def _release(self) -> None:
        """End the jobs, and unlock the workspace."""
        self._nodes.end_jobs()
        self._at_work = False
        if self._locks is not None:
            self._locks.release()

    def _close_store(self) -> None:
        self._release()
        if self._store is not None:
            self._store.close()
        if self._memory is not None:
            self._memory.conn.close()

    def _lock(self) -> StopCause | None:
        """Lock the workspace and the thread, or return why they cannot be locked."""
        if self._locks is None:
            return None  # there is no workspace: the run ends with that
        if self._store is None and isinstance(workspace_folder(self.context.workspace), ToolError):
            return None  # the run may read files; each change will be refused with the reason

        return self._locks.acquire()
