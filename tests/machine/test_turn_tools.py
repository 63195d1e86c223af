"""What `TurnTools` lets a run do, and what it logs and keeps."""

import json
import shutil
from collections.abc import Collection, Mapping
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.graph.runs.run import RunResult, run_task
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import ask_user, remember
from mendgraph.nodes.execute_tools.tools.read_file import read_skill
from mendgraph.nodes.execute_tools.tools.web import web_search
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, StopReason
from mendgraph.nodes.workspace.store.run_folder import folder_name
from tests.doubles.model_clock import set_clock
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.row_tables import rows
from tests.sandboxes import set_sandbox_problem
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

FILES = {"a.py": "a = 1\n", ".env": "A=1\n"}
READ = use(("read_file", {"path": "a.py"}))
DONE = Say("Done.")
SPECS = {
    tool.name: tool.spec for tool in (*default_tools(), read_skill, remember, ask_user, web_search) if not tool.child
}
NAMES = frozenset(SPECS)
LOOKING = frozenset(name for name, spec in SPECS.items() if spec.effect in {Effect.NONE, Effect.READ})
EDITING = LOOKING | {name for name, spec in SPECS.items() if spec.effect is Effect.WRITE}
JOB_TOOLS = frozenset({"job_output", "job_kill"})
NEEDY = frozenset({"run_command", "run_shell", "http_get"}) | JOB_TOOLS


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder with the runs' own files."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


def gateway(
    tools: tuple[Tool, ...] | None = None,
    roles: Mapping[str, Collection[str]] | None = None,
    secrets: tuple[str, ...] = (),
) -> MachineTools:
    return MachineTools({"tools": tools, "roles": roles or {}, "secrets": secrets})


def run_replies(root: Path, *replies: Use | Say, **more: Any) -> tuple[RunResult, ScriptedModel]:
    """The end of a run in thread "t", and the model of it. `context` overrides the context's defaults."""
    model = ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])
    context = AgentContext(workspace=str(root), **more.pop("context", {}))
    return run_task("Look.", context, model=model, thread_id="t", **more), model


def offered_tools(model: ScriptedModel) -> set[str]:
    """The tools that the model's first prompt offers."""
    return {schema["function"]["name"] for schema in model.calls[0].prompt.tools}


def results_of(model: ScriptedModel, call: int) -> list[JsonMap]:
    """The results that the model saw in a call, counted from 0."""
    return [
        json.loads(message["content"]) for message in model.calls[call].prompt.messages if message["role"] == "tool"
    ]


# --- Roles


def test_role_selects_the_tools(root: Path) -> None:
    tools_of_runs = gateway(roles={"mine": ["read_file"]})
    for role, names in {
        None: NAMES,
        "reader": LOOKING,
        "editor": EDITING,
        "operator": NAMES,
        "mine": {"read_file", "run_checks", "final_answer"},
    }.items():
        assert TurnTools(tools_of_runs, AgentContext(workspace=str(root), role=role)).allowed == names


def test_run_with_writable_paths_starts_no_program(root: Path) -> None:
    programs = {name for name, spec in SPECS.items() if spec.effect is Effect.EXECUTE}
    tools_of_runs = gateway(roles={"mine": sorted(NAMES)})
    assert "run_command" in programs
    for role in (None, "operator", "mine"):
        context = AgentContext(workspace=str(root), role=role, writable_paths=("a.py",), allowed_programs=("make",))
        tools = TurnTools(tools_of_runs, context)
        assert tools.allowed == NAMES - programs
        assert tools.commands() is None


def test_program_cannot_create_user_settings_in_the_workspace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / ".config"))
    commands = TurnTools(gateway(), AgentContext(workspace=str(root), allowed_programs=("sh",))).commands()
    if not isinstance(commands, Commands):
        pytest.skip(str(commands))
    script = "mkdir -p .config/mendgraph; for name in config prices; do echo > .config/mendgraph/$name.toml; done"
    assert isinstance(commands.run(["sh", "-c", script]), CommandResult)
    assert [path.name for path in (root / ".config").rglob("*")] == ["mendgraph"]


