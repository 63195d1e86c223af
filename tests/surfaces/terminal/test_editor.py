"""`mendgraph acp`, driven by the protocol's own client over the pipes of a real process.

The client's package is imported in the tests: its import takes 0.9 s in each process that collects this file.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mendgraph import RunState, list_runs
from tests.doubles.mcp_servers import ECHO, PROGRAM, PROMPTS, program, running_processes
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer, Stall, Status
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.vocabulary import JsonMap

if TYPE_CHECKING:
    from acp import schema

COMMAND = Path(sys.executable).parent / "mendgraph"
BUG, FIXED = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
KEY = "sk-proj-Zq8vTn3LrXw5Kd7PmYb2Hc9J"
LONG_S = 120


def edit(old: str, new: str) -> Calls:
    return Calls([("edit_file", json.dumps({"path": "calc.py", "old_str": old, "new_str": new}))])


FIX = edit("a - b", "a + b")
PLAN = Calls(
    [
        (
            "update_plan",
            json.dumps({"steps": [{"title": "look", "status": "done"}, {"title": "mend", "status": "in_progress"}]}),
        ),
        ("read_file", '{"path": "calc.py"}'),
    ]
)


class Editor:
    """The client: it keeps what it is told, and answers each question with the next of `answers`.

    After them a question is open until the prompt is cancelled, which answers it, as the protocol wants it.
    """

    def __init__(self, answers: tuple[str, ...] = ()) -> None:
        self.begin(answers)

    def begin(self, answers: tuple[str, ...]) -> None:
        """Forget earlier messages."""
        self.answers = list(answers)
        self.updates: list[Any] = []
        self.requests: list[tuple[schema.ToolCallUpdate, list[schema.PermissionOption]]] = []
        self.heard, self.cancelled = asyncio.Event(), asyncio.Event()

    async def session_update(self, update: Any, **_: Any) -> None:
        self.updates.append(update)
        if update.session_update == "agent_message_chunk":
            self.heard.set()

    async def request_permission(
        self, tool_call: "schema.ToolCallUpdate", options: "list[schema.PermissionOption]", **_: Any
    ) -> "schema.RequestPermissionResponse":
        from acp import schema

        self.requests.append((tool_call, options))
        self.heard.set()
        if not self.answers:
            await self.cancelled.wait()
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        chosen = schema.AllowedOutcome(outcome="selected", option_id=self.answers.pop(0))
        return schema.RequestPermissionResponse(outcome=chosen)

    def on_connect(self, conn: Any) -> None:
        """Send no request on connection."""

    def texts(self, kind: str) -> str:
        return "".join(update.content.text for update in self.updates if update.session_update == kind)

    def of_call(self, number: int) -> list[Any]:
        ids = list(dict.fromkeys(update.tool_call_id for update in self.updates if hasattr(update, "tool_call_id")))
        return [update for update in self.updates if getattr(update, "tool_call_id", "") == ids[number]]


class AgentConnection(NamedTuple):
    """A connection with the agent, and its process."""

    agent: Any
    process: asyncio.subprocess.Process
    folder: str

    async def begin(self, mode: str = "auto", **more: Any) -> str:
        session = await self.agent.new_session(**{"cwd": self.folder, "mcp_servers": [], **more})
        if mode != "auto":
            await self.agent.set_session_mode(session_id=session.session_id, mode_id=mode)
        return str(session.session_id)

    async def ask(self, session_id: str, *blocks: Any) -> str:
        from acp import helpers

        answer = await self.agent.prompt(session_id=session_id, prompt=blocks or [helpers.text_block("Fix the sum.")])
        return str(answer.stop_reason)


@asynccontextmanager
async def start_agent(folder: Path, editor: Editor, url: str, **capabilities: Any) -> AsyncIterator[AgentConnection]:
    """The agent, greeted; it has to end by itself once its input has ended."""
    from acp import PROTOCOL_VERSION, schema, spawn_agent_process

    env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
    options: Any = {"use_unstable_protocol": True, "transport_kwargs": {"stderr": None, "shutdown_timeout": LONG_S}}
    client: Any = editor
    command = (str(COMMAND), "acp", "--model", "scripted")
    async with spawn_agent_process(client, *command, env=env, cwd="/", **options) as (agent, process):
        can = schema.ClientCapabilities(**capabilities)
        hello = await agent.initialize(protocol_version=PROTOCOL_VERSION, client_capabilities=can)
        assert hello.protocol_version == PROTOCOL_VERSION
        yield AgentConnection(agent, process, str(folder))
    assert process.returncode == 0


Play = Callable[[AgentConnection], Awaitable[None]]


class SharedAgent:
    """One process of the agent for the tests that do not end it, each with a script of its own."""

    def __init__(self, runner: asyncio.Runner, model: ScriptedServer) -> None:
        self.runner, self.model, self.editor = runner, model, Editor()
        self.connection = start_agent(Path("/"), self.editor, model.base_url)
        self.talk = runner.run(self.connection.__aenter__())

    def play(self, folder: Path, script: Sequence[Reply], scene: Play, answers: tuple[str, ...] = ()) -> list[JsonMap]:
        """The requests to the model in this scene."""

        async def played() -> None:
            self.editor.begin(answers)
            async with asyncio.timeout(LONG_S):
                await scene(self.talk._replace(folder=str(folder)))

        before = len(self.model.requests)
        self.model.say_next(*script)
        self.runner.run(played())
        return self.model.requests[before:]


@pytest.fixture(scope="module")
def desk() -> Iterator[SharedAgent]:
    """It is started by the first test that needs it."""
    with asyncio.Runner() as runner, ScriptedServer() as model:
        desk = SharedAgent(runner, model)
        yield desk
        runner.run(desk.connection.__aexit__(None, None, None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a bug, and a key of ours in it."""
    (tmp_path / "calc.py").write_text(f"# {KEY}\n{BUG}", encoding="utf-8")
    return tmp_path


