"""Hooks of `.claude/settings.json` in runs of the command, with the examples of Claude Code's documentation."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, Session
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from mendgraph.graph.fleet.replay import Replay, replay_run
from mendgraph.graph.terminal.turns import let_tools_clean_up
from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.row_tables import rows
from tests.sandboxes import needs_sandbox
from tests.surfaces.conftest import Command, Typed

OPTIONS = ("--protocol", "text", "--no-evidence")
NEW = 'tool: write_file({"path": "new.py", "content": "x  =  1\\n"})'
LOCK = 'tool: write_file({"path": "package-lock.json", "content": "{}"})'
ENTRY = '[{"hooks": [{"type": "command", "command": "exit 2"}]}]'
NOT_RUN = f"The hooks of {HOOKS_FILE} do not run"

# Source: Claude Code, "Get started with hooks": file protection, formatting of Markdown, logging of commands.
PROTECTION = (
    "python3 -c \"import json, sys; data=json.load(sys.stdin); path=data.get('tool_input',{}).get('file_path','');"
    " sys.exit(2 if any(p in path for p in ['.env', 'package-lock.json', '.git/']) else 0)\""
)
FORMATTER = (
    "jq -r '.tool_input.file_path' | { read file_path; if echo \"$file_path\" | grep -q '\\.py$'; then"
    ' "$CLAUDE_PROJECT_DIR"/scripts/format.sh "$file_path"; fi; }'
)
LOGGER = (
    'jq -r \'"\\(.tool_input.command) - \\(.tool_input.description // "No description")"\''
    " >> ~/.claude/bash-command-log.txt"
)
FORMAT = '#!/bin/bash\nsed -i "s/  */ /g" "$1"\n'

needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="the documented examples use jq")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "user.toml"))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "user.toml").touch()
    (tmp_path / "home" / ".claude").mkdir(parents=True)
    return tmp_path / "home"


def configure(folder: Path, **events: Any) -> None:
    """Write the hooks: for each event a command, or a matcher and a command."""
    hooks = {}
    for event, entry in events.items():
        matcher, line = ("", entry) if isinstance(entry, str) else entry
        hooks[event] = [{"matcher": matcher, "hooks": [{"type": "command", "command": line}]}]
    (folder / ".claude").mkdir(exist_ok=True)
    (folder / HOOKS_FILE).write_text(json.dumps({"permissions": {}, "hooks": hooks}))


def trust_hooks(command: Command, folder: Path, **events: Any) -> None:
    configure(folder, **events)
    assert command("config", "trust")[0] == 0


def run(command: Command, *words: str, says: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of a task, and everything that is shown of it."""
    code, out, err = command(*OPTIONS, *words, says=says)
    return code, out + err


def decide(**output: Any) -> str:
    return f"echo '{json.dumps(output)}'"


def test_hooks_do_not_run_until_they_are_trusted(command: Command, folder: Path) -> None:
    configure(folder, UserPromptSubmit="echo no >&2; exit 2")
    code, out, err = command(*OPTIONS, "Say hello", says=("Hello.",))
    assert (code, "Hello." in out, NOT_RUN in err, "mendgraph config trust" in err) == (0, True, True, True)
    code, _, err = command(*OPTIONS, "--no-workspace-config", "Say hello", says=("Hello.",))
    assert (code, NOT_RUN in err) == (0, False)

    output = command("config", "trust")[1]
    assert "UserPromptSubmit" in output
    assert "echo no >&2; exit 2" in output
    assert command("config", "trust", "--forget")[0] == 0
    assert NOT_RUN in command(*OPTIONS, "Say hello", says=("Hello.",))[2]


def test_folder_without_hooks_prints_nothing_about_them(command: Command, folder: Path) -> None:
    (folder / ".claude").mkdir()
    (folder / HOOKS_FILE).write_text('{"permissions": {"allow": ["Bash(ls)"]}}')
    assert "hooks" not in command(*OPTIONS, "Say hello", says=("Hello.",))[2]
    assert "has no hooks that run here" in command("config", "trust")[1]
    (folder / HOOKS_FILE).write_text('{"hooks": null}')
    assert "hooks" not in command(*OPTIONS, "Say hello", says=("Hello.",))[2]
    (folder / HOOKS_FILE).write_text(f'{{"disableAllHooks": true, "hooks": {{"Stop": {ENTRY}}}}}')
    assert "hooks" not in command(*OPTIONS, "Say hello", says=("Hello.",))[2]