def test_users_skills_are_available_only_to_the_users_own_runs(root: Path) -> None:
    skill = Path.home() / ".agents" / "skills" / "deploy"
    write_files(skill, {"SKILL.md": "---\nname: deploy\ndescription: Deploys.\n---\n"})
    try:
        for served, notes, told_of in ((False, True, True), (False, False, False), (True, True, False)):
            tools_of_runs = MachineTools({}, served=served)
            tools = TurnTools(tools_of_runs, AgentContext(workspace=str(root), project_notes=notes))
            names = [name for folder in tools.skills for name in folder.names]
            assert (names, "read_skill" in tools.usable()) == (["deploy"] * told_of, told_of)
    finally:
        shutil.rmtree(skill.parent.parent)


@pytest.mark.parametrize(("limit", "seconds_left"), [(None, inf), (25.0, 15.0)])
def test_tool_context_has_the_seconds_left_of_max_seconds(
    limit: float | None, seconds_left: float, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, seconds_per_call=10.0)
    seen: list[float] = []

    @tool(effect=Effect.NONE)
    def look(context: ToolContext) -> str:
        """Look at the time."""
        seen.append(context.seconds_left)
        return "seen"

    result, _ = run_replies(
        root, use(("look", {})), DONE, tools=(*default_tools(), look), context={"max_seconds": limit}
    )
    assert result.ok
    assert seen == [pytest.approx(seconds_left, abs=1.0)]


def test_limit_for_an_unknown_tool_ends_the_run_before_any_model_call(root: Path) -> None:
    for field in ("tool_timeouts_s", "tool_quotas", "tool_calls_per_minute"):
        result, model = run_replies(root, DONE, context={field: {"read_fil": 1}})
        assert (result.outcome.reason, model.calls) == (StopReason.INVALID_REQUEST, []), field
        words = "The context limits an unknown tool, 'read_fil'. Did you mean read_file"
        assert words in result.outcome.message


def test_tool_outside_the_role_is_not_offered_and_is_denied(root: Path) -> None:
    write = use(("write_file", {"path": "b.py", "content": "b = 1\n"}), ("read_file", {"path": "a.py"}))
    result, model = run_replies(root, write, DONE, context={"role": "looker"}, roles={"looker": ["read_file"]})
    assert (result.outcome.kind, result.changes) == (OutcomeKind.FINISHED, ())
    assert offered_tools(model) == {"read_file", "final_answer"}
    denied, read = results_of(model, 1)
    message = "The role of this run does not include write_file. Use another tool, or answer without it."
    assert denied == {"ok": False, "error": {"code": "permission_denied", "message": message, "suggestions": []}}
    assert read["data"]["content"] == "a = 1\n"


# --- Tools offered to a run


PROGRAM, HOST = {"allowed_programs": ("make",)}, {"allowed_hosts": ("docs.python.org",)}
LISTED = {"allowed_commands": ("no/such/pytest", "cat")}
MISSING: list[tuple[JsonMap, str | None, frozenset[str]]] = [
    ({}, None, NEEDY),
    (PROGRAM, None, JOB_TOOLS | {"http_get", "run_shell"}),
    (PROGRAM, "there is no bubblewrap", NEEDY),
    (HOST, None, JOB_TOOLS | {"run_command", "run_shell"}),
    (PROGRAM | HOST, None, JOB_TOOLS | {"run_shell"}),
    (LISTED, None, JOB_TOOLS | {"run_command", "http_get"}),
    ({"allowed_commands": ("cargo no-such", "no/such/pytest")}, None, NEEDY),
    ({"allowed_programs": ("bash",)}, None, JOB_TOOLS | {"run_command", "http_get"}),
    ({"mode": "ask"}, None, JOB_TOOLS | {"run_command"}),
    ({"mode": "ask", "tool_quotas": {"run_shell": 0}}, None, JOB_TOOLS | {"run_shell"}),
    (PROGRAM | {"jobs": True, "sandbox": "landlock"}, None, JOB_TOOLS | {"http_get", "run_shell"}),
    (PROGRAM | {"jobs": True, "sandbox": "bubblewrap"}, None, frozenset({"http_get", "run_shell"})),
    (PROGRAM | HOST | {"role": "editor"}, None, NEEDY),
]


