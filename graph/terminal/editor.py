"""Sessions for an editor, over the Agent Client Protocol: what `mendgraph acp` speaks on its input and output.

A session of the protocol is a thread of ours with the same id, so `mendgraph runs` lists it, and `resume`, `undo` and
`report` take it. Files are reached by the workspace's own handles: of the client's methods only `session/update` and
`session/request_permission` are called, never `fs/*` or `terminal/*`.
"""

import asyncio
import logging
import os
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from acp import PROTOCOL_VERSION, RequestError, helpers, schema, stdio_streams
from acp.agent.connection import AgentSideConnection
from acp.interfaces import Agent, Client

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.mcp_servers import McpSettings
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.configured_servers import session_tools
from mendgraph.graph.runs.events import Asked, CallsRead, Event, Rescued, StepDone, ToolStarted
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import get_run, list_runs, thread_config, with_store
from mendgraph.graph.terminal.approval import Decisions
from mendgraph.graph.terminal.json_output import plain_values
from mendgraph.graph.terminal.outcome_lines import outcome_lines
from mendgraph.graph.terminal.output import Line
from mendgraph.graph.terminal.process_end import GRACE_S, SIGNALS, ExitCode, RefusedError, bug, leave_at_once, unwrap
from mendgraph.graph.terminal.run_view import FinishedCall, Prose, RunView
from mendgraph.graph.terminal.turns import let_tools_clean_up
from mendgraph.graph.terminal.visible_text import VisibleText, edits_in_blocks
from mendgraph.nodes import records
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.local_model import why_unavailable
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.approval_formats import Action, ApprovalAnswer, AskedCall, CallDecision
from mendgraph.nodes.language.display import fenced, inline_code, result_words, target_of
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.workspace.files.sandbox import check_workspace

_KINDS: Final[Mapping[records.Effect, schema.ToolKind]] = {
    records.Effect.READ: "read",
    records.Effect.WRITE: "edit",
    records.Effect.EXECUTE: "execute",
    records.Effect.NETWORK: "fetch",
}
"""The protocol's name for a tool with this effect; other calls are not shown: they write the plan, or answer."""
_MODES: Final = {
    "read-only": "Looks at files and changes none.",
    "plan": "Looks at files, changes none, and answers with a plan.",
    "ask": "Asks you before each change.",
    "auto": "Changes files inside the rules without asking.",
}
_PLAN_STATUS: Final[Mapping[records.PlanStatus, schema.PlanEntryStatus]] = {
    records.PlanStatus.PENDING: "pending",
    records.PlanStatus.IN_PROGRESS: "in_progress",
    records.PlanStatus.DONE: "completed",
}
_LASTING: Final = {
    "approve_prefix": "Always in this session",
    "approve_for_run": "Always in this session",
    "approve_always": "Always in this folder",
}
"""The beginning of the name of an option that allows more than the call."""

_ENDS: Final[Mapping[records.StopReason, schema.StopReason]] = {
    records.StopReason.REFUSED: "refusal",
    records.StopReason.CANCELLED: "cancelled",
    records.StopReason.MAX_INPUT_TOKENS: "max_tokens",
    records.StopReason.MAX_OUTPUT_TOKENS: "max_tokens",
}
_WRONG, _FAILED = -32602, -32603  # what JSON-RPC calls invalid parameters and an internal error
_CLOSE_S: Final = 1.0
_LONGEST_MESSAGE: Final = 50_000_000  # bytes

Update = Any  # one of the protocol's session updates
Servers = Sequence[Any] | None


@dataclass
class _EditorSession:
    """A session between its prompts. `notes` are shown at the next prompt; `servers` are the client's MCP servers."""

    context: AgentContext
    tools: tuple[Tool, ...]
    notes: list[str]
    servers: McpServers
    turn: "_Turn | None" = None

    def modes(self) -> schema.SessionModeState:
        modes = [schema.SessionMode(id=mode, name=mode, description=_MODES[mode]) for mode in _MODES]
        return schema.SessionModeState(current_mode_id=self.context.mode, available_modes=modes)


