"""Sessions for an editor, over the Agent Client Protocol: what `mendgraph acp` speaks on its input and output.

A session of the protocol is a thread of ours with the same id, so `mendgraph runs` lists it, and `resume`, `undo` and
`report` take it. Files are reached by the workspace's own handles: of the client's methods only `session/update` and
`session/request_permission` are called, never `fs/*` or `terminal/*`.
"""

import asyncio
import logging
import os
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
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.events import Asked, CallsRead, Event, Paid, Rescued, StepDone, Text, ToolStarted, Traced
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.graph.runs.runs import get_run, list_runs, thread_config, with_store
from mendgraph.graph.terminal.output_lines import outcome_lines, plain_values
from mendgraph.graph.terminal.process_end import SIGNALS, ExitCode, RefusedError, bug, found, leave_at_once
from mendgraph.graph.terminal.screen import VisibleText, note_of, was_seen
from mendgraph.graph.terminal.turns import GRACE_S, edits_in_blocks, let_tools_tidy_up
from mendgraph.nodes import records
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.local_model import why_unavailable
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.mcp_tools import load_session_tools
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.approvals import Action, ApprovalAnswer, AskedCall, CallDecision, like_before
from mendgraph.nodes.language.display import fenced, inline_code, result_words, target_of
from mendgraph.nodes.language.history import is_request

_KINDS: Final[Mapping[records.Effect, schema.ToolKind]] = {
    records.Effect.READ: "read",
    records.Effect.WRITE: "edit",
    records.Effect.EXECUTE: "execute",
    records.Effect.NETWORK: "fetch",
}
"""What the protocol calls a tool of this effect; calls without any are not shown: they write the plan, or answer."""
_MODES: Final = {
    "read-only": "Looks at files and changes none.",
    "ask": "Asks you before each change.",
    "auto": "Changes files inside the rules without asking.",
}
_LASTING: Final = {
    "approve_prefix": "Always in this session",
    "approve_for_run": "Always in this session",
    "approve_always": "Always in this folder",
}
"""How the options begin that allow more than the call."""

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
class _Kept:
    """A session between its prompts. `notes` is said at the next one; `servers` are the client's, which run."""

    context: AgentContext
    tools: tuple[Tool, ...]
    notes: list[str]
    servers: McpServers
    turn: "_Turn | None" = None

    def modes(self) -> schema.SessionModeState:
        known = [schema.SessionMode(id=mode, name=mode, description=_MODES[mode]) for mode in _MODES]
        return schema.SessionModeState(current_mode_id=self.context.mode, available_modes=known)


