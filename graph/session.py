"""A thread of turns: what runs from Python and from the terminal are made of.

A session keeps its thread in the workspace's database or in a checkpointer of the user's, and closes what it opened.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from graph.build import NO_ROLES, build_machine
from graph.build_arguments import BuildArguments, check_arguments, with_keys
from graph.combined_diff import combined_diffs
from graph.context import AgentContext
from graph.events import Asked, Ended, Event, EventReader
from graph.left_stream import Parts
from graph.routes import recursion_limit
from graph.run_keeper import AT_WORK, RunKeeper, given_up
from graph.run_records import REQUEST_ID
from graph.run_result import RunResult
from graph.stop_request import StopRequest
from graph.store import Durability
from graph.turn_start import NOBODY_ASKED, NOTHING_BEGUN, TurnStart, last_request, reader_from, request_message
from graph.two_ways import NodeTimeoutError
from graph.way_on import TO_THE_CALL, WayOn, before_the_call, go_on_with, way_on
from nodes.call_model.ledger import Spending, usage_report
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.registry import Tool
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from nodes.records import FileChange, JsonMap, Outcome, OutcomeKind, Plan, StopCause
from nodes.stop.report import stopped


class Session:
    """A thread of turns. Use it as a context manager: it closes the connections that it opened."""

    def __init__(  # noqa: PLR0913 - what a session is made of, each with a default
        self,
        context: AgentContext | None = None,
        *,
        model: BaseChatModel | str | None = None,
        tools: Sequence[Tool] | None = None,
        rules: Sequence[FileGuardrailRule] = DEFAULT_GUARDRAIL_RULES,
        roles: Mapping[str, Collection[str]] = NO_ROLES,
        secrets: Sequence[str] = (),
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        store: BaseStore | None = None,
        thread_id: str | None = None,
        durability: Durability = "sync",
    ) -> None:
        """Nothing runs and nothing is connected until the first request. `thread_id` goes on with a known thread.

        The thread is kept in the workspace's own database, unless a `checkpointer` is given. `durability` says when a
        step is on the disk: "sync" before the next one begins, so that a kill loses nothing; "async" while the next
        one runs, so that a kill may lose the last step and its model call; "exit" when the turn ends, so that a kill
        loses the turn. Changes of files are recorded before they happen, whatever is chosen.
        """
        check_arguments(BuildArguments(checkpointer, model, tools, rules, roles, secrets, store, context))
        if isinstance(checkpointer, bool):
            raise TypeError("checkpointer: give a saver, or none to keep the thread in the workspace's own database.")
        context = context or AgentContext()
        if isinstance(model, str):  # which is kept with the run, so that a resume asks it again
            context, model = context.model_copy(update={"model": model}), None
        secrets = with_keys(secrets, model)
        self.thread_id = str(thread_id) if thread_id else uuid4().hex
        self._reader, self._durability = EventReader(), durability
        self._keeper = RunKeeper(
            context,
            self.thread_id,
            secrets=secrets,
            durability=durability,
            checkpointer=checkpointer,
        )
        self.context = self._keeper.context
        self._failed: Outcome | None = None
        self._result: RunResult | None = None
        self._values: Mapping[str, Any] = {}
        self._stop = StopRequest()
        self._machine, self._rooms = build_machine(
            self._keeper.saver,
            model=model,
            tools=tools,
            rules=tuple(rules),
            roles=roles,
            secrets=secrets,
            store=store,
            stop=self._stop,
        )

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""
        self.close()

    def stream(self, request: str) -> Generator[Event, None, None]:
        """Work on one request; the last event is `Ended`, or `Asked` when a person has to decide.

        Closing it early stops the run, after the call at work; `astream` and `stream_task` drop a model call at once.
        """
        self._clear_stop()
        yield from self._stream(partial(self._begin, self._asked(request)))

    def work(self, request: str) -> Event:
        """Work on one request that nobody watches: its last event alone, `Ended` or `Asked`, at a lower cost."""
        self._clear_stop()
        return self._last(partial(self._begin, self._asked(request)))

    def work_on(self, decisions: Mapping[str, Any] | str) -> Event:
        """Go on after `Asked`, as `answer` does, while nobody watches."""
        return self._last(partial(self._answered, decisions))

    def answer(self, decisions: Mapping[str, Any] | str) -> Generator[Event, None, None]:
        """Go on after `Asked`, with "approve", "reject", "stop", or decisions call by call."""
        yield from self._stream(partial(self._answered, decisions))

    def resume(self) -> Generator[Event, None, None]:
        """Go on where the last turn was cut off or stopped; a run that has finished gives its outcome once more."""
        self._clear_stop()
        yield from self._stream(self._begin_again)

    async def astream(self, request: str) -> AsyncGenerator[Event, None]:
        """Work on one request without blocking the event loop."""
        self._clear_stop()
        async with aclosing(self._astream(partial(self._begin, self._asked(request)))) as events:
            async for event in events:
                yield event

    async def aanswer(self, decisions: Mapping[str, Any] | str) -> AsyncGenerator[Event, None]:
        """Go on after `Asked` without blocking the event loop."""
        async with aclosing(self._astream(partial(self._answered, decisions))) as events:
            async for event in events:
                yield event

    async def aresume(self) -> AsyncGenerator[Event, None]:
        """Go on where the last turn was cut off or stopped, without blocking the event loop."""
        self._clear_stop()
        async with aclosing(self._astream(self._begin_again)) as events:
            async for event in events:
                yield event

    def stop(self, reason: str = "by the program", *, in_step: bool = True) -> None:
        """Let the turn at work end early; any thread and any signal handler may ask. `reason` says who did.

        A model call is dropped, a tool that runs is waited for, and nothing begins after it. The outcome says
        `cancelled`, and `resume` goes on from there; calls that had not begun are told to the model as cancelled, or
        without `in_step` are run first: who goes on then finds the step whole.
        """
        self._stop.ask(reason, in_step=in_step)

    def scrub(self, text: str) -> str:
        """The text without the secrets that this session knows of."""
        return self._rooms.scrub(text)

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
        self._rooms.close()
        self._keeper.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, those of sync calls, and the store."""
        await self._rooms.aclose()
        await asyncio.to_thread(self._keeper.close)

    # --- One turn

    def _asked(self, request: str) -> str:
        if not isinstance(request, str):
            raise TypeError(f"request: {type(request).__name__} is no text: say in words what is wanted.")
        return self.scrub(request)

    def _begin(self, request: str) -> TurnStart | StopCause:
        begun = self._keeper.begin(request, self._rooms.records)
        if isinstance(begun, StopCause):
            return begun
        self._reader = EventReader()
        if begun.request_id:
            first = begun.request_id == f"{REQUEST_ID}1"
            self._rooms.mark_turn(self.context, self.thread_id, first=first)
        return TurnStart(request_message(begun))

    def _clear_stop(self) -> None:
        """What somebody asked of the turn before does not concern this one; one that is at work is left alone."""
        if not self._keeper.at_work:
            self._stop.clear()

    def _answered(self, decisions: Mapping[str, Any] | str) -> TurnStart | StopCause:
        """Somebody may have asked in another process, which is gone: then the workspace has to be taken again."""
        begun = self._keeper.begin_again(self._rooms.records)
        if isinstance(begun, StopCause):
            return begun
        state = self._machine.get_state(self._config())
        if not state.interrupts:
            self._keeper.release()
            return NOBODY_ASKED
        self._reader = reader_from(state.values)
        return TurnStart.answering(decisions)

    def _begin_again(self) -> TurnStart | StopCause:
        """Take the turn up again, as its own state says; see `graph.way_on`."""
        begun = self._keeper.begin_again(self._rooms.records)
        if isinstance(begun, StopCause):
            return begun
        values = self._machine.get_state(self._config()).values
        if not values and not begun.request:
            self._keeper.release()
            return NOTHING_BEGUN
        self._reader = reader_from(values)
        match way_on(values, begun.request_id, undone=begun.undone):
            case WayOn.NOTHING:
                return TurnStart(None, ended=values["outcome"])
            case WayOn.NEW_TURN:
                task = begun.request or last_request(values)
                self._keeper.wait()
                return self._begin(go_on_with(task, undone=begun.undone))
            case WayOn.GO_BACK:
                way = TurnStart(None, self._before_the_stop(values))
            case WayOn.GO_ON:
                way = TurnStart(None)
            case WayOn.SEND_AGAIN:
                way = TurnStart(request_message(begun))
        self._keeper.take_up()
        return way

    def _before_the_stop(self, values: Mapping[str, Any]) -> RunnableConfig | None:
        """The checkpoint before the model call that did not happen; what has been spent since stays spent."""
        found = before_the_call(self._machine.get_state_history(self._config()))
        if found is None:
            return None
        return self._machine.update_state(found.config, {"spending": values["spending"]}, as_node=TO_THE_CALL)

    def _opened(self, begin: Callable[[], TurnStart | StopCause]) -> TurnStart | Ended:
        """The way that this turn takes, or its end, where there is nothing to do or nothing can be done."""
        if self._keeper.at_work:
            return Ended(self._stopped(AT_WORK))
        self._failed, self._result, self._values = None, None, {}
        try:
            way = begin()
        except StoreError as error:
            self._keeper.release()
            way = given_up(error)
        if isinstance(way, StopCause):
            return self._gives_up(way)
        if way.ended is not None:
            self._finish(way.ended)
            return Ended(way.ended)
        return way

    def _last(self, begin: Callable[[], TurnStart | StopCause]) -> Event:
        """The last event of a turn. Where no other is wanted, LangGraph runs the nodes in this thread."""
        return deque(self._stream(begin, watched=False), maxlen=1)[0]

    def _stream(
        self, begin: Callable[[], TurnStart | StopCause], *, watched: bool = True
    ) -> Generator[Event, None, None]:
        way = self._opened(begin)
        if isinstance(way, Ended):
            yield way
            return
        last: Event | None = None
        over = False
        try:
            stream = self._machine.stream(way.request, way.config or self._config(), **self._settings(watched))
            with closing(Parts(stream)) as parts:
                try:
                    for mode, part in parts:
                        for last in self._read(mode, part):
                            if not isinstance(last, Ended):  # which is told once it is on the disk
                                yield last
                except GeneratorExit:
                    self._left(parts)
                    raise
            over = True
        except (StoreError, NodeTimeoutError) as error:
            last, over = self._gives_up(given_up(error)), True
        finally:
            self._leave(last if over else None)
        if isinstance(last, Ended):
            self._finish(last.outcome)
            yield last

    async def _astream(self, begin: Callable[[], TurnStart | StopCause]) -> AsyncGenerator[Event, None]:
        way = await self._aopened(begin)
        if isinstance(way, Ended):
            yield way
            return
        last: Event | None = None
        over = False
        try:
            parts = self._machine.astream(way.request, way.config or self._config(), **self._settings(watched=True))
            async with aclosing(cast("AsyncGenerator[Any, None]", parts)):
                async for mode, part in parts:
                    for last in self._read(mode, part):
                        if not isinstance(last, Ended):
                            yield last
            over = True
        except (StoreError, NodeTimeoutError) as error:
            last, over = self._gives_up(given_up(error)), True
        finally:
            self._leave(last if over else None)
        if isinstance(last, Ended):
            await asyncio.to_thread(self._finish, last.outcome)
            yield last

    def _left(self, parts: Parts) -> None:
        """Who leaves early drops the model call at work, and waits for a step at work; nothing begins any more."""
        self._stop.ask("by the program, which closed the stream", in_step=False)
        with suppress(StoreError):
            rest = [event for mode, part in parts.rest() for event in self._read(mode, part)]
            if rest and isinstance(rest[-1], Ended):
                self._finish(rest[-1].outcome)

    def _read(self, mode: str, part: Any) -> Iterator[Event]:
        """The events of one part; a thread's own words are kept, so that nobody reads them back from the disk."""
        if mode == "values":
            self._values = part
        else:
            yield from self._reader.read(mode, part)

    async def _aopened(self, begin: Callable[[], TurnStart | StopCause]) -> TurnStart | Ended:
        """The same in a thread. It is waited for even where nobody waits for the turn: what it has locked is freed."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._opened, begin))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            self._keeper.release()
            raise

    def _leave(self, last: Event | None) -> None:
        """Leave the workspace to others, unless a person is being asked, or the turn's end is still to be written."""
        if isinstance(last, Asked):
            self._keeper.wait()
        elif not isinstance(last, Ended):
            self._keeper.release()

    def _finish(self, outcome: Outcome) -> None:
        """Write down how the turn ended, keep what came of it, and leave the workspace."""
        self._keeper.end(outcome)
        with suppress(StoreError):
            ended = self._failed is None and self._values.get("outcome") == outcome
            self._result = self._result_of(self._values) if ended else self._read_result()
        self._values = {}

    def _gives_up(self, cause: StopCause) -> Ended:
        """The end of a turn that the machine could not work on, or not to its end."""
        self._failed = self._stopped(cause)
        return Ended(self._failed)

    def _stopped(self, cause: StopCause) -> Outcome:
        usage = usage_report(Spending())
        return stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), self._reader.changes, usage)

    def _read_result(self) -> RunResult:
        if self._failed is not None:
            changes = self._reader.changes
            return RunResult(self._failed, (), changes, Plan(), self.thread_id, self._net_diff(changes))
        return self._result_of(self._machine.get_state(self._config()).values)

    def _result_of(self, values: Mapping[str, Any]) -> RunResult:
        changes = tuple(values.get("changes", ()))
        return RunResult(
            outcome=values["outcome"],
            messages=tuple(values.get("messages", ())),
            changes=changes,
            plan=values.get("plan") or Plan(),
            thread_id=self.thread_id,
            diff=self._net_diff(changes),
        )

    def _net_diff(self, changes: Sequence[FileChange]) -> str:
        """What these changes come to; files that were changed more than once are read for it."""
        return self.scrub("".join(combined_diffs(changes, partial(self._rooms.read_file, self.context))))

    def _settings(self, watched: bool) -> dict[str, Any]:
        modes = ["custom", "updates", "values"] if watched else ["updates", "values"]
        return {"context": self.context, "stream_mode": modes, "durability": self._durability}

    def _config(self) -> RunnableConfig:
        limit = recursion_limit(self.context.max_calls_per_turn)
        return {"configurable": {"thread_id": self.thread_id}, "recursion_limit": limit}
