"""The turns of a session at the terminal. Imported when a run starts.

The session runs in an event loop, where a model call can be cancelled: a thread that waits for an endpoint cannot.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager, nullcontext, suppress
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
    """SIGTERM where Ctrl-C would raise KeyboardInterrupt: at a prompt, or the second time."""


class Signals:
    """Handles signals inside of `handled`. Ignored signals stay ignored.

    `stop` is called in the signal handler with the words for who stops the turn; `tell` is called in the event loop to
    announce that the turn is ending. Outside of `draining` a signal raises KeyboardInterrupt or `Terminated`.
    """

    def __init__(self, stop: Callable[[str], None], tell: Callable[[], None]) -> None:
        self._stop = stop
        self._tell = tell
        self.last = SIGNALS[signal.SIGINT]
        self.terminated = False
        self.stopping = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Inside, SIGTERM acts as Ctrl-C does. Afterwards the previous handlers are restored."""
        before = install({signal.SIGTERM: self._end_at_once})
        try:
            yield
        finally:
            install(before)

    def begin(self) -> None:
        """Begin a turn, which is not to stop."""
        self.last = SIGNALS[signal.SIGINT]
        self.stopping = False

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Inside, in a task of the main thread's event loop, the first signal of a turn stops it after its step.

        The second one cancels the task. If it does not end, because something blocks the event loop, the process ends.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        alarm: dict[int, Any] = {}

        def handle(number: int, _: FrameType | None) -> None:
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

        before = install(dict.fromkeys(SIGNALS, handle))
        try:
            yield
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)

            install({**before, **alarm})

    def _leave(self, _: int, __: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # it may have interrupted a line that is being written
            sys.stderr.write(f"mendgraph: stopped {by_whom(self.last)}; go on with: mendgraph resume\n")

        leave_at_once(self.exit_code())

    def _end_at_once(self, number: int, _: FrameType | None) -> None:
        self._note(number)
        if number == signal.SIGTERM:
            raise Terminated

        raise KeyboardInterrupt

    def exit_code(self) -> ExitCode:
        """The exit code of what a signal has ended."""
        if self.terminated:
            return ExitCode.TERMINATED

        return ExitCode.INTERRUPTED

    def _note(self, number: int) -> None:
        self.last = SIGNALS[number]
        self.terminated = self.terminated or number == signal.SIGTERM


TOOL_THREAD: Final = "tool"
"""The name of the threads of tool calls (`nodes.execute_tools.files.deadline`)."""

TIDY_UP_S: Final = 0.5
"""Seconds that a cancelled call of a tool may take to end. Commands check every 50 ms."""


@dataclass(frozen=True)
class Setup:
    """The parts of a run at the terminal.

    `next_line` reads a chat's requests; `ask` reads a person's lines about approvals, None without a person, and
    `ask_key` the keys that answer.
    `session_options` are further arguments of `Session`; `unattended` is the worktree of an unattended task.
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
    """Work on one task and show its outcome."""
    with Turns(setup) as turns:
        return turns.show_run(turns.take(request))


def resume_once(setup: Setup, *, anew: bool = False) -> ExitCode:
    """Resume the thread that `session_options` name, and show its outcome; `anew`: in a new turn, by its options."""
    unattended = taken_up(setup.context.workspace)
    if unattended is not None and not setup.session_options["thread_id"].startswith(unattended.run):
        unattended = None  # another run works in its worktree

    with Turns(replace(setup, unattended=unattended)) as turns:
        return turns.show_run(turns.take_up(anew=anew))


class Turns:
    """The turns of one session, shown on the display. A context manager: it closes what the session opened."""

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
        """Install signal handlers, and return the turns."""
        self._closing.enter_context(self._signals.handled())
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
        """The settings of the turns."""
        return self.session.context

    def use(self, context: AgentContext, *, anew: bool = False) -> None:
        """Continue with this context, in the same thread or `anew` in a new one. The session releases its lock."""
        options = {**self.setup.session_options, "thread_id": self.session.thread_id}
        if anew:
            options["thread_id"] = None

        self.setup = replace(self.setup, context=context, session_options=options)
        self._runner.run(self.session.aclose())
        self.session = Session(context, **options)
        account = self._view.account
        self._view = _view(self.setup)
        if not anew:
            self._view.account = account

    def take(self, request: str) -> ExitCode:
        """Work on one request and show its outcome.

        Ctrl-C and SIGTERM end the turn after its running step, the second of them at once; the session can take the
        next request.
        """
        return self._take(self.session.astream(request))

    def take_up(self, *, anew: bool = False) -> ExitCode:
        """Resume the turn that was interrupted or stopped, or with `anew` its task in a new turn; see `take`."""
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
            code = self._signals.exit_code()
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
        request = unattended.request
        record = self._record()
        usage = result.outcome.usage
        models = dict.fromkeys(payment.model for payment in self._view.account.paid)
        message = self.session.scrub(commit_message(request.task, result, [*models]))
        files = result.changed_files
        if record:
            files = record.files  # of all turns

        checked = result.outcome.verified.kind in {"passed", "indistinct"} or not self.context.require_checks
        published = unattended.publish(files, finished=result.ok, checked=checked, message=message)

        if request.report:
            model = []
            if self.context.model:
                model = ["--model", self.context.model]

            lines = (*usage_lines(usage, self._api, self._view.account), *usage_block(usage, self._api))
            report = pull_request(request.task, unattended.copy.base, model, result, files, lines)
            report = self.session.scrub(report)

            if request.report == "-":
                sys.stdout.write(report)
            else:
                folder, name = os.path.split(os.path.abspath(request.report))
                try:
                    write_file(unwrap(check_workspace(folder)), name, report.encode(errors="replace"), force=True)
                except RefusedError as refusal:  # the outcome is shown as well
                    problem = ToolError(code=ToolErrorCode.IO_ERROR, message=f"No report: {refusal.message}")
                    return published._replace(problem=published.problem or problem)

        return published

    def usage(self) -> tuple[Mapping[str, Any], list[Line]]:
        """The usage of the session: counters, and lines for a person."""
        usage = self.session.usage()
        cost = cost_words(usage.get("cost_usd"), self._view.account.unpriced)
        costs = [Line(f"  Cost: {words.removeprefix('cost ')}") for words in cost]

        return usage, [Line(""), *usage_block(usage, self._api), *costs]

    def show_run(self, code: ExitCode) -> ExitCode:
        """Show the run's id and the command that continues it, unless `take` has shown it; returns the code."""
        if code not in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} and not self._display.as_json:
            self._show_last(chat=False)

        return code

    def show_chat(self) -> None:
        """Show the usage of the chat, the run's id and the command that continues it."""
        if not self._display.as_json:
            self._view.lines(*self.usage()[1])
            self._show_last(chat=True)

    def _show_last(self, *, chat: bool) -> None:
        record = self._record()
        if record is None:
            return

        if chat:
            command: str | None = chat_command(record.run_id, self._root)
        else:
            command = self._resume(record)

        words = f"mendgraph: run {short_id(record.run_id)}"
        if command:
            words += f"; go on with: {command}"

        self._display.err.line(words)

    def _used_before(self) -> Mapping[str, Any]:
        """The usage of the session; {} where it cannot be read, which the turn reports."""
        with suppress(StoreError):
            return self.session.usage()

        return {}

    def _stop(self, by: str) -> None:
        self.session.stop(by)  # the current session: see `use`

    def _record(self) -> ListedRun | None:
        run_record = get_run(self.session.thread_id, self._root)
        if isinstance(run_record, ToolError):
            return None
        return run_record

    def _resume(self, record: ListedRun) -> str | None:
        """The command that resumes the run; None where it has answered."""
        if record.resumable:
            return resume_command(record.run_id, self._root)

        return None

    def _answer(self, approval: Asked) -> Mapping[str, Any] | str:
        if self._signals.stopping:
            return "stop"

        edit = partial(in_editor, self.setup.environment)
        width = shutil.get_terminal_size((80, 24)).columns

        try:
            keys = self.setup.ask_key
            return ask_person(approval.request, self._display.err, self.setup.ask, edit, read_key=keys, width=width)
        except KeyboardInterrupt:
            self._display.err.line("")  # the question stands in this line, and the terminal's ^C
            raise

    async def _show(self, events: AsyncGenerator[Event, None]) -> Asked | None:
        last: Event | None = None

        status: AbstractContextManager[None] = nullcontext()
        if self._status:
            status = self._status.visible()

        with self._signals.draining(), status:
            async with aclosing(events):  # a closed output ends the run as well
                async for event in events:
                    if self._status is not None:
                        self._status.note(event)

                    if self._display.json_lines and not isinstance(event, Ended):  # it is written with the result
                        self._display.out.line(as_json(event_as_map(event, self.session.scrub)))

                    self._view.show(event)
                    last = event

        if isinstance(last, Asked):
            return last

        return None

    def _show_first_line(self, *, resumed: bool = False) -> None:
        """Name the run that is `resumed`, the model, the limits and the sandbox in the first line of a session."""
        if self._begun:
            return

        self._begun = True

        context = self.context
        facts = []
        if resumed and (record := self._record()) and record.resumable:
            facts.append(f"resumes run {short_id(record.run_id)} ({one_line(record.task, 60)})")

        if "model" not in self.setup.session_options:  # not the chat model of a program
            facts.append(_model_words(context, self.setup.environment))

        if context.evidence or context.checks or context.allowed_programs:
            sandbox = choose_sandbox(context.sandbox)
            if not isinstance(sandbox, ToolError):  # a run without one says later what it lacks
                facts.append(f"programs run in the sandbox {sandbox.name}")

        facts = [fact for fact in facts if fact]
        if facts:
            self._display.err.line(f"mendgraph: {'; '.join(facts)}", "dim")

    def _show_end(self, result: RunResult, published: Published | None = None) -> None:
        outcome = result.outcome

        if self._display.as_json:
            self._write_result(result, published)
            return

        if (record := self._record()) and (on := self._resume(record)):  # an advised command is that of this run
            advice = outcome.how_to_go_on.replace("mendgraph resume", on)
            run = short_id(record.run_id)
            message = outcome.message.replace(f"mendgraph apply {run}", command_line(self._root, "apply", run))
            outcome = outcome.model_copy(update={"how_to_go_on": advice, "message": message})

        self._view.answer(outcome.answer)
        if result.diffs:
            self._view.lines(Line(""), *diff_lines(result.diffs))

        self._view.lines(*outcome_lines(outcome), *usage_lines(outcome.usage, self._api, self._view.account))
        if published:
            self._view.lines(Line(one_line(published.words, 1_000)))

    def _write_result(self, result: RunResult, published: Published | None) -> None:
        """Write the result as an object for programs."""
        resume = None
        record = self._record()
        if record:
            resume = self._resume(record)

        account = {**self._view.account.as_map(), "refused": self._view.refused}
        value = result_object(result, account, self._log(), resume)
        if published:
            value |= dict(zip(Published._fields, published[:3], strict=False))

        if self._display.json_lines:
            value = {"result": value}

        self._display.write_object("ended", value)

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
        with suppress(OSError):  # the output is closed, which ends the run at the next event
            self._view.end_reply()
            again = f"{self._signals.last} again to stop at once"
            self._display.err.line(f"mendgraph: stopping after the running step; {again}")

    def _show_interruption(self, code: ExitCode) -> None:
        self._view.end_reply()
        files = ", ".join(dict.fromkeys(change.path for change in self._view.changes))
        message = f"stopped {by_whom(self._signals.last)}"
        if files:
            message += f"; changed before that: {files}"

        record = self._record()

        if record:
            resume = self._resume(record)
        else:
            resume = resume_command(self.session.thread_id, self._root)

        if resume:
            message += f"; go on with: {resume}"

        self._display.err.line(f"mendgraph: {message}")

        if self._display.as_json:
            self._display.write_object("error", {"error": {"code": code.name.lower(), "message": message}})