@rows(('{"hooks": []}', "no JSON object"), ("[]", "no JSON object"), ("{", "no JSON object"))
def test_invalid_hook_file_is_refused(text: str, part: str, command: Command, folder: Path) -> None:
    (folder / ".claude").mkdir(exist_ok=True)
    (folder / HOOKS_FILE).write_text(text)
    code, _, err = command("config", "trust")
    assert (code != 0, part in err) == (True, True), err


@needs_sandbox
@needs_jq
def test_documented_examples_protect_a_file_and_format_written_files(command: Command, folder: Path) -> None:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "format.sh").write_text(FORMAT)
    (folder / "scripts" / "format.sh").chmod(0o755)
    trust_hooks(command, folder, PreToolUse=("Edit|Write", PROTECTION), PostToolUse=("Edit|MultiEdit|Write", FORMATTER))

    spoil = 'tool: write_file({"path": "scripts/format.sh", "content": "#!/bin/bash\\n"})'
    code, output = run(command, "Write scripts/format.sh", says=(LOCK, spoil, NEW, "Done."))
    assert (code, "A hook of the project blocks this call" in output) == (0, True)
    assert "+x = 1" in output
    assert not (folder / "package-lock.json").exists()
    assert (folder / "scripts" / "format.sh").read_text() == FORMAT
    assert (folder / "new.py").read_text() == "x = 1\n"

    assert command("undo")[0] == 0
    assert not (folder / "new.py").exists()


@needs_sandbox
@rows(("",), ('hooks = "unconfined"\nwritable_paths = ["new.py"]',))
def test_change_by_a_hook_after_an_edit_is_undone_with_it(
    settings: str, command: Command, folder: Path, home: Path
) -> None:
    (home.parent / "user.toml").write_text(settings)
    before = (folder / "calc.py").read_text()
    trust_hooks(command, folder, PostToolUse=("Write", "sed -i 's/  */ /g' n*.py; echo >> ca*.py"))
    code, output = run(command, "Write it", says=(NEW, "Done."))
    assert (code, (folder / "new.py").read_text(), "+x = 1" in output) == (0, "x = 1\n", True)
    assert command("undo")[0] == 0
    assert ((folder / "new.py").exists(), (folder / "calc.py").read_text()) == (False, before)


@needs_sandbox
@needs_jq
def test_documented_logger_writes_to_the_home_directory_only_if_unconfined(
    command: Command, folder: Path, home: Path
) -> None:
    trust_hooks(command, folder, PreToolUse=("Bash", LOGGER))
    listing = 'tool: run_command({"argv": ["ls", "-a"]})'
    log = home / ".claude" / "bash-command-log.txt"

    _, output = run(command, "--allow-program", "ls", "List the files", says=(listing, "Done."))
    assert ("ended with exit code 1" in output, log.exists()) == (True, False)

    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    _, output = run(command, "--allow-program", "ls", "List the files", says=(listing, "Done."))
    assert ("exit code 1" in output, log.read_text()) == (False, "ls -a - No description\n")


DECISIONS: list[tuple[str, str, bool]] = [
    ("echo Use another name. >&2; exit 2", "Use another name.", False),
    (decide(decision="block", reason="Not here."), "Not here.", False),
    (decide(hookSpecificOutput={"permissionDecision": "deny", "permissionDecisionReason": "No."}), "No.", False),
    (decide(hookSpecificOutput={"permissionDecision": "ask", "permissionDecisionReason": "Sure?"}), "Sure?", False),
    (decide(hookSpecificOutput={"permissionDecision": "allow"}), "", True),
    (decide(**{"continue": False, "stopReason": "Enough."}), "Enough.", False),
    (decide(decision={"behavior": "deny"}), "no text", False),
    ('echo \'{"decision": "block", "reason": "an "open" quote"}\'', "no JSON", False),
    ("echo '{}'", "", True),
    ("echo >&2; exit 2", "It gives no reason.", False),
    (decide(decision="block", reason=" "), "Its decision is block.", False),
    (decide(hookSpecificOutput={"updatedInput": {"file_path": "b.py"}}), "updatedInput", False),
    ('echo \'{"decision": "block", "reason": "\'$(head -c 90000 /dev/zero | tr \'\\0\' x)\'"}\'', "too long", False),
    ("head -c 200000 /dev/zero | tr '\\0' x; echo Far too much. >&2; exit 2", "Far too much.", False),
    ("echo plain words", "", True),
    ('echo \'[{"decision": "block"}]\'', "no JSON object", False),
    (decide(hookSpecificOutput=[{"permissionDecision": "deny"}]), "no JSON object", False),
    (decide(decision="Block"), "Its decision is Block.", False),
    ('printf \'\\xef\\xbb\\xbf{"decision": "block"}\'', "Its decision is block.", False),
    (r"""echo '{"decision": "block", "reason": "\ud83d x"}'""", "\ufffd x", False),
    ("exit 126", "it could not be run (exit code 126)", False),
    ("nosuchprogram", 'hooks = "unconfined" in your own config.toml', False),
    ("kill -9 $$", "it could not be run", False),
    ("exit 1", "ended with exit code 1", True),
    ("test -w . && exit 2; true", "", True),
]