class EditorAgent:
    """The agent's side of the protocol. `context_for` gives the settings of a run in a folder.

    `given` are the settings of the command line, which also hold where a session is loaded.
    """

    def __init__(self, context_for: Callable[[str], AgentContext], given: Mapping[str, Any], durability: Any) -> None:
        self._context_for = context_for
        self._given = given
        self._durability = durability
        self._sessions: dict[str, _Kept] = {}
        self._client: Client

    def on_connect(self, conn: Client) -> None:
        """The connection, over which the client is asked and told."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:  # noqa: ARG002
        """Say what this agent can do."""
        can = {"loadSession": True, "mcpCapabilities": {"http": True}, "sessionCapabilities": {"list": {}}}
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="mendgraph", version=version("mendgraph")),
            agent_capabilities=schema.AgentCapabilities.model_validate(can),
        )

    async def new_session(self, cwd: str, mcp_servers: Servers = (), **_: Any) -> schema.NewSessionResponse:
        """Begin a session in the folder `cwd`; an error says what keeps its model from answering."""
        with _in_words():
            root = found(check_workspace(cwd))
            session = await self._keep(self._context_for(root), mcp_servers or ())

        session_id = uuid4().hex
        self._sessions[session_id] = session
        return schema.NewSessionResponse(session_id=session_id, modes=session.modes())

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Servers = (), **_: Any
    ) -> schema.LoadSessionResponse:
        """Go on with a run of the folder: its requests and answers are told again."""
        self._refuse_at_work(session_id)

        with _in_words():
            root = found(check_workspace(cwd))
            run_record = found(get_run(session_id, root))
            if run_record.run_id != session_id:  # the beginning of an id, which is enough on the command line
                raise RequestError(_WRONG, f"There is no session {session_id!r} in {root}: list those that are there.")

            context = AgentContext(**{**run_record.context.model_dump(), **self._given, "workspace": root})
            messages = found(with_store(root, partial(_messages, session_id)))
            session = await self._keep(context, mcp_servers or ())

        if (before := self._sessions.get(session_id)) is not None:
            await asyncio.to_thread(before.servers.close)

        self._sessions[session_id] = session
        visible = _visible((tool.name for tool in session.tools), context)

        for message in messages:
            if is_request(message):
                await self._client.session_update(session_id, helpers.update_user_message_text(message.text))
            elif message.type == "ai" and (text := visible.feed(message.text) + visible.end()).strip():
                await self._client.session_update(session_id, helpers.update_agent_message_text(text))

        return schema.LoadSessionResponse(modes=session.modes())

    async def list_sessions(self, cwd: str | None = None, **_: Any) -> schema.ListSessionsResponse:
        """The runs of a folder, the newest first."""
        with _in_words():
            root = found(check_workspace(cwd or "."))
            runs = found(list_runs(root))

        updates = [
            schema.SessionInfo(cwd=root, session_id=run.run_id, title=run.task[:200], updated_at=run.updated)
            for run in runs
        ]

        return schema.ListSessionsResponse(sessions=updates)

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> schema.SetSessionModeResponse:
        """What the session may do, from its next prompt on."""
        session = self._session(session_id)
        if mode_id not in _MODES:
            raise RequestError(_WRONG, f"There is no mode {mode_id!r}: choose one of {', '.join(_MODES)}.")

        session.context = session.context.model_copy(update={"mode": mode_id})
        return schema.SetSessionModeResponse()

    async def prompt(self, prompt: Sequence[Any], session_id: str, **_: Any) -> schema.PromptResponse:
        """Work on one request. A run that fails answers with an error that says why, after its updates."""
        kept = self._session(session_id)
        self._refuse_at_work(session_id)

        with _in_words():
            options: Any = {"durability": self._durability, "tools": kept.tools, "kept_permissions": True}
            session = Session(kept.context, thread_id=session_id, **options)
            kept.turn = turn = _Turn(self._client, session, {tool.name: tool for tool in kept.tools})

            try:
                outcome = await turn.run(request_text(prompt, kept.context.workspace), kept.notes)
            finally:
                kept.turn = None
                await session.aclose()

        if outcome.kind is records.OutcomeKind.SYSTEM_ERROR and outcome.reason not in _ENDS:
            raise RequestError(_FAILED, " ".join(f"{outcome.message} {outcome.how_to_go_on}".split()))

        limited = outcome.kind is records.OutcomeKind.BUDGET_STOP
        return schema.PromptResponse(
            stop_reason=_ENDS.get(outcome.reason, "max_turn_requests" if limited else "end_turn")
        )

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the prompt at work: its model call is dropped, a tool that runs is waited for."""
        if (turn := self._session(session_id).turn) is not None:
            turn.stop("by the editor")

    async def end(self) -> bool:
        """Stop what is at work, and give it some seconds to end; whether all of it has ended."""
        turns = [session.turn for session in self._sessions.values() if session.turn is not None]
        for turn in turns:
            turn.stop("by the editor, which has ended")

        tasks = {turn.task for turn in turns if turn.task is not None}
        ended = not (tasks and (await asyncio.wait(tasks, timeout=GRACE_S))[1])
        await asyncio.gather(*(asyncio.to_thread(session.servers.close) for session in self._sessions.values()))

        return ended

    def _session(self, session_id: str) -> _Kept:
        if session_id not in self._sessions:
            raise RequestError(_WRONG, f"There is no session {session_id!r} here: begin one, or load it.")
        return self._sessions[session_id]

    def _refuse_at_work(self, session_id: str) -> None:
        if (session := self._sessions.get(session_id)) is not None and session.turn is not None:
            raise RequestError(_FAILED, "This session is at work on another prompt: wait for its end, or cancel it.")

    async def _keep(self, context: AgentContext, servers: Sequence[Any]) -> _Kept:
        """The session, with the tools of the client's MCP servers; where these cannot be had it does without."""
        endpoint = find_endpoint(context.model, context.base_url, os.environ)
        embedded = isinstance(endpoint, Endpoint) and endpoint.embedded
        problem = await asyncio.to_thread(why_unavailable) if embedded else endpoint

        if problem is not None and not isinstance(problem, Endpoint):
            raise RequestError(_FAILED, problem.message)

        running = McpServers()
        connections = {server.name: _connection(server) for server in servers}

        try:
            tools = await load_session_tools(running, connections, context.workspace)
        except BaseException:
            await asyncio.to_thread(running.close)
            raise

        if isinstance(tools, records.ToolError):
            await asyncio.to_thread(running.close)
            note = f"The editor's MCP servers are not used. {tools.message}"
            return _Kept(context, default_tools(), [note], running)

        return _Kept(context, (*default_tools(), *tools), [], running)