@rows(*MISSING)
def test_tool_without_its_requirements_is_not_offered(
    context: JsonMap, problem: str | None, missing: frozenset[str], root: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        set_sandbox_problem(patch, problem)
        usable = TurnTools(gateway(), AgentContext(workspace=str(root), **context)).usable()
        replaced = {"run_command"} & missing
        assert usable - replaced == NAMES - missing - {"read_skill", "remember", "ask_user", "web_search"}
        _, model = run_replies(root, DONE, context=context)
        assert offered_tools(model) & NEEDY == NEEDY - missing


def test_tools_of_mode_ask_have_at_most_6500_bytes(root: Path) -> None:
    """Source: 5,511 bytes before command lines, jobs and questions, which may add 1,500."""
    _, model = run_replies(root, DONE, context={"mode": "ask", "jobs": True, "questions": True, "memory": True})
    assert {"run_shell", *JOB_TOOLS, "ask_user", "remember"} <= offered_tools(model)
    assert len(json.dumps(model.calls[0].prompt.tools, separators=(",", ":"))) <= 6_500


def test_job_tools_are_not_offered_in_modes_read_only_and_plan(root: Path) -> None:
    for mode in ("read-only", "plan"):
        _, model = run_replies(root, DONE, context={**PROGRAM, "jobs": True, "sandbox": "bubblewrap", "mode": mode})
        assert not offered_tools(model) & NEEDY


def test_tool_whose_paths_cannot_be_determined_is_denied(root: Path) -> None:
    """It fails closed, and raises no exception out of the run."""
    result, model = run_replies(root, use(("patch", {"text": "nonsense!"})), DONE, tools=(*default_tools(), patch))
    [refused] = results_of(model, 1)
    assert (result.outcome.kind, refused["ok"]) == (OutcomeKind.FINISHED, False)
    assert [line["verdict"] for line in lines(root.parent / "data")] == ["deny"]


def _files_in(arguments: JsonMap) -> list[str]:
    if "!" in arguments["text"]:
        raise ValueError("this is no patch")
    return str(arguments["text"]).split()


@tool(effect=Effect.WRITE, paths_of=_files_in)
def patch(text: str) -> str:
    """Change the files that stand in the text."""
    return text


# --- The log


def lines(folder: Path) -> list[JsonMap]:
    """The calls in the log of thread "t"."""
    log = folder / "runs" / folder_name("t") / "audit.jsonl"
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    return [record for record in records if record["event"] == "call"]


def fingerprint(tool_name: str, arguments: str) -> str:
    return sha256(f'["{tool_name}",{arguments}]'.encode()).hexdigest()


def test_audit_log_has_a_line_for_each_call_even_if_denied(root: Path, tmp_path: Path) -> None:
    edit = {"path": "a.py", "old_str": "1", "new_str": "2"}
    replies = (
        use(("read_file", {"path": "./a.py"}), ("read_file", {"path": ".env"})),
        use(("edit_file", edit), ("no_such_tool", "{}")),
        use(("write_file", {"path": "../b.py", "content": "b"}), ("read_file", {"path": ".env"})),
        use(("read_file", {"path": "none.py"})),
        DONE,
    )
    run_replies(root, *replies, context={"evidence": False})
    audit_lines = lines(tmp_path / "data")
    for line in audit_lines:
        assert line.pop("time").endswith("+00:00")
        assert line.pop("ms") >= 0
        if line["verdict"] == "deny":
            line.pop("attempts")
        if "problem" in line:
            assert line["problem"].pop("details").startswith("Unknown tool 'no_such_tool'. Available: [")
    common = {
        "event": "call",
        "run_id": "t",
        "verdict": "allow",
        "rule": "",
        "ok": True,
        "error_type": "",
        "target": "",
    }
    common["changed"] = []
    read = {**common, "tool": "read_file", "attempts": 1}
    denied = {**common, "verdict": "deny", "ok": False, "error_type": "permission_denied"}
    malformed = {**denied, "rule": "malformed", "path": ""}
    secret = {**denied, "tool": "read_file", "rule": "env_file", "path": ".env"}
    secret["arguments_sha256"] = fingerprint("read_file", '{"limit":0,"path":".env","start_column":1,"start_line":1}')
    assert [{**line, "arguments_sha256": ""} for line in audit_lines] == [
        {**line, "arguments_sha256": ""}
        for line in (
            {**read, "step": 1, "path": "a.py"},
            {**secret, "step": 1},
            {**common, "step": 2, "tool": "edit_file", "path": "a.py", "attempts": 1, "changed": ["a.py"]},
            {
                **malformed,
                "step": 2,
                "tool": "no_such_tool",
                "error_type": "unknown_tool",
                "problem": {"kind": "UNKNOWN_TOOL_NAME", "line": 0},
            },
            {**denied, "step": 3, "tool": "write_file", "rule": "workspace_boundary", "path": ""},
            {**secret, "step": 3},
            {**read, "step": 4, "path": "none.py", "ok": False, "error_type": "not_found"},
        )
    ]
    assert audit_lines[1]["arguments_sha256"] == secret["arguments_sha256"] == audit_lines[5]["arguments_sha256"]
    assert audit_lines[3]["arguments_sha256"] == sha256(b"{}").hexdigest()


def test_run_without_audit_writes_no_log(root: Path, tmp_path: Path) -> None:
    run_replies(root, READ, DONE, context={"audit": False})
    assert lines(tmp_path / "data") == []


# --- Roles and workspaces that cannot be used


def test_run_refuses_a_workspace_below_a_denied_folder(root: Path) -> None:
    for folder in (".aws", ".ssh/keys", ".CONFIG/gcloud", ".docker.bak/x"):
        write_files(root / folder, FILES)
        result, model = run_replies(root / folder, READ)
        assert model.calls == []
        assert result.outcome.message.startswith(f"The workspace '{root / folder}' holds ")


ROLES: list[tuple[str, dict[str, list[str]], str]] = [
    ("raeder", {}, "There is no role 'raeder'. Did you mean reader or editor?"),
    ("x", {"mine": ["read_file"]}, "There is no role 'x'. There are: editor, mine, operator, reader."),
    ("mine", {"mine": ["raed_file"]}, "The role 'mine' names an unknown tool, 'raed_file'. Did you mean read_file or "),
    ("reader", {"reader": ["read_file"]}, "'reader' is built in and cannot be redefined: rename yours."),
]


@slow
def test_invalid_role_ends_the_run_before_any_model_call(root: Path) -> None:
    for role, roles, message in ROLES:
        result, model = run_replies(root, context={"role": role}, roles=roles)
        assert (result.outcome.reason, model.calls) == (StopReason.INVALID_REQUEST, [])
        assert message in result.outcome.message


@tool(effect=Effect.NONE, name="ask_user")
def own_ask_user(text: str) -> dict[str, str]:
    """Ask in the user's own way."""
    return {"answer": f"mine: {text}"}


@pytest.mark.parametrize("questions", [False, True])
def test_users_tool_named_ask_user_is_an_ordinary_tool(root: Path, questions: bool) -> None:
    ask = use(("ask_user", {"text": "Which?"}))
    result, model = run_replies(
        root, ask, DONE, tools=(*default_tools(), own_ask_user), context={"questions": questions}
    )
    assert "ask_user" in offered_tools(model)
    assert (result.outcome.kind, results_of(model, 1)[0]["data"]["answer"]) == (OutcomeKind.FINISHED, "mine: Which?")