@needs_sandbox
@rows(*DECISIONS)
def test_hook_before_a_call_decides_whether_it_runs(
    line: str, part: str, runs: bool, command: Command, folder: Path
) -> None:
    (folder / "new.py").unlink(missing_ok=True)
    trust_hooks(command, folder, PreToolUse=("Write", line))
    _, output = run(command, "Write it", says=(NEW, "Done."))
    assert ((folder / "new.py").exists(), part in output) == (runs, True), output


@needs_sandbox
@rows(("python3 test_calc.py",), ("bash t.sh",))
def test_tests_in_a_stop_hook_import_from_the_workspace(line: str, command: Command, folder: Path) -> None:
    (folder / "test_calc.py").write_text("import new\n")
    (folder / "t.sh").write_text("python3 test_calc.py\n")
    trust_hooks(command, folder, Stop=f"{line} >&2 || exit 2")
    code, output = run(command, "Write it", says=(NEW, "Done."))
    assert (code, "exit code" in output) == (0, False), output


@needs_sandbox
def test_hook_that_exceeds_its_timeout_is_killed_and_its_call_does_not_run(command: Command, folder: Path) -> None:
    configure_entry(command, folder, command="(sleep 2; touch late) & wait", timeout=0.3)
    _, output = run(command, "Write it", says=(NEW, "Done."))
    assert ("was stopped after 0.3 s" in output, (folder / "new.py").exists()) == (True, False)


@needs_sandbox
def test_hook_that_allows_a_call_does_not_override_guard(command: Command, folder: Path) -> None:
    allow = decide(decision="approve", hookSpecificOutput={"permissionDecision": "allow"})
    trust_hooks(command, folder, PreToolUse=allow)
    denied = 'tool: write_file({"path": ".env", "content": "A=1"})'
    command(*OPTIONS, "Write it", says=(denied, "Done."))
    assert not (folder / ".env").exists()


@needs_sandbox
def test_output_of_hooks_reaches_the_model_and_does_not_count_as_the_persons(command: Command, folder: Path) -> None:
    (folder / "AGENTS.md").write_text("notes\n")
    finish = "grep -q '\"stop_hook_active\":true' || { echo Say thanks. >&2; exit 2; }"
    submit = "grep -q forbidden && { echo No such words. >&2; exit 2; }; echo Change AGENTS.md"
    trust_hooks(command, folder, SessionStart=("startup", "echo Branch main"), UserPromptSubmit=submit, Stop=finish)

    change = 'tool: write_file({"path": "AGENTS.md", "content": "changed"})'
    code, out, err = command(*OPTIONS, "Say hello", says=(change, "Hello.", "Thanks."))
    assert (code, "Hello." in out, "Thanks." in out) == (0, True, True)
    assert (folder / "AGENTS.md").read_text() == "notes\n", err

    code, _, err = command(*OPTIONS, "Say forbidden words", says=("Hello.",))
    assert (code, "A hook blocks this request: No such words." in err) == (2, True)


@needs_sandbox
def test_output_of_a_hook_after_a_call_reaches_the_model(command: Command, folder: Path) -> None:
    trust_hooks(command, folder, PostToolUse=("Read", "echo Mind the tabs. >&2; exit 2"))
    read = 'tool: read_file({"path": "calc.py"})'
    code, output = run(command, "--debug", "Read it", says=(read, "Done."))
    assert (code, '"hooks":"Mind the tabs."' in output.replace('": "', '":"')) == (0, True), output[-3000:]


