"""What the terminal does with a session: one task, or a chat of many turns. Imported when a run starts.

The session runs in an event loop, because only there Ctrl-C ends a model call at once: a thread that waits for an
endpoint cannot be interrupted.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from graph.context import AgentContext
from graph.events import Asked, Event
from graph.run import RunResult, Session
from graph.terminal.approval import ReadLine, ask_person
from graph.terminal.combined_diff import combined_diffs
from graph.terminal.ending import Line, diff_lines, error_as_json, outcome_lines, result_as_json, usage_lines
from graph.terminal.exit_codes import ExitCode, exit_code_of
from graph.terminal.screen import Display, RunView
from graph.terminal.visible_text import VisibleText
from nodes.call_model.budget import APIUsageStats, format_usage_stats
from nodes.call_model.endpoint import Endpoint, find_endpoint
from nodes.execute_tools.environment.workspace import FileContent, Workspace
from nodes.execute_tools.tools import default_tools
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from nodes.guard.policy import judge_path
from nodes.records import EditForm


@dataclass(frozen=True)
class Setup:
    """What a run at the terminal needs.

    `next_line` reads a chat's requests; `ask` reads a person's approvals, None where there is nobody to ask.
    `find_log` gives the path of a thread's log, None where there is none. `session_options` are further arguments of
    `Session`.
    """

    context: AgentContext
    display: Display
    next_line: ReadLine
    ask: ReadLine | None = None
    find_log: Callable[[str], str | None] = lambda _: None
    environment: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, Any] = field(default_factory=dict)


def run_once(setup: Setup, request: str) -> ExitCode:
    """Work on one task and show its end."""
    with Turns(setup) as turns:
        return turns.take(request)


def chat(setup: Setup) -> ExitCode:
    """Take requests until the input ends or Ctrl-C at the prompt; then show the usage. Source: spec 1 section 6."""
    prompt = "" if setup.display.as_json else "You: "
    with Turns(setup) as turns:
        while True:
            try:
                request = setup.next_line(prompt)
            except (EOFError, KeyboardInterrupt):
                break
            if request.strip():
                turns.take(request)
        turns.show_usage()
    return ExitCode.FINISHED


class Turns:
    """The turns of one session, shown as they go. Use it as a context manager: it closes what the session opened."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._display = setup.display
        tools = frozenset(tool.name for tool in default_tools())
        visible = VisibleText(tools, blocks=edits_in_blocks(setup))
        self._view = RunView(setup.display, visible, setup.context.workspace)
        self._read_file = partial(_read, setup.context.workspace)
        self._session = Session(setup.context, **setup.session_options)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        """Return the turns."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session and its event loop."""
        try:
            self._runner.run(self._session.aclose())
        finally:
            self._runner.close()

    def take(self, request: str) -> ExitCode:
        """Work on one request and show its end. Ctrl-C ends the turn; the session can take the next request."""
        self._view.begin()
        try:
            result = self._work_on(request)
        except KeyboardInterrupt:
            self._show_interruption()
            self._show_log()
            return ExitCode.INTERRUPTED
        self._show_end(result)
        self._show_log()
        return exit_code_of(result.outcome.kind)

    def show_usage(self) -> None:
        """What the session has used."""
        if not self._display.as_json:
            used = self._session.usage()
            usage = APIUsageStats(*(used[name] for name in APIUsageStats._fields))
            self._view.lines(Line(""), Line(format_usage_stats(usage, self._setup.context.limits().api)))

    def _work_on(self, request: str) -> RunResult:
        asked = self._runner.run(self._show(self._session.astream(request)))
        while asked is not None:
            scrub = self._session.scrub
            answer = ask_person(asked.request, self._display.err, self._setup.ask, self._read_file, scrub)
            asked = self._runner.run(self._show(self._session.aanswer(answer)))
        return self._session.result()

    async def _show(self, events: AsyncIterator[Event]) -> Asked | None:
        """Show all events; the question, if they end in one."""
        last: Event | None = None
        async for event in events:
            self._view.show(event)
            last = event
        return last if isinstance(last, Asked) else None

    def _show_end(self, result: RunResult) -> None:
        outcome = result.outcome
        if self._display.as_json:
            shown = result_as_json(outcome, result.changes, result.plan, result.thread_id, self._log())
            self._view.lines(Line(shown))
            return
        self._view.answer(outcome.answer)
        diffs = [self._session.scrub(diff) for diff in combined_diffs(result.changes, self._read_file)]
        self._view.lines(*[Line("")] * bool(diffs), *diff_lines(diffs))
        self._view.lines(*outcome_lines(outcome), *usage_lines(outcome.usage, self._setup.context.limits().api))

    def _log(self) -> str | None:
        return self._setup.find_log(self._session.thread_id) if self._setup.context.audit else None

    def _show_log(self) -> None:
        log = self._log() if self._display.debug else None
        if log is not None:
            self._display.err.line(f"log: {log}")

    def _show_interruption(self) -> None:
        self._view.end_reply()
        changed = ", ".join(dict.fromkeys(change.path for change in self._view.changes))
        message = f"stopped by Ctrl-C; changed before that: {changed}" if changed else "stopped by Ctrl-C"
        self._display.err.line(f"mendgraph: {message}")
        if self._display.as_json:
            self._view.lines(Line(error_as_json("interrupted", message)))


def edits_in_blocks(setup: Setup) -> bool:
    """Whether the model of this run is asked for edits as fenced blocks, so that they are hidden from the text."""
    endpoint = find_endpoint(setup.context.model, setup.context.base_url, setup.environment)
    embedded = "model" not in setup.session_options and isinstance(endpoint, Endpoint) and endpoint.embedded
    return setup.context.profile(embedded).edit_form is EditForm.BLOCKS


def _read(root: str, path: str) -> bytes | None:
    """The bytes of a file of the workspace, as the tools may see them."""
    content = Workspace(root, partial(judge_path, rules=DEFAULT_GUARDRAIL_RULES)).read_file(path)
    return content.data if isinstance(content, FileContent) else None