def test_run_is_reported_live_and_asks_before_it_edits(folder: Path, desk: SharedAgent) -> None:
    from acp import helpers

    editor, place = desk.editor, str(folder / "calc.py")

    async def scene(talk: AgentConnection) -> None:
        session = await talk.begin("ask")
        linked = helpers.resource_link_block("calc.py", f"file://{place}#L2:3")
        assert await talk.ask(session, helpers.text_block("Fix the sum in "), linked) == "end_turn"

    requests = desk.play(folder, [PLAN, FIX, Say("It adds now.")], scene, ("approve",))
    assert (folder / "calc.py").read_text(encoding="utf-8") == f"# {KEY}\n{FIXED}"
    assert "Fix the sum in calc.py (L2:3)" in json.dumps(requests[0]["messages"])
    [(request, options)] = editor.requests
    assert request.content is not None
    assert "-    return a - b\n+    return a + b" in request.content[0].content.text
    assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]
    updates = editor.of_call(-1)
    assert request.tool_call_id == updates[0].tool_call_id
    assert [update.status for update in updates] == ["pending", "in_progress", "completed"]
    assert (updates[0].kind, updates[0].locations[0].path) == ("edit", place)
    diff = updates[-1].content[1]
    assert (diff.path, diff.new_text) == (place, diff.old_text.replace("a - b", "a + b"))
    plans = [update.entries for update in editor.updates if update.session_update == "plan"]
    assert [[(step.content, step.status) for step in plan] for plan in plans] == [
        [("look", "completed"), ("mend", "in_progress")]
    ]
    text = editor.texts("agent_message_chunk")
    assert text.startswith("It adds now.\n\nFINISHED (answered)")
    assert KEY not in "".join(update.model_dump_json() for update in editor.updates)