@needs_sandbox
def test_changed_script_ends_the_trust_and_a_named_data_file_does_not(command: Command, folder: Path) -> None:
    (folder / "check.sh").write_text("exit 2\n")
    (folder / "log.txt").write_text("")
    line = f"cat data.json | bash check.sh >> {folder}/log.txt"
    (folder / "data.json").write_text("{}")
    trust_hooks(command, folder, UserPromptSubmit=line)
    (folder / "data.json").write_text("{1}")
    (folder / "log.txt").write_text("more")
    assert NOT_RUN not in command(*OPTIONS, "Say hello", says=("Hello.",))[2]
    (folder / "check.sh").write_text("exit 0\n")
    code, _, err = command(*OPTIONS, "Say hello", says=("Hello.",))
    assert (code, "as check.sh has changed" in err) == (2, True)


@needs_sandbox
def test_hook_decision_ask_blocks_the_call_even_in_mode_ask(command: Command, folder: Path) -> None:
    ask = decide(hookSpecificOutput={"permissionDecision": "ask", "permissionDecisionReason": "Sure?"})
    trust_hooks(command, folder, PreToolUse=("Write", ask))
    command(*OPTIONS, "--mode", "ask", "Write it", says=(NEW, "Done."), typed=Typed("y\n"))
    assert not (folder / "new.py").exists()


def test_unconfined_hook_blocks_whatever_it_prints(command: Command, folder: Path, home: Path) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    trust_hooks(command, folder, PreToolUse=("Write", "head -c 200000 /dev/zero | tr '\\0' x; exit 2"))
    run(command, "Write it", says=(NEW, "Done."))
    assert not (folder / "new.py").exists()


def test_trust_lost_during_a_run_blocks_its_calls(command: Command, folder: Path, home: Path) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    (folder / "check.sh").write_text("exit 0\n")
    trust_hooks(command, folder, PreToolUse=("Write", "bash check.sh"), PostToolUse=("Write", "echo >> check.sh"))
    later = 'tool: write_file({"path": "later.py", "content": "x = 1\\n"})'
    _, output = run(command, "Write both", says=(NEW, later, "Done."))
    assert ((folder / "new.py").exists(), (folder / "later.py").exists()) == (True, False)
    assert "blocks this call: The hooks of .claude/settings.json do not run, as check.sh has changed" in output
    assert "mendgraph config trust" in output


@needs_sandbox
def test_workspace_file_with_the_name_of_a_program_does_not_affect_hooks(command: Command, folder: Path) -> None:
    trust_hooks(command, folder, PreToolUse=("Write", "grep -q new.py && exit 2; exit 0"))
    grep = 'tool: write_file({"path": "grep", "content": "x"})'
    command(*OPTIONS, "Write both", says=(grep, NEW, "Done."))
    assert ((folder / "grep").exists(), (folder / "new.py").exists()) == (True, False)


def configure_entry(call: Command, folder: Path, **entry: Any) -> str:
    """Trust a group with one hook that allows all calls, with these fields of the group or of the hook."""
    group = {"matcher": entry.pop("matcher", "Write")}
    hook = {"type": "command", "command": "true", **entry}
    (folder / ".claude").mkdir(exist_ok=True)
    (folder / HOOKS_FILE).write_text(json.dumps({"hooks": {"PreToolUse": [{**group, "hooks": [hook]}]}}))
    code, out, _ = call("config", "trust")
    assert code == 0
    return out


@needs_sandbox
@rows(
    ("args", ["check.sh"], "args is not supported"),
    ("shell", "powershell", "shell is not supported"),
    ("if", "Bash(git *)", "if is not supported"),
    ("async", True, "async is not supported"),
    ("type", "prompt", "it is no command"),
    ("command", ["true"], "it is no command"),
    ("matcher", "(", "the matcher is no regular expression"),
    ("matcher", ["Write"], "the matcher is no regular expression"),
    ("matcher", "(" * 5_000 + ")" * 5_000, "the matcher is no regular expression"),
    ("matcher", "a{99999999999999999999999}", "the matcher is no regular expression"),
    ("matcher", "[[a--b]]", "the matcher is no regular expression"),
    ("matcher", "(W|W)+x", "the matcher repeats a group"),
    ("matcher", None, ""),
    ("timeout", 5_000, ""),
    ("timeout", "5", ""),
    ("shell", "bash", ""),
)
def test_unsupported_entry_blocks_its_calls_and_is_reported(
    field: str, value: object, part: str, command: Command, folder: Path
) -> None:
    (folder / "new.py").unlink(missing_ok=True)
    assert part in configure_entry(command, folder, **{field: value})
    _, output = run(command, "Write it", says=(NEW, "Done."))
    assert ((folder / "new.py").exists(), part in output) == (not part, True), output