class EditorAgent:
    """The agent's side of the protocol."""

    def __init__(
        self,
        context_for: Callable[[str], AgentContext],
        settings: Mapping[str, Any],
        durability: Any,
        servers_for: Callable[[str], McpSettings],
    ) -> None:
        """`context_for` returns a folder's settings; `settings` of the command line override those of a loaded run.

        `servers_for` returns the MCP servers of a folder's settings.
        """
        self._context_for = context_for
        self._servers_for = servers_for
        self._settings = settings
        self._durability = durability
        self._sessions: dict[str, _EditorSession] = {}
        self._client: Client

    def on_connect(self, conn: Client) -> None:
        """Set the connection to the client."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:  # noqa: ARG002
        """The capabilities of this agent."""
        can = {
            "loadSession": True,
            "mcpCapabilities": {"http": True},
            "promptCapabilities": {"image": True},
            "sessionCapabilities": {"list": {}},
        }
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="mendgraph", version=version("mendgraph")),
            agent_capabilities=schema.AgentCapabilities.model_validate(can),
        )

    async def new_session(self, cwd: str, mcp_servers: Servers = (), **_: Any) -> schema.NewSessionResponse:
        """Begin a session in the folder `cwd`; an error says what keeps its model from answering."""
        with _protocol_errors():
            root = unwrap(check_workspace(cwd))
            session = await self._open_session(self._context_for(root), mcp_servers or ())

        session_id = uuid4().hex
        self._sessions[session_id] = session
        return schema.NewSessionResponse(session_id=session_id, modes=session.modes())

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Servers = (), **_: Any
    ) -> schema.LoadSessionResponse:
        """Continue a run of the folder; its requests and answers are sent again."""
        self._refuse_at_work(session_id)

        with _protocol_errors():
            root = unwrap(check_workspace(cwd))
            run_record = unwrap(get_run(session_id, root))
            if run_record.run_id != session_id:  # the beginning of an id, which is enough on the command line
                raise RequestError(_WRONG, f"There is no session {session_id!r} in {root}: list those that are there.")

            context = AgentContext(**{**run_record.context.model_dump(), **self._settings, "workspace": root})
            messages = unwrap(with_store(root, partial(_messages, session_id)))
            session = await self._open_session(context, mcp_servers or ())

        if (before := self._sessions.get(session_id)) is not None:
            await asyncio.to_thread(before.servers.close)

        self._sessions[session_id] = session
        visible = _visible_text((tool.name for tool in session.tools), context)

        for message in messages:
            if is_request(message):
                await self._client.session_update(session_id, helpers.update_user_message_text(message.text))
            elif message.type == "ai" and (text := visible.feed(message.text) + visible.end()).strip():
                await self._client.session_update(session_id, helpers.update_agent_message_text(text))

        return schema.LoadSessionResponse(modes=session.modes())

    async def list_sessions(self, cwd: str | None = None, **_: Any) -> schema.ListSessionsResponse:
        """The runs of a folder, the newest first."""
        with _protocol_errors():
            root = unwrap(check_workspace(cwd or "."))
            runs = unwrap(list_runs(root))

        sessions = []
        for run in runs:
            title = run.task[:200]
            sessions.append(schema.SessionInfo(cwd=root, session_id=run.run_id, title=title, updated_at=run.updated))

        return schema.ListSessionsResponse(sessions=sessions)

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> schema.SetSessionModeResponse:
        """Set what the session may do from its next prompt on."""
        session = self._session(session_id)
        if mode_id not in _MODES:
            raise RequestError(_WRONG, f"There is no mode {mode_id!r}: choose one of {', '.join(_MODES)}.")

        session.context = session.context.model_copy(update={"mode": mode_id})
        return schema.SetSessionModeResponse()

    async def prompt(self, prompt: Sequence[Any], session_id: str, **_: Any) -> schema.PromptResponse:
        """Work on one request. A run that fails answers with an error that says why, after its updates."""
        editor_session = self._session(session_id)
        self._refuse_at_work(session_id)

        with _protocol_errors():
            options: Any = {"durability": self._durability, "tools": editor_session.tools, "kept_permissions": True}
            session = Session(editor_session.context, thread_id=session_id, **options)
            turn = _Turn(self._client, session, {tool.name: tool for tool in editor_session.tools})
            editor_session.turn = turn

            try:
                text = request_text(prompt, editor_session.context.workspace)
                outcome = await turn.run(text, images_of(prompt), editor_session.notes)
            finally:
                editor_session.turn = None
                await session.aclose()

        if outcome.kind is records.OutcomeKind.SYSTEM_ERROR and outcome.reason not in _ENDS:
            raise RequestError(_FAILED, " ".join(f"{outcome.message} {outcome.how_to_go_on}".split()))

        stop_reason: schema.StopReason = "end_turn"
        if outcome.kind is records.OutcomeKind.BUDGET_STOP:
            stop_reason = "max_turn_requests"

        return schema.PromptResponse(stop_reason=_ENDS.get(outcome.reason, stop_reason))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the prompt at work: its model call is dropped, and a running tool ends first."""
        if (turn := self._session(session_id).turn) is not None:
            turn.stop("by the editor")

    async def end(self) -> bool:
        """Stop all prompts, and wait some seconds for their end; returns whether all have ended."""
        turns = [session.turn for session in self._sessions.values() if session.turn is not None]
        for turn in turns:
            turn.stop("by the editor, which has ended")

        tasks = {turn.task for turn in turns if turn.task is not None}
        ended = not (tasks and (await asyncio.wait(tasks, timeout=GRACE_S))[1])
        await asyncio.gather(*(asyncio.to_thread(session.servers.close) for session in self._sessions.values()))

        return ended

    def _session(self, session_id: str) -> _EditorSession:
        if session_id not in self._sessions:
            raise RequestError(_WRONG, f"There is no session {session_id!r} here: begin one, or load it.")
        return self._sessions[session_id]

    def _refuse_at_work(self, session_id: str) -> None:
        if (session := self._sessions.get(session_id)) is not None and session.turn is not None:
            raise RequestError(_FAILED, "This session is at work on another prompt: wait for its end, or cancel it.")

    async def _open_session(self, context: AgentContext, servers: Sequence[Any]) -> _EditorSession:
        """A session with the tools of the client's MCP servers; without them where the servers fail."""
        endpoint = find_endpoint(context.model, context.base_url, os.environ)
        embedded = isinstance(endpoint, Endpoint) and endpoint.embedded
        problem: Any = endpoint
        if embedded:
            problem = await asyncio.to_thread(why_unavailable)

        if problem is not None and not isinstance(problem, Endpoint):
            raise RequestError(_FAILED, problem.message)

        running = McpServers()
        connections = {server.name: _connection(server) for server in servers}
        notes: list[str] = []

        try:
            configured = self._servers_for(context.workspace)
            tools = unwrap(await session_tools(running, connections, configured, context, notes.append))
        except BaseException:
            await asyncio.to_thread(running.close)
            raise

        return _EditorSession(context, (*default_tools(), *tools), notes, running)


