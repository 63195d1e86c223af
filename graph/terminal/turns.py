"""What the terminal does with a session: its turns, one task or many. Imported when a run starts.

The session runs in an event loop, because only there a model call ends at once when somebody wants the run to stop: a
thread that waits for an endpoint cannot be interrupted.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, Final, Self

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.unattended import Published, Unattended, taken_up
from mendgraph.graph.runs.events import Asked, Ended, Event
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.graph.runs.run_words import chat_command, command_line, resume_command
from mendgraph.graph.runs.runs import ListedRun, get_run
from mendgraph.graph.terminal.answers import Line, as_json
from mendgraph.graph.terminal.approval import ReadLine, ask_person, in_editor
from mendgraph.graph.terminal.output_lines import (
    commit_message,
    cost_words,
    diff_lines,
    event_as_map,
    outcome_lines,
    pull_request,
    result_object,
    usage_block,
    usage_lines,
)
from mendgraph.graph.terminal.process_end import (
    SIGNALS,
    ExitCode,
    RefusedError,
    by_whom,
    exit_code_of,
    install,
    leave_at_once,
    unwrap,
    write_file,
)
from mendgraph.graph.terminal.screen import Display, RunView, VisibleText
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.sandboxes.backends import choose_sandbox
from mendgraph.nodes.execute_tools.store.audit_log import FILE_NAME
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import run_folder_path
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.language.display import one_line, short_id
from mendgraph.nodes.records import EditForm, ToolError, ToolErrorCode

GRACE_S: Final = 5.0
"""Seconds that a turn has to end after the second signal; then the process ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends at once what Ctrl-C would end at once: at a prompt, or when it comes again."""


class Signals:
    """Hears the signals inside of `heard`. Where a signal is ignored, it stays ignored.

    `stop` is told by whom a turn is to be stopped, in the signal handler; `tell` is called in the event loop, when it
    is time to say that the turn is ending. Outside of `draining` a signal raises KeyboardInterrupt or `Terminated`.
    """

    def __init__(self, stop: Callable[[str], None], tell: Callable[[], None]) -> None:
        self._stop = stop
        self._tell = tell
        self.last = SIGNALS[signal.SIGINT]
        self.terminated = False
        self.stopping = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, SIGTERM ends things as Ctrl-C does. Afterwards the signals are as they were."""
        before = install({signal.SIGTERM: self._end_at_once})
        try:
            yield
        finally:
            install(before)

    def begin(self) -> None:
        """Begin a turn: nobody wants it to stop."""
        self.last = SIGNALS[signal.SIGINT]
        self.stopping = False

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Inside, in a task of the main thread's event loop, the first signal of a turn asks the turn to stop.

        The second one cancels the task; one that does not end, because something blocks the event loop, is ended with
        the process.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        alarm: dict[int, Any] = {}

        def hear(number: int, _: FrameType | None) -> None:
            self._note(number)

            if not self.stopping:
                self.stopping = True
                self._stop(by_whom(self.last))
                loop.call_soon_threadsafe(self._tell)
            elif task is not None and not alarm:
                alarm.update(install({signal.SIGALRM: self._leave}))
                signal.setitimer(signal.ITIMER_REAL, GRACE_S)
                task.cancel()
                loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may wait for something else

        before = install(dict.fromkeys(SIGNALS, hear))
        try:
            yield
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)

            install({**before, **alarm})

    def _leave(self, _: int, __: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # it may have interrupted a line that is being written
            sys.stderr.write(f"mendgraph: stopped {by_whom(self.last)}; go on with: mendgraph resume\n")

        leave_at_once(ExitCode.TERMINATED if self.terminated else ExitCode.INTERRUPTED)

    def _end_at_once(self, number: int, _: FrameType | None) -> None:
        self._note(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _note(self, number: int) -> None:
        self.last = SIGNALS[number]
        self.terminated = self.terminated or number == signal.SIGTERM


TOOL_THREAD: Final = "tool"
"""The name of the threads of tool calls (`nodes.execute_tools.files.deadline`)."""

TIDY_UP_S: Final = 0.5
"""How long a call may take to notice that it is over, and to end. Commands look every 50 ms."""


@dataclass(frozen=True)
class Setup:
    """What a run at the terminal needs.

    `next_line` reads a chat's requests; `ask` reads a person's lines about approvals, None where there is nobody to
    ask, and `ask_key` the keys that answer.
    `session_options` are further arguments of `Session`; `unattended` is the worktree of a task that nobody watches.
    """

    context: AgentContext
    display: Display
    next_line: ReadLine
    ask: ReadLine | None = None
    ask_key: ReadLine | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, Any] = field(default_factory=dict)
    unattended: Unattended | None = None


def run_once(setup: Setup, request: str) -> ExitCode:
    """Work on one task and show its end."""
    with Turns(setup) as turns:
        return turns.show_run(turns.take(request))


def resume_once(setup: Setup, *, anew: bool = False) -> ExitCode:
    """Go on with the thread that `session_options` name, and show its end; `anew`: in a new turn, by its options."""
    place = taken_up(setup.context.workspace)
    is_own_run = place is not None and setup.session_options["thread_id"].startswith(
        place.run
    )  # others may run there too

    with Turns(replace(setup, unattended=place if is_own_run else None)) as turns:
        return turns.show_run(turns.take_up(anew=anew))


class Turns:
    """The turns of one session, shown as they go. Use it as a context manager: it closes what the session opened."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._display = setup.display
        self._status = setup.display.live
        self._api = setup.context.limits().api
        self._root = setup.context.workspace
        self._view = _view(setup)
        self.session = Session(setup.context, **setup.session_options)
        self._runner = asyncio.Runner()
        self._closing = ExitStack()
        self._signals = Signals(self._stop, self._show_stopping)
        self._begun = False

    def __enter__(self) -> Self:
        """Hear signals, and return the turns."""
        self._closing.enter_context(self._signals.heard())
        self._closing.callback(self._runner.close)
        self._closing.callback(lambda: self._runner.run(self.session.aclose()))

        return self

    def __exit__(self, *_: object) -> None:
        """Close the session and its event loop."""
        self._closing.close()

    @property
    def terminated(self) -> bool:
        """Whether the process was told to end, by SIGTERM."""
        return self._signals.terminated

    @property
    def context(self) -> AgentContext:
        """What the turns may do, on which model, and where."""
        return self.session.context

    def use(self, context: AgentContext, *, anew: bool = False) -> None:
        """Go on under this context, in the same thread or `anew`. What the session holds is let go, its lock too."""
        options = {**self.setup.session_options, "thread_id": None if anew else self.session.thread_id}
        self.setup = replace(self.setup, context=context, session_options=options)
        self._runner.run(self.session.aclose())
        self.session = Session(context, **options)
        account = self._view.account
        self._view = _view(self.setup)
        self._view.account = self._view.account if anew else account

    def take(self, request: str) -> ExitCode:
        """Work on one request and show its end.

        Ctrl-C and SIGTERM end the turn after its running step, the second of them at once; the session can take the
        next request.
        """
        return self._take(self.session.astream(request))

    def take_up(self, *, anew: bool = False) -> ExitCode:
        """Go on with the turn that was cut off or stopped, or with its task in a new one; otherwise as `take`."""
        self._show_first_line(resumed=True)
        return self._take(self.session.aresume(anew=anew), same_turn=not anew)

    def _take(self, events: AsyncGenerator[Event, None], *, same_turn: bool = False) -> ExitCode:
        self._view.begin()
        self._signals.begin()
        self._show_first_line()

        if self._status is not None:
            self._status.begin(self._used_before(), same_turn=same_turn)

        try:
            answers = self._runner.run(self._show(events))
            while answers is not None:
                answers = self._runner.run(self._show(self.session.aanswer(self._answer(answers))))
        except (KeyboardInterrupt, asyncio.CancelledError):  # by the second signal
            code = ExitCode.TERMINATED if self.terminated else ExitCode.INTERRUPTED
            self._show_interruption(code)
            self._show_log()
            let_tools_tidy_up()

            return code

        result = self.session.result()
        published = None
        if self.setup.unattended:
            published = self._publish(result, self.setup.unattended)

        self._show_end(result, published)
        self._show_log()
        if published and published.problem:
            self._display.err.line(f"mendgraph: {one_line(published.problem.message, 1_000)}")
            return ExitCode.SYSTEM_ERROR

        return exit_code_of(result.outcome, require_changes=self.context.require_changes)

    def _publish(self, result: RunResult, unattended: Unattended) -> Published:
        """Commit what an unattended run has changed, as it wants, and write its report."""
        change_wanted = unattended.wanted
        record = self._kept()
        used = result.outcome.usage
        models = dict.fromkeys(payment.model for payment in self._view.account.paid)
        message = self.session.scrub(commit_message(change_wanted.task, result, [*models]))
        files = record.files if record else result.changed_files  # of all turns
        checked = result.outcome.verified.kind in {"passed", "indistinct"} or not self.context.require_checks
        published = unattended.publish(files, finished=result.ok, checked=checked, message=message)

        if change_wanted.report:
            model = ["--model", self.context.model] if self.context.model else []
            lines = (*usage_lines(used, self._api, self._view.account), *usage_block(used, self._api))
            report = pull_request(change_wanted.task, unattended.copy.base, model, result, files, lines)
            report = self.session.scrub(report)

            if change_wanted.report == "-":
                sys.stdout.write(report)
            else:
                folder, name = os.path.split(os.path.abspath(change_wanted.report))
                try:
                    write_file(unwrap(check_workspace(folder)), name, report.encode(errors="replace"), force=True)
                except RefusedError as refusal:  # the end is told all the same
                    problem = ToolError(code=ToolErrorCode.IO_ERROR, message=f"No report: {refusal.message}")
                    return published._replace(problem=published.problem or problem)

        return published

    def usage(self) -> tuple[Mapping[str, Any], list[Line]]:
        """What the session has used: counters, and lines for a person."""
        used = self.session.usage()
        cost = cost_words(used.get("cost_usd"), self._view.account.unpriced)
        costs = [Line(f"  Cost: {cost_part.removeprefix('cost ')}") for cost_part in cost]

        return used, [Line(""), *usage_block(used, self._api), *costs]

    def show_run(self, code: ExitCode) -> ExitCode:
        """Which run it was, and how it goes on; a task that was ended at once has said so already."""
        if code not in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} and not self._display.as_json:
            self._show_last(chat=False)

        return code

    def show_chat(self) -> None:
        """What it has used, which run it was, and how to talk on."""
        if not self._display.as_json:
            self._view.lines(*self.usage()[1])
            self._show_last(chat=True)

    def _show_last(self, *, chat: bool) -> None:
        if record := self._kept():
            on = chat_command(record.run_id, self._root) if chat else self._resume(record)
            self._display.err.line(f"mendgraph: run {short_id(record.run_id)}" + (f"; go on with: {on}" if on else ""))

    def _used_before(self) -> Mapping[str, Any]:
        """What the session has used; nothing where that cannot be read, which the turn itself will say."""
        with suppress(StoreError):
            return self.session.usage()

        return {}

    def _stop(self, by: str) -> None:
        self.session.stop(by)  # of the session that there is by then: see `use`

    def _kept(self) -> ListedRun | None:
        run_record = get_run(self.session.thread_id, self._root)
        if isinstance(run_record, ToolError):
            return None
        return run_record

    def _resume(self, kept: ListedRun) -> str | None:
        """The command that goes on with the run; None where it has given its answer."""
        if kept.resumable:
            return resume_command(kept.run_id, self._root)
        return None

    def _answer(self, asked: Asked) -> Mapping[str, Any] | str:
        if self._signals.stopping:
            return "stop"

        edit = partial(in_editor, self.setup.environment)
        width = shutil.get_terminal_size((80, 24)).columns

        try:
            keys = self.setup.ask_key
            return ask_person(asked.request, self._display.err, self.setup.ask, edit, read_key=keys, width=width)
        except KeyboardInterrupt:
            self._display.err.line("")  # the question stands in this line, and the terminal's ^C
            raise

    async def _show(self, events: AsyncGenerator[Event, None]) -> Asked | None:
        last: Event | None = None

        with self._signals.draining(), self._status.shown() if self._status else nullcontext():
            async with aclosing(events):  # where nobody reads any more, the run ends here, in order
                async for event in events:
                    if self._status is not None:
                        self._status.note(event)

                    if self._display.json_lines and not isinstance(event, Ended):  # which is told with the result
                        self._display.out.line(as_json(event_as_map(event, self.session.scrub)))

                    self._view.show(event)
                    last = event

        return last if isinstance(last, Asked) else None

    def _show_first_line(self, *, resumed: bool = False) -> None:
        """Name the run that is `resumed`, the model, the limits and the sandbox in the first line of a session."""
        if self._begun:
            return

        self._begun = True

        context = self.context
        facts = []
        if resumed and (record := self._kept()) and record.resumable:
            facts.append(f"resumes run {short_id(record.run_id)} ({one_line(record.task, 60)})")

        if "model" not in self.setup.session_options:  # a program's own needs no name
            facts.append(_model_words(context, self.setup.environment))

        if context.evidence or context.checks or context.allowed_programs:
            sandbox = choose_sandbox(context.sandbox)
            if not isinstance(sandbox, ToolError):  # a run without one says later what it lacks
                facts.append(f"programs run in the sandbox {sandbox.name}")

        if any(facts):
            self._display.err.line(f"mendgraph: {'; '.join(filter(None, facts))}", "dim")

    def _show_end(self, result: RunResult, published: Published | None = None) -> None:
        outcome = result.outcome

        if self._display.as_json:
            record = self._kept()
            resume = self._resume(record) if record else None
            used = {**self._view.account.as_map(), "refused": self._view.refused}
            result_map = result_object(result, used, self._log(), resume)
            result_map |= dict(zip(Published._fields, published[:3], strict=False)) if published else {}
            self._display.write_object("ended", {"result": result_map} if self._display.json_lines else result_map)

            return

        if (record := self._kept()) and (on := self._resume(record)):  # an advised command is that of this run
            advice = outcome.how_to_go_on.replace("mendgraph resume", on)
            run = short_id(record.run_id)
            message = outcome.message.replace(f"mendgraph apply {run}", command_line(self._root, "apply", run))
            outcome = outcome.model_copy(update={"how_to_go_on": advice, "message": message})

        self._view.answer(outcome.answer)
        self._view.lines(*[Line("")] * bool(result.diffs), *diff_lines(result.diffs))
        self._view.lines(*outcome_lines(outcome), *usage_lines(outcome.usage, self._api, self._view.account))
        self._view.lines(*[Line(one_line(published.said, 1_000))] if published else [])

    def _log(self) -> str | None:
        path = os.path.join(run_folder_path(self.session.thread_id), FILE_NAME)
        if self.context.audit and os.path.isfile(path):
            return path
        return None

    def _show_log(self) -> None:
        log = self._log() if self._display.debug else None
        if log is not None:
            self._display.err.line(f"log: {log}")

    def _show_stopping(self) -> None:
        with suppress(OSError):  # where nobody reads any more, the next event finds that out
            self._view.end_reply()
            again = f"{self._signals.last} again to stop at once"
            self._display.err.line(f"mendgraph: stopping after the running step; {again}")

    def _show_interruption(self, code: ExitCode) -> None:
        self._view.end_reply()
        files = ", ".join(dict.fromkeys(change.path for change in self._view.changes))
        done = f"; changed before that: {files}" if files else ""
        record = self._kept()

        if record:
            resume = self._resume(record)
        else:
            resume = resume_command(self.session.thread_id, self._root)

        on = f"; go on with: {resume}" if resume else ""
        message = f"stopped {by_whom(self._signals.last)}{done}{on}"
        self._display.err.line(f"mendgraph: {message}")

        if self._display.as_json:
            self._display.write_object("error", {"error": {"code": code.name.lower(), "message": message}})


def _view(setup: Setup) -> RunView:
    tools = frozenset(tool.name for tool in default_tools())
    blocks = edits_in_blocks(setup.context, setup.environment, own_model="model" in setup.session_options)
    return RunView(setup.display, VisibleText(tools, blocks=blocks), setup.context.workspace)


def _model_words(context: AgentContext, environment: Mapping[str, str]) -> str:
    """The model and its limits; "" where the settings name none that can be used, which the run itself says."""
    endpoint = find_endpoint(context.model, context.base_url, environment)
    if not isinstance(endpoint, Endpoint):
        return ""

    if endpoint.full_name:
        name = f"model {endpoint.full_name}"
    else:
        name = "the model of the endpoint"

    if endpoint.embedded:
        name = f"the embedded model {embedded_weights().model}"

    calls = context.max_calls_per_turn
    tokens = context.max_input_tokens_per_session
    return one_line(f"{name}, at most {calls:,} calls and {tokens:,} input tokens")


def let_tools_tidy_up() -> None:
    """A call that nobody waits for any more may change nothing; a command takes its processes and its traces away."""
    for thread in threading.enumerate():
        if thread.name == TOOL_THREAD:
            thread.join(TIDY_UP_S)


def edits_in_blocks(context: AgentContext, environment: Mapping[str, str], *, own_model: bool = False) -> bool:
    """Whether the model of this run is asked for edits as fenced blocks, so that they are hidden from the text.

    `own_model`: a program has handed over its chat model.
    """
    endpoint = find_endpoint(context.model, context.base_url, environment)
    if own_model or not isinstance(endpoint, Endpoint):
        return context.profile(embedded=False, model=context.model or "").edit_form is EditForm.BLOCKS

    if endpoint.embedded:
        name = embedded_weights().model
    else:
        name = endpoint.model

    return context.profile(endpoint.embedded, name).edit_form is EditForm.BLOCKS