@needs_sandbox
@rows(
    ("^Wri", True), ("Edit, Write", True), ("Edit | write_file", True), ("^(Read|Write)$", True), ("*", True),
    ("Wri", False), ("Edit-Write", False), ("write", False), ("^rite", False),
)  # fmt: skip
def test_matcher_is_a_list_of_names_or_a_regular_expression(
    matcher: str, is_blocked: bool, command: Command, folder: Path
) -> None:
    (folder / "new.py").unlink(missing_ok=True)
    trust_hooks(command, folder, PreToolUse=(matcher, "exit 2"))
    run(command, "Write it", says=(NEW, "Done."))
    assert (folder / "new.py").exists() != is_blocked


@rows(("off",), ("sandbox",), ("unconfined",))
def test_workspace_settings_cannot_decide_about_hooks(value: str, command: Command, folder: Path) -> None:
    (folder / ".mendgraph.toml").write_text(f'hooks = "{value}"\n')
    code, _, err = command("config", "trust")
    assert (code != 0, "only in your own config.toml" in err) == (True, True)
    assert command(*OPTIONS, "Say hello", says=("Hello.",))[0] != 0


@needs_sandbox
@rows((PROTECTION,), ('python3 "$CLAUDE_PROJECT_DIR"/guard.py',))
def test_workspace_file_with_the_name_of_a_python_module_is_not_imported_by_a_hook(
    line: str, command: Command, folder: Path
) -> None:
    (folder / "json.py").unlink(missing_ok=True)
    (folder / "guard.py").write_text(
        "import json, sys\nsys.exit(2 if 'package-lock' in str(json.load(sys.stdin)) else 0)\n"
    )
    trust_hooks(command, folder, PreToolUse=("Write", line))
    module = 'tool: write_file({"path": "json.py", "content": "raise SystemExit(0)\\n"})'
    command(*OPTIONS, "Write both", says=(module, LOCK, "Done."))
    assert ((folder / "json.py").exists(), (folder / "package-lock.json").exists()) == (True, False)


@needs_sandbox
def test_hook_can_block_a_child(command: Command, folder: Path) -> None:
    trust_hooks(command, folder, PreToolUse=("Task", "echo No children. >&2; exit 2"))
    child = 'tool: delegate({"task": "Say hello"})'
    code, output = run(command, "--delegate", "Do it", says=(child, "Done."))
    assert (code, "blocks this call: No children." in output) == (0, True), output


@needs_sandbox
def test_hook_gets_the_target_path_of_a_link(command: Command, folder: Path) -> None:
    (folder / "package-lock.json").write_text("{}\n")
    (folder / "x.txt").symlink_to("package-lock.json")
    trust_hooks(command, folder, PreToolUse=("Write", "grep -q 'package-lock.json\"' && exit 2; true"))
    read = 'tool: read_file({"path": "x.txt"})'
    write = 'tool: write_file({"path": "x.txt", "content": "{1}"})'
    run(command, "Write it", says=(read, write, "Done."))
    assert (folder / "package-lock.json").read_text() == "{}\n"


