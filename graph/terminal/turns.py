"""The turns of a session at the terminal. Imported when a run starts.

The session runs in an event loop, where a model call can be cancelled: a thread that waits for an endpoint cannot.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.unattended import PublishResult, UnattendedTask, find_unattended
from mendgraph.graph.machine.begin_turn import lasting_raises
from mendgraph.graph.machine.run_records import CARRY_OUT, RETRIED
from mendgraph.graph.runs.events import Asked, Ended, Event, OfChild, Text, Traced
from mendgraph.graph.runs.images import Image
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.graph.runs.run_words import chat_command, command_line, resume_command
from mendgraph.graph.runs.runs import ListedRun, RunState, get_run, run_raises
from mendgraph.graph.terminal.approval import ReadLine, ask_person, in_editor
from mendgraph.graph.terminal.json_output import event_as_map, result_object
from mendgraph.graph.terminal.outcome_lines import cost_words, diff_lines, outcome_lines, usage_block, usage_lines
from mendgraph.graph.terminal.output import Line, as_json
from mendgraph.graph.terminal.process_end import ExitCode, Signals, by_whom, exit_code_of
from mendgraph.graph.terminal.run_view import Account, RunView
from mendgraph.graph.terminal.screen import Display, RunScreen
from mendgraph.graph.terminal.status_line import TypedWords
from mendgraph.graph.terminal.unattended_output import publish
from mendgraph.graph.terminal.visible_text import VisibleText, edits_in_blocks
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.language.display import one_line, short_id
from mendgraph.nodes.language.prompt_files import with_hook_words
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.sandboxes.backends import choose_sandbox
from mendgraph.nodes.workspace.store.audit_log import FILE_NAME
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import run_folder_path

if TYPE_CHECKING:
    from mendgraph.graph.hooks.shell_hooks import ShellHooks
    from mendgraph.graph.runs.server_prompts import ServerPrompts

TOOL_THREAD: Final = "tool"
"""The name of the threads of tool calls (`nodes.workspace.files.deadline`)."""

MOST_STOP_HOOKS: Final = 2
"""Further turns that hooks of the end of a turn may ask for after the first."""

_GO_ON: Final = "A hook of the project finds that the work is not done."

CLEANUP_S: Final = 0.5
"""Seconds that a cancelled tool call may take to end. Commands check every 50 ms."""


@dataclass(frozen=True)
class Setup:
    """The parts of a run at the terminal.

    `next_line` reads a chat's requests; `ask` reads a person's lines about approvals, None without a person, and
    `ask_key` the keys that answer; `terminal` is the descriptor on which they type while a turn runs. `session_options`
    are further arguments of `Session`; `unattended` is the worktree of an unattended task; `prompts` are those of the
    MCP servers.
    """

    context: AgentContext
    display: Display
    next_line: ReadLine
    ask: ReadLine | None = None
    ask_key: ReadLine | None = None
    terminal: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, Any] = field(default_factory=dict)
    unattended: UnattendedTask | None = None
    prompts: "ServerPrompts | None" = None

    def visible_text(self) -> VisibleText:
        """The filter for the prose of this run's model."""
        tools = frozenset(tool.name for tool in self.session_options.get("tools", default_tools()))
        blocks = edits_in_blocks(self.context, self.environment, own_model="model" in self.session_options)
        return VisibleText(tools, blocks=blocks)


def run_once(setup: Setup, request: str, images: Sequence[Image] = ()) -> ExitCode:
    """Work on one task and show its outcome."""
    with Turns(setup) as turns:
        code = turns.carry_out_plan(turns.take(request, images))
        return turns.show_run(code)


def resume_once(setup: Setup, *, anew: bool = False) -> ExitCode:
    """Resume the thread that `session_options` name, and show its outcome; `anew`: in a new turn, with its options."""
    unattended = find_unattended(setup.context.workspace)
    if unattended is not None and not setup.session_options["thread_id"].startswith(unattended.run_prefix):
        unattended = None  # another run works in its worktree

    with Turns(replace(setup, unattended=unattended)) as turns:
        code = turns.carry_out_plan(turns.take_up(anew=anew))
        return turns.show_run(code)


