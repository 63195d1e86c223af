"""Sessions for an editor, over the Agent Client Protocol: what `mendgraph acp` speaks on its input and output.

A session of the protocol is a thread of ours with the same id, so `mendgraph runs` lists it, and `resume`, `undo` and
`report` take it. Files are reached by the workspace's own handles, never by the client's `fs/*` or `terminal/*`.
"""

import asyncio
import logging
import os
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from acp import PROTOCOL_VERSION, RequestError, helpers, schema, stdio_streams
from acp.agent.connection import AgentSideConnection
from acp.interfaces import Agent, Client

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.mcp_servers import McpSettings, secret_values
from mendgraph.graph.editor.turn import Turn, visible_text
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.command_files import listed_files, request_of
from mendgraph.graph.runs.configured_servers import session_servers
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import get_run, list_runs, thread_config, with_store
from mendgraph.graph.runs.server_prompts import ServerPrompts
from mendgraph.graph.terminal.process_end import GRACE_S, SIGNALS, ExitCode, RefusedError, bug, leave_at_once, unwrap
from mendgraph.graph.terminal.turns import let_tools_clean_up
from mendgraph.nodes import records
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.local_model import why_unavailable
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import ask_user, remember
from mendgraph.nodes.execute_tools.tools.read_file import read_skill
from mendgraph.nodes.execute_tools.tools.web import web_search
from mendgraph.nodes.language.history import is_typed
from mendgraph.nodes.language.prompt_files import PromptFile
from mendgraph.nodes.workspace.files.sandbox import check_workspace

_MODES: Final = {
    "read-only": "Looks at files and changes none.",
    "plan": "Looks at files, changes none, and answers with a plan.",
    "ask": "Asks you before each change.",
    "auto": "Changes files inside the rules without asking.",
}
_ENDS: Final[Mapping[records.StopReason, schema.StopReason]] = {
    records.StopReason.REFUSED: "refusal",
    records.StopReason.CANCELLED: "cancelled",
    records.StopReason.MAX_INPUT_TOKENS: "max_tokens",
    records.StopReason.MAX_OUTPUT_TOKENS: "max_tokens",
}
_WRONG, _FAILED = -32602, -32603  # what JSON-RPC calls invalid parameters and an internal error
_CLOSE_S: Final = 1.0
_LONGEST_MESSAGE: Final = 50_000_000  # bytes

Servers = Sequence[Any] | None