def test_unconfined_hook_starts_no_program_or_startup_file_of_the_workspace(
    command: Command, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    (folder / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{folder}/.venv/bin:{os.environ['PATH']}")
    monkeypatch.setenv("BASH_ENV", f"{folder}/start.sh")
    (folder / "start.sh").write_text("touch ~/ran\n")
    trust_hooks(command, folder, UserPromptSubmit="grep -q nothing; true")
    (folder / ".venv" / "bin" / "grep").write_text("#!/bin/bash\ntouch ~/ran\n")
    (folder / ".venv" / "bin" / "grep").chmod(0o755)
    assert run(command, "Say hello", says=("Hello.",))[0] == 0
    assert not (home / "ran").exists()


@rows((("Write it",),), (("chat",),), (("--json", "resume", "RUN"),), (("-c", "Write it"),))
def test_nothing_starts_while_the_trust_in_hooks_is_lost(
    words: tuple[str, ...], command: Command, folder: Path, home: Path
) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    trust_hooks(command, folder, PreToolUse=("Write", "exit 2"))
    run_id = json.loads(command(*OPTIONS, "--json", "Say hello", says=("Hello.",))[1])["thread_id"]
    (folder / HOOKS_FILE).unlink()
    code, _, err = command(*OPTIONS, *(word.replace("RUN", run_id) for word in words), says=(NEW, "Done."))
    refusal = (code, "settings.json has changed or is missing" in err, "mendgraph config trust" in err)
    assert refusal == (2, True, True), err
    assert not (folder / "new.py").exists()

    assert "no longer trusted" in command("config", "trust")[1]
    assert run(command, "Write it", says=(NEW, "Done."))[0] == 0
    (folder / "new.py").unlink()


def test_unattended_run_whose_commit_lacks_the_trusted_hooks_does_not_start(command: Command, folder: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "calc.py"), ("commit", "-qm", "1")):
        subprocess.run([*git, *words], cwd=folder, check=True)
    trust_hooks(command, folder, PreToolUse=("Write", "exit 2"))
    code, output = run(command, "--unattended", "Write it", says=(NEW, "Done."))
    assert (code, "only what is committed" in output) == (2, True), output
    assert not list((folder / ".git" / "refs" / "heads").rglob("mendgraph/*"))


def test_config_trust_shows_each_command_with_its_pinned_and_unpinned_files(command: Command, folder: Path) -> None:
    (folder / "check.sh").touch()
    long = f"bash check.sh {'x' * 2_000}"
    configure(
        folder, PreToolUse=("Write", f"{long} end"), PostToolUse=("Edit", "npx prettier && bash check.sh"), Stop="jq .a"
    )
    lines = command("config", "trust")[1].splitlines()
    unpinned = "runs code of the workspace, the agent may change that code"
    assert lines[1:8] == [
        f"  PreToolUse Write: {long} end",
        "    pinned: check.sh",
        "  PostToolUse Edit: npx prettier && bash check.sh",
        "    pinned: check.sh",
        f"    not pinned: if npx {unpinned}",
        "  Stop *: jq .a",
        f"    not pinned: if it {unpinned}",
    ]


@needs_sandbox
@rows(("", True), ("--strict", False), ("GITHUB_ACTIONS", False), ("request_permits = false", False))
def test_unconfined_hooks_run_in_the_sandbox_where_others_control_the_run(
    where: str, is_unconfined: bool, command: Command, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "ran").unlink(missing_ok=True)
    line = where if "=" in where else ""
    (home.parent / "user.toml").write_text(f'hooks = "unconfined"\n{line}\n')
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if where == "GITHUB_ACTIONS" else "")
    trust_hooks(command, folder, UserPromptSubmit=f"touch {home}/ran")
    options = [where] if where == "--strict" else []
    err = command(*OPTIONS, *options, "Say hello", says=("Hello.",))[2]
    assert ((home / "ran").exists(), 'counts as "sandbox"' not in err) == (is_unconfined, is_unconfined), err


@needs_sandbox
def test_strict_run_in_python_has_no_unconfined_hooks(command: Command, folder: Path, home: Path) -> None:
    trust_hooks(command, folder, PreToolUse=("Read", f"touch {home}/ran"))
    context = AgentContext(workspace=str(folder), hooks="unconfined", strict=True, protocol="text")
    read = 'tool: read_file({"path": "calc.py"})'
    with Session(context, model=ScriptedModel([Say(read), Say("Done.")])) as session:
        session.work("Read it")
    assert not (home / "ran").exists()


@needs_sandbox
@rows(("sub/../package-lock.json",), ("./package-lock.json",), ("package-lock.json",))
def test_hook_gets_a_normalized_path(path: str, command: Command, folder: Path) -> None:
    (folder / "sub").mkdir(exist_ok=True)
    name = f'"file_path":"{folder}/package-lock.json"'
    trust_hooks(command, folder, PreToolUse=("Write", f"grep -qF '{name}' && exit 2; true"))
    run(command, "Write it", says=(LOCK.replace("package-lock.json", path), "Done."))
    assert not (folder / "package-lock.json").exists()