def _view(setup: Setup) -> RunView:
    tools = frozenset(tool.name for tool in default_tools())
    blocks = edits_in_blocks(setup.context, setup.environment, own_model="model" in setup.session_options)
    return RunView(setup.display, VisibleText(tools, blocks=blocks), setup.context.workspace)


def _model_words(context: AgentContext, environment: Mapping[str, str]) -> str:
    """The model and its limits; "" where the settings name no usable model, which the run reports."""
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
    """Wait for abandoned calls of tools: a command kills its processes and removes its files."""
    for thread in threading.enumerate():
        if thread.name == TOOL_THREAD:
            thread.join(TIDY_UP_S)


def edits_in_blocks(context: AgentContext, environment: Mapping[str, str], *, own_model: bool = False) -> bool:
    """Whether the model of this run writes edits as fenced blocks, which are hidden from the text.

    `own_model`: a program passes its chat model.
    """
    endpoint = find_endpoint(context.model, context.base_url, environment)
    if own_model or not isinstance(endpoint, Endpoint):
        return context.profile(embedded=False, model=context.model or "").edit_form is EditForm.BLOCKS

    if endpoint.embedded:
        name = embedded_weights().model
    else:
        name = endpoint.model

    return context.profile(endpoint.embedded, name).edit_form is EditForm.BLOCKS