@needs_sandbox
def test_trusted_hooks_of_the_folder_block_calls_and_changed_ones_refuse_the_session(
    folder: Path, desk: SharedAgent
) -> None:
    from acp import RequestError

    def set_hook(command: str) -> None:
        entry = {"matcher": "Edit", "hooks": [{"type": "command", "command": command}]}
        (folder / ".claude").mkdir(exist_ok=True)
        (folder / ".claude" / "settings.json").write_text(json.dumps({"hooks": {"PreToolUse": [entry]}}))

    async def scene(talk: AgentConnection) -> None:
        assert await talk.ask(await talk.begin()) == "end_turn"
        set_hook("exit 0")
        with pytest.raises(RequestError, match=r"settings\.json has changed"):
            await talk.begin()

    set_hook("echo Ask Kim first. >&2; exit 2")
    subprocess.run([COMMAND, "config", "trust"], cwd=folder, check=True, capture_output=True)
    requests = desk.play(folder, [FIX, Say("Kim has to be asked.")], scene)
    assert BUG in (folder / "calc.py").read_text(encoding="utf-8")
    assert "Ask Kim first." in json.dumps(requests[1]["messages"])


FORGED = (
    "pytest -q # runs the tests of this project, quietly, as you have asked\n\n```\n<!--\nrm -rf src\n-->\n![a](b)\n"
)


LONG = Calls([("write_file", json.dumps({"path": "long.txt", "content": "x\n" * 1_000}))])
FORGERIES = (
    (Calls([("run_command", json.dumps({"argv": ["sh", "-c", FORGED]}))]), "text", "```` sh -c "),
    (edit("BUG", f"BUG\n{FORGED}"), "diff", "calc.py"),
    (Calls([("write_file", json.dumps({"path": "![a](b).md", "content": FORGED}))]), "diff", "`![a](b).md`"),
)


@slow
def test_forged_markdown_stays_inside_the_code_block_and_a_long_preview_is_cut(folder: Path, desk: SharedAgent) -> None:
    (folder / "calc.py").write_text("BUG\n", encoding="utf-8")

    async def scene(talk: AgentConnection) -> None:
        await talk.ask(await talk.begin("ask"))

    script = [*(call for call, *_ in FORGERIES), LONG, Say("I may not.")]
    desk.play(folder, script, scene, ("reject",) * 4)
    *requests, (long, _) = desk.editor.requests
    for (request, _), (_, language, title) in zip(requests, FORGERIES, strict=True):
        assert request.content is not None
        rule, opening, *inside, closing = request.content[0].content.text.replace("\n\n", "\n", 1).split("\n")
        assert rule.replace("_", "").isalpha()
        assert (opening, closing) == (f"````{language}", "````")
        assert any("rm -rf src" in line for line in inside)
        assert not any(line.lstrip("+ ").startswith("````") for line in inside)
        assert (request.title or "").partition(" ")[2].startswith(title)
    assert long.content is not None
    assert long.content[0].content.text.endswith("\n\nNot all of it is shown here.")


@slow
def test_call_can_be_rejected_or_allowed_for_the_session(folder: Path, desk: SharedAgent) -> None:
    (folder / "b.txt").write_text("b\n", encoding="utf-8")
    other = ("edit_file", json.dumps({"path": "b.txt", "old_str": "b", "new_str": "c"}))

    async def scene(talk: AgentConnection) -> None:
        assert await talk.ask(await talk.begin("ask")) == "end_turn"
        assert (folder / "calc.py").read_text(encoding="utf-8") == f"# {KEY}\n{BUG}"
        assert [desk.editor.of_call(number)[-1].status for number in (0, 1)] == ["failed", "failed"]
        assert await talk.ask(await talk.begin("ask")) == "end_turn"

    refused = [FIX, edit("a - b", "b + a"), Say("I may not.")]
    allowed = [Calls([*FIX.calls, other]), edit("a + b", "b + a"), Say("Done.")]
    desk.play(folder, [*refused, *allowed], scene, ("reject", "reject", "approve_for_run"))
    assert (folder / "calc.py").read_text(encoding="utf-8") == f"# {KEY}\n{FIXED.replace('a + b', 'b + a')}"
    assert ((folder / "b.txt").read_text(encoding="utf-8"), len(desk.editor.requests)) == ("c\n", 3)