@rows(
    (decide(**{"continue": False}, decision="block", reason="Go on."), False),
    (decide(decision="block", reason="Go on."), True),
)
def test_stop_hook_with_continue_false_ends_the_turn_even_if_it_blocks(
    line: str, goes_on: bool, command: Command, folder: Path, home: Path
) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    trust_hooks(command, folder, Stop=line)
    code, out, _ = command(*OPTIONS, "Say hello", says=("Hello.", *["Thanks."] * 3))
    assert (code, "Thanks." in out) == (0, goes_on)


@rows(("--json", None), ("--json-lines", "error"))
def test_blocked_request_is_an_error_in_json_output(
    option: str, event: str | None, command: Command, folder: Path, home: Path
) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    trust_hooks(command, folder, UserPromptSubmit="echo No such words. >&2; exit 2")
    code, out, _ = command(*OPTIONS, option, "Say hello", says=("Hello.",))
    document = json.loads(out)
    error = {"code": "permission_denied", "message": "A hook blocks this request: No such words."}
    assert (code, document["error"], document.get("event")) == (2, error, event)


def test_warning_about_a_hook_is_redacted(
    command: Command, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"sk-proj-{'0123456789' * 3}"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    trust_hooks(command, folder, UserPromptSubmit="cat >&2; exit 1")
    err = command(*OPTIONS, f"Say {secret}", says=("Hello.",))[2]
    assert ("ended with exit code 1" in err, secret in err) == (True, False)


def test_hooks_without_trust_block_calls_of_a_python_session(command: Command, folder: Path) -> None:
    configure(folder, PreToolUse=("Write", "exit 2"))
    context = AgentContext(workspace=str(folder), hooks="sandbox", protocol="text")
    with Session(context, model=ScriptedModel([Say(NEW), Say("Done.")])) as session:
        session.work("Write it")
        messages = str(session.result().messages)
    assert ((folder / "new.py").exists(), f"blocks this call: {NOT_RUN}" in messages) == (False, True)
    assert command("config", "trust")[0] == 0


@rows(("rm .claude/settings.json",), ("ln -sf b.sh link.sh",), ("echo '{}' > .claude/settings.json",))
def test_calls_are_blocked_once_a_hook_file_is_removed_or_its_link_changes(
    line: str, command: Command, folder: Path, home: Path
) -> None:
    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    for name in ("new.py", "later.py", "link.sh"):
        (folder / name).unlink(missing_ok=True)
    for name in ("a.sh", "b.sh"):
        (folder / name).touch()
    (folder / "link.sh").symlink_to("a.sh")
    trust_hooks(command, folder, PreToolUse=("Write", "bash link.sh"), PostToolUse=("Write", line))
    later = 'tool: write_file({"path": "later.py", "content": "x = 1\\n"})'
    run(command, "Write both", says=(NEW, later, "Done."))
    assert ((folder / "new.py").exists(), (folder / "later.py").exists()) == (True, False)


def test_unconfined_hook_is_killed_when_its_call_is_cancelled(command: Command, folder: Path) -> None:
    trust_hooks(command, folder, PreToolUse=("Write", "echo $$ > pid; exec sleep 60"))
    context = AgentContext(workspace=str(folder), hooks="unconfined", protocol="text")
    pid = folder / "pid"

    async def cancelled() -> None:
        session = Session(context, model=ScriptedModel([Say(NEW), Say("Done.")]))
        working = asyncio.ensure_future(read_all(session.astream("Write it")))
        await asyncio.to_thread(wait_for, pid)
        working.cancel()
        await asyncio.wait({working})
        await session.aclose()

    asyncio.run(cancelled())
    let_tools_clean_up()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert not (folder / "new.py").exists()


@needs_sandbox
def test_replay_runs_no_hooks(command: Command, folder: Path) -> None:
    trust_hooks(command, folder, PreToolUse=("Read", "exit 2"))
    context = AgentContext(workspace=str(folder), hooks="sandbox", protocol="text", evidence=False)
    with Session(context, model=ScriptedModel([Say(NEW), Say("Done.")])) as session:
        session.work("Write it")
    replay = replay_run(session.thread_id, folder, model=ScriptedModel([Say(NEW), Say("Done.")]))
    assert isinstance(replay, Replay)
    assert (replay.original.changed_files, replay.replay.changed_files) == (("new.py",), ("new.py",))


async def read_all(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


def wait_for(path: Path) -> None:
    while not (path.exists() and path.read_text().strip()):
        time.sleep(0.01)