@dataclass
class _Turn:
    """One prompt at work: its events as updates for the client, and the client's decisions on calls."""

    client: Client
    session: Session
    tools: Mapping[str, Tool]
    task: "asyncio.Task[Any] | None" = field(default_factory=asyncio.current_task)
    _stopped: str = ""
    _shown_calls: set[str] = field(default_factory=set)
    _plan: records.Plan = field(default_factory=records.Plan)
    _id_prefix: str = field(default_factory=lambda: uuid4().hex[:8])  # call ids are unique in one reply only

    def __post_init__(self) -> None:
        self._view = RunView(_visible_text(self.tools, self.session.context))

    def stop(self, by: str) -> None:
        """End early; see `Session.stop`."""
        self._stopped = by
        self.session.stop(by)

    async def run(self, request: str, images: Sequence[bytes], notes: list[str]) -> records.Outcome:
        """Work on the request and its images with updates to the client; return the outcome."""
        while notes:
            await self._send([helpers.update_agent_thought_text(notes.pop(0))])

        approval = await self._follow(self.session.astream(request, images=images))
        while approval is not None:
            approval = await self._follow(self.session.aanswer(await self._decide(approval)))

        outcome = self.session.result().outcome
        ending = "\n\n".join(line.text.strip() for line in outcome_lines(outcome))
        for text in (outcome.answer, ending):
            await self._send(self._view_updates(self._view.answer(text)))

        return outcome

    async def _follow(self, events: AsyncGenerator[Event, None]) -> Asked | None:
        event: Event | None = None
        async with aclosing(events):
            async for event in events:
                if self._stopped:  # before the turn was open
                    self.session.stop(self._stopped)

                await self._send(self._updates(event))

        if isinstance(event, Asked):
            return event

        return None

    async def _send(self, updates: Iterable[Update]) -> None:
        """Send updates without secrets; if the client has gone, `end` stops the turn."""
        for update in updates:
            with suppress(ConnectionError):
                await self.client.session_update(self.session.thread_id, self._scrubbed(update))

    def _scrubbed(self, update: Update) -> Any:
        return type(update).model_validate(plain_values(update, self.session.scrub))

    def _updates(self, event: Event) -> Iterator[Update]:
        yield from self._view_updates(self._view.read(event))

        if isinstance(event, CallsRead | Rescued):
            for call in event.calls:
                if isinstance(call, records.ToolCall) and not call.implied and self.tools[call.tool].effect in _KINDS:
                    self._shown_calls.add(call.call_id)
                    yield helpers.start_tool_call(self._id(call), status="pending", **self._describe(call))
        elif isinstance(event, ToolStarted) and event.call.call_id in self._shown_calls:
            yield helpers.update_tool_call(self._id(event.call), status="in_progress")
        elif isinstance(event, StepDone) and event.plan is not None and event.plan != self._plan:
            self._plan = event.plan
            yield helpers.update_plan(
                helpers.plan_entry(step.title, status=_PLAN_STATUS[step.status]) for step in event.plan.steps
            )

    def _view_updates(self, items: Iterable[Prose | FinishedCall | Line]) -> Iterator[Update]:
        for item in items:
            if isinstance(item, Line):
                yield helpers.update_agent_thought_text(f"{item.text}\n")
            elif isinstance(item, Prose):
                gap = ""
                if item.begins_reply and not item.begins_turn:
                    gap = "\n\n"

                yield helpers.update_agent_message_text(gap + item.text)
            elif item.result.call_id in self._shown_calls:
                yield self._finished(item.result)

    def _finished(self, result: records.CallResult) -> Update:
        content = [_text(inline_code(result_words(result.result))), *map(self._diff, result.changes)]
        status: schema.ToolCallStatus = "failed"
        if result.result.ok:
            status = "completed"

        return helpers.update_tool_call(
            self._id(result), status=status, content=content, raw_output=result.result.as_map()
        )

    def _describe(self, call: records.ToolCall) -> dict[str, Any]:
        tool = self.tools[call.tool]
        title = call.tool
        target = target_of(call.arguments)
        if target:
            title = f"{call.tool} {inline_code(target)}"

        locations = []
        for name in tool.path_fields:
            path = call.arguments.get(name)
            if isinstance(path, str):
                locations.append(schema.ToolCallLocation(path=os.path.join(self.session.context.workspace, path)))

        return {"title": title, "kind": _KINDS[tool.effect], "locations": locations, "raw_input": call.arguments}

    def _diff(self, change: records.FileChange) -> Any:
        """The complete file before and after, or its diff as text if it was changed since."""
        texts = []
        for sha256 in (change.sha256_before, change.sha256_after):
            content: bytes | None = b""
            if sha256:
                content = self.session.file_content(change.path, sha256)
            if content is None:
                return _text(fenced(change.diff, "diff"))

            texts.append(content.decode(errors="replace"))

        path = os.path.join(self.session.context.workspace, change.path)
        old, new = texts
        if not change.sha256_before:
            return helpers.tool_diff_content(path, new)

        return helpers.tool_diff_content(path, new, old)

    def _id(self, call: records.ToolCall | records.CallResult) -> str:
        return f"{self._id_prefix}-{call.call_id}"

    # --- Approvals

    async def _decide(self, approval: Asked) -> ApprovalAnswer:
        decisions = Decisions()
        for call in cast("list[AskedCall]", approval.request["calls"]):
            action = decisions.allowed_before(call) or await self._permission(call)
            if not decisions.add(call, CallDecision(action=action)):
                break

        return decisions.answer()

    async def _permission(self, call: AskedCall) -> Action:
        """The person's decision on one call; a client that cancels a prompt answers its open questions itself.

        Raises:
            ConnectionError: the client has gone; the run goes on waiting for a person.
        """
        options = [schema.PermissionOption(option_id="approve", name="Allow", kind="allow_once")]
        for answer, allows in call["choices"].items():
            name = f"{_LASTING[answer]}: {allows}"
            options.append(schema.PermissionOption(option_id=answer, name=name, kind="allow_always"))

        options.append(schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once"))
        item = cast("records.ToolCall", [*self._view.calls.values()][call["index"]])
        request = schema.ToolCallUpdate(
            tool_call_id=self._id(item),
            status="pending",
            content=[_text(_question_text(call))],
            **self._describe(item),
        )
        response = await self.client.request_permission(self.session.thread_id, self._scrubbed(request), options)
        if isinstance(response.outcome, schema.AllowedOutcome):
            return cast("Action", response.outcome.option_id)  # an option that was not offered is a rejection

        return "stop"


# --- Translations to and from the protocol


def _question_text(call: AskedCall) -> str:
    """Return the rule that asks for a person, and the preview of the call."""
    preview = call["preview"]
    rule = call["rule"]
    if call.get("why"):
        rule += f": {inline_code(call['why'])}"

    language = "text"
    if preview["kind"] == "diff":
        language = "diff"

    text = f"{rule}\n\n{fenced(preview['text'], language)}"
    if preview["truncated"]:
        text += "\n\nNot all of it is shown here."

    return text


def request_text(blocks: Sequence[Any], root: str) -> str:
    """The request as text; files that a person refers to are paths relative to the workspace."""
    parts: list[str] = []

    for block in blocks:
        if isinstance(block, schema.TextContentBlock):
            parts.append(block.text)
        elif isinstance(block, schema.ResourceContentBlock):
            parts.append(_reference(block.uri, root))
        elif not isinstance(block, schema.ImageContentBlock):
            raise RequestError(_WRONG, f"A prompt with a block of type {block.type} is not understood: use text.")

    return "".join(parts)


def images_of(blocks: Sequence[Any]) -> list[bytes]:
    """The images of a prompt."""
    images: list[bytes] = []

    for block in blocks:
        if isinstance(block, schema.ImageContentBlock):
            try:
                images.append(b64decode(block.data, validate=True))
            except ValueError as error:
                raise RequestError(_WRONG, f"The data of an image is not Base64: {error}.") from None

    return images


def _reference(uri: str, root: str) -> str:
    """A file as its path relative to the folder `root`, with the fragment of the URI; any other URI unchanged."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return uri

    path = os.path.relpath(unquote(parts.path), root)
    if parts.fragment:
        return f"{path} ({parts.fragment})"

    return path


def _connection(server: Any) -> dict[str, Any]:
    """The client's MCP server as `load_mcp_tools` takes it."""
    if isinstance(server, schema.McpServerStdio):
        env = {variable.name: variable.value for variable in server.env}
        return {"transport": "stdio", "command": server.command, "args": server.args, "env": env}

    headers = {header.name: header.value for header in server.headers}
    return {"transport": "streamable_http", "url": server.url, "headers": headers}


def _messages(session_id: str, store: Store) -> Sequence[Any]:
    return build_graph(store.saver).get_state(thread_config(session_id)).values.get("messages") or ()


def _visible_text(tools: Iterable[str], context: AgentContext) -> VisibleText:
    return VisibleText(frozenset(tools), blocks=edits_in_blocks(context, os.environ))


def _text(text: str) -> Any:
    return helpers.tool_content(helpers.text_block(text))


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """Inside, errors become errors of the protocol, without a traceback."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug is one line that asks for a report
        if isinstance(error, RefusedError):
            refusal = error
        else:
            refusal = bug(error, debug=False)

        raise RequestError(_FAILED, "\n".join([refusal.message, *refusal.named])) from None


# --- The process


def serve_editor(agent: EditorAgent) -> int:
    """Speak with the client until its end of the input, Ctrl-C or SIGTERM; the exit code."""
    logging.getLogger().setLevel(logging.CRITICAL)  # the protocol's package logs tracebacks
    asyncio.run(_serve(agent))
    return ExitCode.FINISHED


async def _serve(agent: EditorAgent) -> None:
    protocol = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no message of the protocol
    with redirect_stdout(cast("Any", protocol)):
        reader, writer = await stdio_streams(_LONGEST_MESSAGE)

    connection = AgentSideConnection(cast("Agent", agent), writer, reader, listening=False)
    listening = asyncio.ensure_future(connection.listen())
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, listening.cancel)

    await asyncio.wait({listening})
    ended = await agent.end()
    with suppress(Exception):  # the client may have gone
        await asyncio.wait_for(connection.close(), _CLOSE_S)

    if not ended:
        let_tools_clean_up()
        leave_at_once(ExitCode.FINISHED)

    if not listening.cancelled() and (problem := listening.exception()) is not None:
        problem_text = f"the editor sent what is no message of the protocol ({type(problem).__name__})"
        raise RefusedError(ExitCode.SYSTEM_ERROR, problem_text)