def test_prompt_can_be_cancelled_during_a_model_call_and_an_approval_request(folder: Path, desk: SharedAgent) -> None:
    from acp import RequestError

    editor = desk.editor

    async def scene(talk: AgentConnection) -> None:
        session = await talk.begin()
        for mode in ("auto", "ask"):
            editor.heard.clear()
            await talk.agent.set_session_mode(session_id=session, mode_id=mode)
            working = asyncio.ensure_future(talk.ask(session))
            await editor.heard.wait()
            if mode == "auto":
                with pytest.raises(RequestError, match="working on another prompt"):
                    await talk.ask(session)
            await talk.agent.cancel(session_id=session)
            editor.cancelled.set()
            assert await working == "cancelled"

    desk.play(folder, [Stall(2, Say("Let me see what there is.")), FIX], scene)
    assert "stopped by the editor" in editor.texts("agent_message_chunk")
    assert len(editor.requests) == 1
    assert (folder / "calc.py").read_text(encoding="utf-8") == f"# {KEY}\n{BUG}"


def test_loaded_session_replays_its_messages_and_can_bring_mcp_servers(folder: Path, desk: SharedAgent) -> None:
    """An unusable server is reported, and the session works without it."""
    from acp import helpers, schema

    editor = desk.editor
    connection: Any = program(folder)
    echo = schema.McpServerStdio(name="echo", command=connection["command"], args=connection["args"], env=[])

    async def scene(talk: AgentConnection) -> None:
        session = await talk.begin(mcp_servers=[echo])
        await talk.ask(session)
        listed = (await talk.agent.list_sessions(cwd=talk.folder)).sessions
        assert [(session_info.session_id, session_info.title) for session_info in listed] == [(session, "Fix the sum.")]
        editor.updates.clear()
        broken = echo.model_copy(update={"command": "/nowhere/at/all"})
        loaded = await talk.agent.load_session(cwd=talk.folder, session_id=session, mcp_servers=[broken])
        assert loaded.modes.current_mode_id == "auto"
        assert editor.texts("user_message_chunk") == "Fix the sum."
        assert editor.texts("agent_message_chunk").endswith("It adds now.")
        assert await talk.ask(session, helpers.text_block("Why?")) == "end_turn"

    requests = desk.play(folder, [FIX, Say("It adds now."), Say("It subtracted.")], scene)
    assert "It adds now." in json.dumps(requests[-1]["messages"])
    offered = [{tool["function"]["name"] for tool in request["tools"]} for request in requests]
    assert [name for name in offered[0] if name not in offered[-1]] == ["echo__echo"]
    assert "The editor's MCP servers are not used." in editor.texts("agent_thought_chunk")


@slow
def test_mcp_server_of_the_editor_runs_once_per_session_and_cannot_be_rewritten(
    folder: Path, desk: SharedAgent
) -> None:
    from acp import helpers, schema

    arguments = [str(folder / "pids"), json.dumps([ECHO]), ""]
    text = f"import sys\nsys.argv[1:] = {arguments!r}\n{PROGRAM}"
    (folder / "server.py").write_text(text, encoding="utf-8")
    (folder / "mcp.py").write_text("raise SystemExit('a module of the workspace was imported')", encoding="utf-8")
    server = schema.McpServerStdio(name="s", command=sys.executable, args=["server.py"], env=[])
    write = Calls([("edit_file", json.dumps({"path": "server.py", "old_str": "import sys", "new_str": "evil"}))])
    call = Calls([("s__echo", '{"a": 1}')])

    async def scene(talk: AgentConnection) -> None:
        session = await talk.begin(mcp_servers=[server])
        await talk.ask(session)
        await talk.ask(session, helpers.text_block("Once more."))
        assert [desk.editor.of_call(number)[-1].status for number in range(3)] == ["failed", "completed", "completed"]
        assert len((folder / "pids").read_text(encoding="utf-8").split()) == 1
        await talk.agent.load_session(cwd=talk.folder, session_id=session, mcp_servers=[])
        assert running_processes(folder) == []

    desk.play(folder, [write, call, Say("Done."), call, Say("Done.")], scene)
    assert (folder / "server.py").read_text(encoding="utf-8") == text