@dataclass
class _Turn:
    """One prompt at work: what it tells the editor, and what the editor says of it."""

    client: Client
    session: Session
    tools: Mapping[str, Tool]
    task: "asyncio.Task[Any] | None" = field(default_factory=asyncio.current_task)
    _stopped: str = ""
    _calls: tuple[records.ToolCall | records.CallError, ...] = ()
    _shown: set[str] = field(default_factory=set)
    _plan: records.Plan = field(default_factory=records.Plan)
    _said: str = ""  # all that was shown of the model's text
    _in_reply: bool = False
    _number: str = field(default_factory=lambda: uuid4().hex[:8])  # ids of calls are those of one reply

    def __post_init__(self) -> None:
        self._visible = _visible(self.tools, self.session.context)

    def stop(self, by: str) -> None:
        """End early; see `Session.stop`."""
        self._stopped = by
        self.session.stop(by)

    async def run(self, request: str, notes: list[str]) -> records.Outcome:
        """Work on the request, told as it goes, and say how it ended."""
        while notes:
            await self._tell(helpers.update_agent_thought_text(notes.pop(0)))

        requests = await self._follow(self.session.astream(request))
        while requests is not None:
            requests = await self._follow(self.session.aanswer(await self._decide(requests)))

        result = self.session.result()
        for update in self._end(result):
            await self._tell(update)

        return result.outcome

    async def _follow(self, events: AsyncGenerator[Event, None]) -> Asked | None:
        last: Event | None = None

        async with aclosing(events):
            async for event in events:
                if self._stopped:  # a turn that opens forgets what came before
                    self.session.stop(self._stopped)

                for update in self._updates(event):
                    await self._tell(update)

                last = event

        return last if isinstance(last, Asked) else None

    async def _tell(self, update: Update) -> None:
        """Tell the client, without secrets; one that is gone is told nothing, and the turn is stopped elsewhere."""
        with suppress(ConnectionError):
            await self.client.session_update(self.session.thread_id, self._scrubbed(update))

    def _scrubbed(self, told: Update) -> Any:
        return type(told).model_validate(plain_values(told, self.session.scrub))

    # --- What happens, as updates

    def _updates(self, event: Event) -> Iterator[Update]:
        if isinstance(event, Text):
            yield from self._say(self._visible.feed(event.text))
        elif isinstance(event, ToolStarted):
            yield from self._progress(event.call, status="in_progress")
        elif not isinstance(event, Traced | Paid):
            yield from self._say(self._visible.end())
            self._in_reply = False

            if isinstance(event, CallsRead | Rescued):
                self._calls = event.calls
                calls_shown = [call for call in event.calls if isinstance(call, records.ToolCall) and not call.implied]
                for call in (call_shown for call_shown in calls_shown if self.tools[call_shown.tool].effect in _KINDS):
                    self._shown.add(call.call_id)
                    yield helpers.start_tool_call(self._id(call), status="pending", **self._about(call))
            elif isinstance(event, StepDone):
                yield from (update for result in event.results for update in self._done(result))

                if event.plan is not None and event.plan != self._plan:
                    self._plan = event.plan
                    steps = event.plan.model_dump(mode="json")["steps"]
                    done = [{**step, "status": step["status"].replace("done", "completed")} for step in steps]
                    yield helpers.update_plan(helpers.plan_entry(step["title"], status=step["status"]) for step in done)
            elif (note := note_of(event)) is not None:
                yield helpers.update_agent_thought_text(f"{note.text}\n")

    def _say(self, text: str) -> Iterator[Update]:
        if text.strip() or (text and self._in_reply):
            gap = "" if self._in_reply or not self._said else "\n\n"
            self._said += gap + text
            self._in_reply = True
            yield helpers.update_agent_message_text(gap + text)

    def _about(self, call: records.ToolCall) -> dict[str, Any]:
        tool = self.tools[call.tool]
        root = self.session.context.workspace
        paths = (call.arguments.get(name) for name in tool.path_fields)
        target = target_of(call.arguments)

        return {
            "title": f"{call.tool} {inline_code(target)}" if target else call.tool,
            "kind": _KINDS[tool.effect],
            "locations": [
                schema.ToolCallLocation(path=os.path.join(root, path)) for path in paths if isinstance(path, str)
            ],
            "raw_input": call.arguments,
        }

    def _progress(self, call: records.ToolCall | records.CallResult, **fields: Any) -> Iterator[Update]:
        if call.call_id in self._shown:
            yield helpers.update_tool_call(self._id(call), **fields)

    def _done(self, result: records.CallResult) -> Iterator[Update]:
        content = [_text(inline_code(result_words(result.result))), *map(self._diff, result.changes)]
        status = "completed" if result.result.ok else "failed"
        yield from self._progress(result, status=status, content=content, raw_output=result.result.as_map())

    def _diff(self, change: records.FileChange) -> Any:
        """The file before and after, whole; its diff as text where somebody has changed it since."""
        hashes = (change.sha256_before, change.sha256_after)
        contents = [self.session.file_content(change.path, digest) if digest else b"" for digest in hashes]
        old, new = (None if content is None else content.decode(errors="replace") for content in contents)

        if old is None or new is None:
            return _text(fenced(change.diff, "diff"))

        path = os.path.join(self.session.context.workspace, change.path)
        return helpers.tool_diff_content(path, new, old if change.sha256_before else None)

    def _id(self, call: records.ToolCall | records.CallResult) -> str:
        return f"{self._number}-{call.call_id}"

    def _end(self, result: RunResult) -> Iterator[Update]:
        """The answer, where it was not seen as it came, and the outcome."""
        if not was_seen(result.outcome.answer, self._said):
            yield from self._say(result.outcome.answer)

        self._in_reply = False
        yield from self._say("\n\n".join(line.text.strip() for line in outcome_lines(result.outcome)))

    # --- What a person is asked

    async def _decide(self, asked: Asked) -> ApprovalAnswer:
        decisions: dict[str, CallDecision] = {}
        decided: list[tuple[AskedCall, Action]] = []

        for call in cast("list[AskedCall]", asked.request["calls"]):
            action = like_before(call, decided) or await self._permission(call)
            decided.append((call, action))
            decisions[str(call["index"])] = CallDecision(action=action, digest=call["digest"])

            if action == "stop":
                break

        return ApprovalAnswer(decisions=decisions)

    async def _permission(self, call: AskedCall) -> Action:
        """What the person says of one call; a client that cancels a prompt answers its open questions itself.

        Raises:
            ConnectionError: the client has gone; the run goes on waiting for a person.
        """
        lasting = [
            schema.PermissionOption(option_id=answer, name=f"{_LASTING[answer]}: {allows}", kind="allow_always")
            for answer, allows in call["choices"].items()
        ]
        options = [
            schema.PermissionOption(option_id="approve", name="Allow", kind="allow_once"),
            *lasting,
            schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
        ]
        item = cast("records.ToolCall", self._calls[call["index"]])
        preview = call["preview"]
        text = fenced(preview["text"], "diff" if preview["kind"] == "diff" else "text")
        text += "\n\nNot all of it is shown here." if preview["truncated"] else ""
        why = f": {inline_code(call['why'])}" if call.get("why") else ""
        about = schema.ToolCallUpdate(
            tool_call_id=self._id(item),
            status="pending",
            content=[_text(f"{call['rule']}{why}\n\n{text}")],
            **self._about(item),
        )
        said = (await self.client.request_permission(self.session.thread_id, self._scrubbed(about), options)).outcome

        if isinstance(said, schema.AllowedOutcome):
            chosen = said.option_id
        else:
            chosen = "stop"

        return cast("Action", chosen)  # what we did not offer is read as a rejection