@dataclass
class _EditorSession:
    """A session between its prompts.

    `notes` are shown at the next prompt; `servers` are the MCP servers, with their `prompts` and the `secrets` in their
    settings. `offering` tells the client the commands.
    """

    context: AgentContext
    tools: tuple[Tool, ...]
    notes: list[str]
    servers: McpServers
    prompts: ServerPrompts
    secrets: tuple[str, ...]
    turn: "Turn | None" = None
    offering: "asyncio.Task[None] | None" = None

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
        with_hooks: Callable[[AgentContext, Callable[[str], None]], AgentContext],
    ) -> None:
        """`context_for` returns a folder's settings; `settings` of the command line override those of a loaded run.

        `servers_for` returns the MCP servers of a folder's settings; `with_hooks` returns a context with the trusted
        hooks of its folder, and passes warnings about them to its second argument.
        """
        self._with_hooks = with_hooks
        self._context_for = context_for
        self._servers_for = servers_for
        self._settings = {"questions": True, **settings}
        self._durability = durability
        self._sessions: dict[str, _EditorSession] = {}
        self._takes_forms = False
        self._client: Client

    def on_connect(self, conn: Client) -> None:
        """Set the connection to the client."""
        self._client = conn

    async def initialize(self, client_capabilities: Any = None, **_: Any) -> schema.InitializeResponse:
        """The capabilities of this agent."""
        elicitation = client_capabilities and client_capabilities.elicitation
        self._takes_forms = bool(elicitation and elicitation.form)
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
        self._add_session(session_id, session)
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
                raise RequestError(_WRONG, f"There is no session {session_id!r} in {root}: list the existing ones.")

            context = AgentContext(**{**run_record.context.model_dump(), **self._settings, "workspace": root})
            messages = unwrap(with_store(root, partial(_messages, session_id)))
            session = await self._open_session(context, mcp_servers or ())

        if (before := self._sessions.get(session_id)) is not None:
            await asyncio.to_thread(before.servers.close)

        self._add_session(session_id, session)
        visible = visible_text((tool.name for tool in session.tools), context)

        for message in messages:
            if is_typed(message):
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
            options["secrets"] = editor_session.secrets
            session = Session(editor_session.context, thread_id=session_id, **options)
            tools = {tool.name: tool for tool in (ask_user, remember, read_skill, web_search, *editor_session.tools)}
            turn = Turn(self._client, session, tools, self._takes_forms)
            editor_session.turn = turn

            try:
                images = images_of(prompt)
                context = session.context
                text = request_text(prompt, context.workspace)
                prompts = editor_session.prompts
                called = unwrap(
                    await asyncio.to_thread(request_of, text, context.workspace, context.denied_paths, prompts)
                )
                images += called.images
                outcome = await turn.run(called.request, images, editor_session.notes)
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

    def _add_session(self, session_id: str, session: _EditorSession) -> None:
        self._sessions[session_id] = session
        session.offering = asyncio.ensure_future(self._offer_commands(session_id, session))

    async def _offer_commands(self, session_id: str, session: _EditorSession) -> None:
        """Tell the client the commands of files and of MCP servers, once the servers have listed theirs."""
        context = session.context
        files = await asyncio.to_thread(listed_files, context.workspace, context.denied_paths)
        prompts = await asyncio.to_thread(session.prompts.commands)
        commands = [_available_command(command) for command in [*files, *prompts]]
        with suppress(ConnectionError):
            await self._client.session_update(session_id, helpers.update_available_commands(commands))

    def _session(self, session_id: str) -> _EditorSession:
        if session_id not in self._sessions:
            raise RequestError(_WRONG, f"There is no session {session_id!r} here: create one, or load it.")
        return self._sessions[session_id]

    def _refuse_at_work(self, session_id: str) -> None:
        if (session := self._sessions.get(session_id)) is not None and session.turn is not None:
            raise RequestError(_FAILED, "This session is working on another prompt: wait for it to end, or cancel it.")

    async def _open_session(self, context: AgentContext, servers: Sequence[Any]) -> _EditorSession:
        """A session with the tools of the client's MCP servers; without them where the servers fail."""
        endpoint = find_endpoint(context.model, context.base_url, os.environ)
        embedded = isinstance(endpoint, Endpoint) and endpoint.embedded
        problem: Any = endpoint
        if embedded:
            problem = await asyncio.to_thread(why_unavailable)

        if problem is not None and not isinstance(problem, Endpoint):
            raise RequestError(_FAILED, problem.message)

        notes: list[str] = []
        context = self._with_hooks(context, notes.append)
        running = McpServers()
        connections = {server.name: _connection(server) for server in servers}

        try:
            configured = self._servers_for(context.workspace)
            opened, tools = unwrap(await session_servers(running, connections, configured, context, notes.append))
        except BaseException:
            await asyncio.to_thread(running.close)
            raise

        secrets = secret_values(configured.servers.values(), os.environ)
        prompts = ServerPrompts(running, opened)
        return _EditorSession(context, (*default_tools(), *tools), notes, running, prompts, secrets)


# --- Translations to and from the protocol


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


def _available_command(command: PromptFile) -> schema.AvailableCommand:
    hint = command.fields.get("argument-hint")
    words = schema.AvailableCommandInput(schema.UnstructuredCommandInput(hint=hint)) if hint else None
    return schema.AvailableCommand(name=command.name, description=command.description, input=words)


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
        problem_text = f"the editor sent an invalid message ({type(problem).__name__})"
        raise RefusedError(ExitCode.SYSTEM_ERROR, problem_text)