def test_failure_is_an_error_with_a_message(folder: Path, desk: SharedAgent) -> None:
    """For a session that cannot start, a prompt whose model fails, and invalid requests of the client."""
    from acp import RequestError, helpers

    async def scene(talk: AgentConnection) -> None:
        session = await talk.begin()
        with pytest.raises(RequestError, match="refuses the key: check OPENAI_API_KEY"):
            await talk.ask(session)
        with pytest.raises(RequestError, match="does not exist: create the folder"):
            await talk.begin(cwd="/nowhere/at/all")
        with pytest.raises(RequestError, match="There is no session 'x' here"):
            await talk.ask("x")
        with pytest.raises(RequestError, match=f"There is no session '{session[:6]}' in"):
            await talk.agent.load_session(cwd=talk.folder, session_id=session[:6], mcp_servers=[])
        with pytest.raises(RequestError, match="There is no mode 'yolo'"):
            await talk.agent.set_session_mode(session_id=session, mode_id="yolo")
        with pytest.raises(RequestError, match="block of type audio"):
            await talk.ask(session, helpers.audio_block("", "audio/wav"))
        with pytest.raises(RequestError, match="is not an image that models accept"):
            await talk.ask(session, helpers.image_block("", "image/png"))

    desk.play(folder, [Status(401)], scene)
    assert "SYSTEM_ERROR (provider_failed)" in desk.editor.texts("agent_message_chunk")