class Turns:
    """The turns of one session, shown on the display. A context manager: it closes what the session opened."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._display = setup.display
        self._api = setup.context.limits().api
        self._root = setup.context.workspace
        self._view = RunView(setup.visible_text())
        self._screen = RunScreen(setup.display, self._view)
        self.session = Session(setup.context, **setup.session_options)
        self._runner = asyncio.Runner()
        self._closing = ExitStack()
        self._signals = Signals(self._stop, self._show_stopping)
        self._first_line_shown = False
        self._session_started = False
        self._typed: TypedWords | None = None
        if setup.terminal is not None and setup.display.live is not None:
            self._typed = setup.display.live.typed = TypedWords(setup.terminal, self._add_message)

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
        """Whether SIGTERM told the process to end."""
        return self._signals.terminated

    @property
    def context(self) -> AgentContext:
        """The settings of the turns."""
        return self.session.context

    @property
    def account(self) -> Account:
        """The model calls of the last turn."""
        return self._view.account

    def use(self, context: AgentContext, *, anew: bool = False) -> None:
        """Continue with this context, in the same thread or `anew` in a new one. The session releases its lock."""
        self._keep_unread()
        options = {**self.setup.session_options, "thread_id": self.session.thread_id}
        if anew:
            options["thread_id"] = None
            self._view.account.unpriced.clear()

        self.setup = replace(self.setup, context=context, session_options=options)
        self._runner.run(self.session.aclose())
        self.session = Session(context, **options)
        self._view.visible = self.setup.visible_text()

    def take(self, request: str, images: Sequence[Image] = ()) -> ExitCode:
        """Work on one request with its images, and show its outcome.

        Ctrl-C and SIGTERM end the turn after its running step, the second of them at once; the session can take the
        next request.
        """
        if self.context.hooks == "off":
            return self._follow(self.session.astream(request, images=images))

        try:
            return self._take_with_hooks(request, images)
        except KeyboardInterrupt:  # while a hook was running
            code = self._signals.exit_code
            self._show_error(code.name.lower(), f"stopped {by_whom(self._signals.last)} in a hook")
            return code

    def _take_with_hooks(self, request: str, images: Sequence[Image]) -> ExitCode:
        """Work on one request with the hooks at its beginning and end, which add words or block it."""
        hooks = self._open_hooks()
        answer = hooks.of_turn("UserPromptSubmit", prompt=request)
        if answer.blocks:
            message = one_line(f"A hook blocks this request: {answer.blocks}", 1_000)
            self._show_error(ToolErrorCode.PERMISSION_DENIED, message)
            return ExitCode.USAGE_ERROR

        if not self._session_started:
            self._session_started = True
            request = with_hook_words(request, "SessionStart", hooks.of_turn("SessionStart", source="startup").words)

        request = with_hook_words(request, "UserPromptSubmit", answer.words)
        code = self._follow(self.session.astream(request, images=images))
        for is_again in (False, *[True] * MOST_STOP_HOOKS):
            if code is not ExitCode.FINISHED or self.setup.unattended is not None:
                break

            answer = hooks.of_turn("Stop", stop_hook_active=is_again)
            if not answer.blocks:
                break

            code = self._follow(self.session.astream(with_hook_words(_GO_ON, "Stop", answer.blocks)))

        return code

    def _open_hooks(self) -> "ShellHooks":
        """Return the hooks of a turn: they need no tools, and the session's secrets are removed from their words."""
        from mendgraph.graph.machine.machine_tools import MachineTools
        from mendgraph.graph.machine.tool_step import open_hooks
        from mendgraph.graph.machine.turn_tools import TurnTools

        def tell(message: str) -> None:
            self._display.err.line(f"mendgraph: {one_line(message, 1_000)}")

        turn = TurnTools(MachineTools({"tools": ()}), self.context)
        return replace(open_hooks(turn, self.session.thread_id, tell), redact=self.session.scrub)

    def take_up(self, *, anew: bool = False) -> ExitCode:
        """Resume the turn that was interrupted or stopped, or with `anew` its task in a new turn; see `take`."""
        self._show_first_line(resumed=True, anew=anew)
        return self._follow(self.session.aresume(anew=anew), resumed=not anew)

    def carry_out_plan(self, code: ExitCode) -> ExitCode:
        """Carry out the plan of a turn that ended with this code, if it is one and a person says yes."""
        if self.context.mode != "plan" or code is not ExitCode.FINISHED or self.setup.ask is None:
            return code

        mode = _mode_to_carry_out(self.setup.ask_key or self.setup.ask)
        if not mode:
            return code

        self.use(self.context.model_copy(update={"mode": mode}))
        return self.take(CARRY_OUT)

    def _follow(self, events: AsyncGenerator[Event, None], *, resumed: bool = False) -> ExitCode:
        self._begin_turn(resumed=resumed)

        try:
            approval = self._runner.run(self._show(events))
            while approval is not None:
                approval = self._runner.run(self._show(self.session.aanswer(self._decide(approval))))
        except (KeyboardInterrupt, asyncio.CancelledError):  # by the second signal
            self._show_interruption()
            self._show_log()
            let_tools_clean_up()

            self._keep_unread()
            return self._signals.exit_code

        code = self._end_turn()
        if self._signals.stopping:
            self._keep_unread()

        unread = self.session.unread_messages()
        if unread:
            return self.take("\n\n".join(unread))

        return code

    def _add_message(self, text: str) -> None:
        self._display.out.line(f"> {one_line(text, 1_000)}", "bold")
        self.session.add_message(text)

    def _keep_unread(self) -> None:
        """Keep what was typed for the next prompt: a person who stops the turn may want to change it."""
        unread = self.session.unread_messages()
        if self._typed is not None:
            self._typed.text = " ".join([*unread, self._typed.text]).strip()

    def unsent(self) -> str:
        """Return and forget what was typed during the last turn and not sent."""
        if self._typed is None:
            return ""

        text = self._typed.text
        self._typed.text = ""
        return text.strip()

    def compact(self) -> str:
        """Summarise the conversation now; return why that is not possible, "" if it is done."""
        self._begin_turn()
        problem: list[str] = []

        async def events() -> AsyncGenerator[Event, None]:
            async with aclosing(self.session.acompact()) as compacting:
                async for event in compacting:
                    if isinstance(event, Ended):
                        problem.append(event.outcome.message)
                    else:
                        yield event

        try:
            self._runner.run(self._show(events()))
        except (KeyboardInterrupt, asyncio.CancelledError):
            problem.append(f"Stopped {by_whom(self._signals.last)}.")

        self._keep_unread()
        return "".join(problem)

    def _begin_turn(self, *, resumed: bool = False) -> None:
        self._view.begin_turn()
        self._signals.begin_turn()
        self._show_first_line()

        if self._display.live is not None:
            usage: Mapping[str, Any] = {}
            with suppress(StoreError):  # the turn reports it
                usage = self.session.usage()

            self._display.live.begin_turn(self._view, usage, resumed=resumed)

    async def _show(self, events: AsyncGenerator[Event, None]) -> Asked | None:
        """Show the events until they end; return the request for approval that ended them, if any."""
        event: Event | None = None
        status: AbstractContextManager[None] = nullcontext()
        if self._display.live is not None:
            status = self._display.live.visible()

        with self._signals.draining(), status, self._typed.reading() if self._typed else nullcontext():
            async with aclosing(events):  # a closed output ends the run as well
                async for event in events:
                    self._write_event(event)
                    self._screen.show(event)
                    if isinstance(event, Traced) and event.name == "limits.raised":
                        self._show_limits(event.payload["limits"])

        if isinstance(event, Asked):
            return event

        return None

    def _show_limits(self, raised: Mapping[str, float]) -> None:
        """Show usage against the limits that a person has raised."""
        limits = self.context.model_copy(update=dict(raised)).limits()
        self._api = limits.api
        if self._display.live is not None:
            self._display.live.limits = limits

    def _raised_limits(self, *, same_turn: bool) -> Mapping[str, float]:
        """Return the limits of the run that a person has raised, and that hold in the same or in a new turn."""
        record = self._record()
        raised = run_raises(self.session.thread_id, self._root)
        if record is None or isinstance(raised, ToolError):
            return {}
        if not same_turn or not (record.state == "working" or record.reason in RETRIED):
            raised = lasting_raises(raised, self.context)

        return {name: value for name, (_, value) in raised.items()}

    def _write_event(self, event: Event) -> None:
        """Write the event as JSON, for `--json-lines` and `--debug`."""
        display = self._display
        if isinstance(event, Ended):  # the result has it
            return

        inner: Event = event
        while isinstance(inner, OfChild):
            inner = inner.inner

        if display.json_lines and (display.debug or not isinstance(inner, Traced)):
            display.out.line(as_json(event_as_map(event, self.session.scrub)), verbatim=True)
        elif display.debug and not display.json_lines and not isinstance(event, Text):
            display.err.line(as_json(event_as_map(event, self.session.scrub)), verbatim=True)

    def _end_turn(self) -> ExitCode:
        result = self.session.result()
        published = None
        if self.setup.unattended is not None:
            published = publish(self.setup.unattended, self.session, result, self._record(), self._view.account)

        if self._display.as_json:
            self._write_result(result, published)
        else:
            self._show_result(result, published)

        self._show_log()
        if published is not None and published.problem is not None:
            self._display.err.line(f"mendgraph: {one_line(published.problem.message, 1_000)}")
            return ExitCode.SYSTEM_ERROR

        return exit_code_of(result.outcome, require_changes=self.context.require_changes)

    def _show_result(self, result: RunResult, published: PublishResult | None) -> None:
        outcome = result.outcome
        record = self._record()

        if record is not None and record.resumable:  # commands in messages name this run and folder
            resume = resume_command(record.run_id, self._root)
            run = short_id(record.run_id)
            advice = outcome.how_to_go_on.replace("mendgraph resume", resume)
            message = outcome.message.replace(f"mendgraph apply {run}", command_line(self._root, "apply", run))
            outcome = outcome.model_copy(update={"how_to_go_on": advice, "message": message})

        self._screen.answer(outcome.answer)
        if result.diffs:
            self._screen.summary(Line(""), *diff_lines(result.diffs))

        self._screen.summary(*outcome_lines(outcome), *usage_lines(outcome.usage, self._api, self._view.account))
        if published is not None:
            self._screen.summary(Line(one_line(published.message, 1_000)))

    def _write_result(self, result: RunResult, published: PublishResult | None) -> None:
        resume = None
        record = self._record()
        if record is not None and record.resumable:
            resume = resume_command(record.run_id, self._root)
        elif record is not None and self.context.mode == "plan":
            resume = f"{resume_command(record.run_id, self._root)} --mode auto"

        account = {**self._view.account.as_map(), "refused": self._view.refused}
        value = result_object(result, account, self._log(), resume)
        if published is not None:
            value |= {"branch": published.branch, "commit": published.commit, "worktree": published.worktree}

        if self._display.json_lines:
            value = {"result": value}

        self._display.write_object("ended", value)

    def usage(self) -> tuple[Mapping[str, Any], list[Line]]:
        """Return the usage of the session: counters, and lines for a person."""
        usage = self.session.usage()
        cost = cost_words(usage.get("cost_usd"), self._view.account.unpriced)
        costs = [Line(f"  Cost: {words.removeprefix('cost ')}") for words in cost]

        return usage, [Line(""), *usage_block(usage, self._api), *costs]

    def continued_run(self, *, resumed: bool = False) -> str:
        """Return the words for the run that this session continues; "" for a new one, and a finished one to resume."""
        record = None
        if self.setup.session_options.get("thread_id"):
            record = self._record()

        if record is None or (resumed and not record.resumable):
            return ""

        verb = "resumes" if resumed else "continues"
        return f"{verb} run {short_id(record.run_id)} ({one_line(record.task, 60)})"

    @property
    def asks(self) -> bool:
        """Whether the run that this session continues waits for a person."""
        record = self._record()
        return record is not None and record.standing is RunState.ASKS

    def show_run(self, code: ExitCode) -> ExitCode:
        """Show the run's id and the next command for it, unless `take` has shown it; return the code."""
        record = self._record()
        if code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} or self._display.as_json or record is None:
            return code

        text = f"mendgraph: run {short_id(record.run_id)}"
        if record.resumable:
            text += f"; continue with: {resume_command(record.run_id, self._root)}"
        elif self.context.mode == "plan":
            command = resume_command(record.run_id, self._root)
            text += f"; carry out the plan with: {command} --mode auto"
        elif record.files and self.setup.unattended is not None:  # it is no run of the user's folder
            folder = os.path.relpath(self.setup.unattended.copy.source)
            text += f"; report with: {command_line(folder, 'report', short_id(record.run_id))}"
        elif record.files:
            text += f"; undo with: {command_line(self._root, 'undo', short_id(record.run_id))}"

        self._display.err.line(text)
        return code

    def show_chat(self) -> None:
        """Show the usage of the chat, the run's id and the command that continues it."""
        if self._display.as_json:
            return

        if (record := self._record()) is not None:
            self._screen.summary(*self.usage()[1])
            command = chat_command(record.run_id, self._root)
            self._display.err.line(f"mendgraph: run {short_id(record.run_id)}; continue with: {command}")

    def _stop(self, by: str) -> None:
        self.session.stop(by)  # the current session: see `use`

    def _record(self) -> ListedRun | None:
        record = get_run(self.session.thread_id, self._root)
        if isinstance(record, ToolError):
            return None

        return record

    def _decide(self, approval: Asked) -> Mapping[str, Any] | str:
        if self._signals.stopping:
            return "stop"

        edit = partial(in_editor, self.setup.environment)
        width = shutil.get_terminal_size((80, 24)).columns
        keys = self.setup.ask_key

        try:
            return ask_person(approval.request, self._display.err, self.setup.ask, edit, read_key=keys, width=width)
        except KeyboardInterrupt:
            self._display.err.line("")  # the question stands in this line, and the terminal's ^C
            raise

    def _show_first_line(self, *, resumed: bool = False, anew: bool = False) -> None:
        """Name the run that goes on, the model, the mode, the sandbox and the limits, once in a session."""
        if self._first_line_shown:
            return

        self._first_line_shown = True
        context = self.context
        facts = []
        limits = ""

        continued = self.continued_run(resumed=resumed)
        if continued:
            facts.append(continued)
            self._show_limits(self._raised_limits(same_turn=resumed and not anew))

        if "model" not in self.setup.session_options:  # not the chat model of a program
            endpoint = find_endpoint(context.model, context.base_url, self.setup.environment)
            if isinstance(endpoint, Endpoint):  # otherwise the run reports the problem
                facts.append(_model_words(endpoint))
                calls = self._api.max_calls_per_turn
                tokens = self._api.max_input_tokens_per_session
                limits = f"; at most {calls:,} calls and {tokens:,} input tokens"

        facts.append(f"mode {context.mode}")
        if context.evidence or context.checks or context.allowed_programs:
            sandbox = choose_sandbox(context.sandbox)
            if not isinstance(sandbox, ToolError):  # otherwise the run warns
                facts.append(f"sandbox {sandbox.name}")

        self._display.err.line(f"mendgraph: {', '.join(facts)}{limits}", "dim")

    def _log(self) -> str | None:
        path = os.path.join(run_folder_path(self.session.thread_id), FILE_NAME)
        if self.context.audit and os.path.isfile(path):
            return path

        return None

    def _show_log(self) -> None:
        if self._display.debug and (log := self._log()) is not None:
            self._display.err.line(f"log: {log}")

    def _show_stopping(self) -> None:
        with suppress(OSError):  # the output is closed, which ends the run at the next event
            self._screen.end_reply()
            again = f"{self._signals.last} again to stop at once"
            self._display.err.line(f"mendgraph: stopping after the running step; {again}")

    def _show_interruption(self) -> None:
        self._screen.end_reply()
        message = f"stopped {by_whom(self._signals.last)}"
        files = ", ".join(dict.fromkeys(change.path for change in self._view.changes))
        if files:
            message += f"; changed before that: {files}"

        record = self._record()
        if record is None or record.resumable:
            message += f"; continue with: {resume_command(self.session.thread_id, self._root)}"

        self._show_error(self._signals.exit_code.name.lower(), message)

    def _show_error(self, code: str, message: str) -> None:
        self._display.err.line(f"mendgraph: {message}")
        if self._display.as_json:
            self._display.write_object("error", {"error": {"code": code, "message": message}})


def _mode_to_carry_out(read: ReadLine) -> str:
    """Return the mode in which a person lets the plan be carried out, or ""."""
    try:
        answer = read("Carry out this plan? [y]es, [a]sk before each change, [n]o: ")
    except EOFError:
        return ""

    return {"y": "auto", "a": "ask"}.get(answer.strip().lower(), "")


def _model_words(endpoint: Endpoint) -> str:
    if endpoint.embedded:
        return f"embedded model {embedded_weights().model}"
    if endpoint.full_name:
        return one_line(f"model {endpoint.full_name}")

    return one_line(f"the model at {urlsplit(endpoint.base_url).netloc.rpartition('@')[2]}")


def let_tools_clean_up() -> None:
    """Wait for abandoned tool calls: a command kills its processes and removes its files."""
    for thread in threading.enumerate():
        if thread.name == TOOL_THREAD:
            thread.join(CLEANUP_S)