# --- Small translations


def request_text(blocks: Sequence[Any], root: str) -> str:
    """The request in words: files that a person named are told by their paths, seen from the workspace."""
    parts: list[str] = []

    for block in blocks:
        if isinstance(block, schema.TextContentBlock):
            parts.append(block.text)
        elif isinstance(block, schema.ResourceContentBlock):
            place = urlsplit(block.uri)
            if place.scheme == "file":
                path = os.path.relpath(unquote(place.path), root)
            else:
                path = block.uri

            parts.append(path + (f" ({place.fragment})" if place.scheme == "file" and place.fragment else ""))
        else:
            raise RequestError(_WRONG, f"A prompt with a block of type {block.type} is not understood: use text.")

    return "".join(parts)


def _connection(server: Any) -> dict[str, Any]:
    """The client's MCP server as `load_mcp_tools` takes it."""
    if isinstance(server, schema.McpServerStdio):
        env = {variable.name: variable.value for variable in server.env}
        return {"transport": "stdio", "command": server.command, "args": server.args, "env": env}

    headers = {header.name: header.value for header in server.headers}
    return {"transport": "streamable_http", "url": server.url, "headers": headers}


def _messages(session_id: str, store: Store) -> Sequence[Any]:
    return build_graph(store.saver).get_state(thread_config(session_id)).values.get("messages") or ()


def _visible(tools: Iterable[str], context: AgentContext) -> VisibleText:
    return VisibleText(frozenset(tools), blocks=edits_in_blocks(context, os.environ))


def _text(text: str) -> Any:
    return helpers.tool_content(helpers.text_block(text))


@contextmanager
def _in_words() -> Iterator[None]:
    """What fails inside is told to the client in words, without a traceback."""
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
    with suppress(Exception):  # nobody may read any more
        await asyncio.wait_for(connection.close(), _CLOSE_S)

    if not ended:
        let_tools_tidy_up()
        leave_at_once(ExitCode.FINISHED)

    if not listening.cancelled() and (problem := listening.exception()) is not None:
        problem_text = f"the editor sent what is no message of the protocol ({type(problem).__name__})"
        raise RefusedError(ExitCode.SYSTEM_ERROR, problem_text)