def test_commands_of_files_and_mcp_servers_are_offered_and_sent(folder: Path, desk: SharedAgent) -> None:
    from acp import RequestError, helpers, schema

    (folder / ".claude" / "commands").mkdir(parents=True)
    (folder / ".claude" / "commands" / "tidy.md").write_text("---\nargument-hint: PATH\n---\nTidy $1.\n")
    arguments = ["-S", "-E", "-c", PROMPTS, str(folder / "asked")]
    server = schema.McpServerStdio(name="github", command=sys.executable, args=arguments, env=[])

    async def offered() -> dict[str, schema.AvailableCommand]:
        while True:
            for update in desk.editor.updates:
                if update.session_update == "available_commands_update":
                    return {command.name: command for command in update.available_commands}

            await asyncio.sleep(0.05)

    async def scene(talk: AgentConnection) -> None:
        session = await talk.begin(mcp_servers=[server])
        commands = await offered()
        hints = {name: command.input.root.hint for name, command in commands.items() if command.input}
        assert hints == {"tidy": "PATH", "github:review": "<pr> [note]"}
        assert commands["github:review"].description == "Review a pull request"
        assert "github:picture" in commands

        for line in ("/tidy a.py", "/github:review 7", "/github:picture", "/login returns 404"):
            await talk.ask(session, helpers.text_block(line))
        with pytest.raises(RequestError, match="pr is missing: /github:review"):
            await talk.ask(session, helpers.text_block("/github:review"))

    requests = desk.play(folder, [Say("Done.")] * 4, scene)
    file, prompt, picture, text = [request["messages"][-1]["content"] for request in requests]
    assert "Tidy a.py." in file
    assert "Write AGENTS.md about 7" in prompt
    assert picture[1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert text == "/login returns 404"


class FormEditor(Editor):
    """A client with forms: it answers each with the next of `actions`, with `content` if that is "accept"."""

    def __init__(self, content: JsonMap, *actions: str) -> None:
        super().__init__()
        self.content, self.actions = content, [*actions]
        self.forms: list[tuple[str, JsonMap]] = []

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        from acp import schema

        self.forms.append((message, mode.requested_schema.model_dump(exclude_none=True)))
        action = self.actions.pop(0)
        if action == "accept":
            return schema.AcceptElicitationResponse(action="accept", content=self.content)
        if action == "decline":
            return schema.DeclineElicitationResponse(action="decline")
        return schema.CancelElicitationResponse(action="cancel")


def test_question_of_the_model_is_answered_in_a_form(folder: Path) -> None:
    from acp import schema

    editor = FormEditor({"answer": f"The third; {KEY}"}, "accept", "decline", "cancel")
    form = schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
    questions = [
        Calls([("ask_user", json.dumps({"question": question, "choices": ["a", "b"]}))])
        for question in (f"Which one? {KEY}", "Really?", "Why?")
    ]

    async def scene(url: str) -> list[str]:
        async with asyncio.timeout(LONG_S), start_agent(folder, editor, url, elicitation=form) as talk:
            session = await talk.begin()
            return [await talk.ask(session), await talk.ask(session)]

    with ScriptedServer([*questions[:2], Say("Done."), questions[2]]) as server:
        reasons = asyncio.run(scene(server.base_url))

    assert reasons == ["end_turn", "cancelled"]
    [first, second, third] = editor.forms
    assert [message.partition("\n")[0] for message, _ in editor.forms] == [
        "Which one? [redacted secret]",
        "Really?",
        "Why?",
    ]
    assert first[1] == second[1] == third[1]
    assert (first[1]["required"], first[1]["properties"]["answer"]["type"]) == (["answer"], "string")
    assert "The third" in server.requests[1]["messages"][-1]["content"]
    assert "The user gives no answer." in server.requests[2]["messages"][-1]["content"]
    assert editor.requests == []


@slow
def test_limit_is_raised_by_one_option(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "limits.toml"
    settings.write_text('on_limit = "ask"\nmax_calls_per_turn = 1\n', encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(settings))
    editor = Editor(("approve", ""))

    async def read_twice(url: str) -> str:
        async with asyncio.timeout(LONG_S), start_agent(folder, editor, url) as talk:
            return await talk.ask(await talk.begin())

    reads = [Calls([("read_file", f'{{"path": "calc.py", "start_line": {line}}}')]) for line in (1, 2)]
    with ScriptedServer(reads) as server:
        reason = asyncio.run(read_twice(server.base_url))
    assert reason == "max_turn_requests"
    assert [call.title for call, _ in editor.requests] == [
        "1 of 1 model calls of this turn are spent. Raise to 2?",
        "2 of 2 model calls of this turn are spent. Raise to 4?",
    ]
    assert [option.name for option in editor.requests[0][1]] == ["Raise to 2", "Stop"]


def test_disconnect_of_the_client_ends_the_agent_and_the_run_can_be_resumed(folder: Path) -> None:
    editor = Editor()

    async def leaves(url: str) -> None:
        async with asyncio.timeout(LONG_S), start_agent(folder, editor, url) as talk:
            working = asyncio.ensure_future(talk.ask(await talk.begin()))
            await editor.heard.wait()
            working.cancel()

    with ScriptedServer([Stall(2, Say("Let me see what there is."))]) as server:
        asyncio.run(leaves(server.base_url))
    runs = list_runs(str(folder))
    assert isinstance(runs, tuple)
    assert [run.standing for run in runs] == [RunState.STOPPED]


@slow
def test_invalid_message_ends_the_agent_with_an_error() -> None:
    done = subprocess.run([COMMAND, "acp"], input="5\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "mendgraph: the editor sent an invalid message (AttributeError)\n"
