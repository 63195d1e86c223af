"""Hooks of `.claude/settings.json` in runs of the command, with the examples of Claude Code's documentation."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE
from tests.row_tables import rows
from tests.sandboxes import needs_sandbox
from tests.surfaces.conftest import Command, Typed

OPTIONS = ("--protocol", "text", "--no-evidence")
NEW = 'tool: write_file({"path": "new.py", "content": "x  =  1\\n"})'
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
    """Write the hooks: by event a command, or a matcher and a command."""
    hooks = {}
    for event, entry in events.items():
        matcher, line = ("", entry) if isinstance(entry, str) else entry
        hooks[event] = [{"matcher": matcher, "hooks": [{"type": "command", "command": line}]}]
    (folder / ".claude").mkdir(exist_ok=True)
    (folder / HOOKS_FILE).write_text(json.dumps({"permissions": {}, "hooks": hooks}))


def trusted(command: Command, folder: Path, **events: Any) -> None:
    configure(folder, **events)
    assert command("config", "trust")[0] == 0


def run(command: Command, *words: str, says: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of a task, and everything that is shown of it."""
    code, out, err = command(*OPTIONS, *words, says=says)
    return code, out + err


def deciding(**output: Any) -> str:
    return f"echo '{json.dumps(output)}'"


def test_hooks_do_not_run_until_they_are_trusted(command: Command, folder: Path) -> None:
    configure(folder, UserPromptSubmit="echo no >&2; exit 2")
    code, out, err = command(*OPTIONS, "Say hello", says=("Hello.",))
    assert (code, "Hello." in out, NOT_RUN in err, "mendgraph config trust" in err) == (0, True, True, True)
    code, _, err = command(*OPTIONS, "--no-workspace-config", "Say hello", says=("Hello.",))
    assert (code, NOT_RUN in err) == (0, False)

    shown = command("config", "trust")[1]
    assert "UserPromptSubmit" in shown
    assert "echo no >&2; exit 2" in shown
    assert command("config", "trust", "--forget")[0] == 0
    assert NOT_RUN in command(*OPTIONS, "Say hello", says=("Hello.",))[2]


def test_folder_without_hooks_says_nothing_of_them(command: Command, folder: Path) -> None:
    (folder / ".claude").mkdir()
    (folder / HOOKS_FILE).write_text('{"permissions": {"allow": ["Bash(ls)"]}}')
    assert "hooks" not in command(*OPTIONS, "Say hello", says=("Hello.",))[2]
    assert "has no hooks that run here" in command("config", "trust")[1]


@rows(
    ('{"hooks": []}', "no JSON object"), ("[]", "no JSON object"), ("{", "no JSON object"),
    ('{"hooks": {"Stop": [{"matcher": "(", "hooks": []}]}}', "no regular expression"),
    ('{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "a", "timeout": 0}]}]}}', "timeout"),
)  # fmt: skip
def test_file_that_is_wrong_is_refused(text: str, part: str, command: Command, folder: Path) -> None:
    (folder / ".claude").mkdir(exist_ok=True)
    (folder / HOOKS_FILE).write_text(text)
    code, _, err = command("config", "trust")
    assert (code != 0, part in err) == (True, True), err


@needs_sandbox
@needs_jq
def test_documented_examples_protect_a_file_and_format_what_is_written(command: Command, folder: Path) -> None:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "format.sh").write_text(FORMAT)
    (folder / "scripts" / "format.sh").chmod(0o755)
    trusted(command, folder, PreToolUse=("Edit|Write", PROTECTION), PostToolUse=("Edit|MultiEdit|Write", FORMATTER))

    lock = 'tool: write_file({"path": "package-lock.json", "content": "{}"})'
    spoil = 'tool: write_file({"path": "scripts/format.sh", "content": "#!/bin/bash\\n"})'
    code, shown = run(command, "Write scripts/format.sh", says=(lock, spoil, NEW, "Done."))
    assert (code, "A hook of the project blocks this call" in shown) == (0, True)
    assert "+x = 1" in shown
    assert not (folder / "package-lock.json").exists()
    assert (folder / "scripts" / "format.sh").read_text() == FORMAT
    assert (folder / "new.py").read_text() == "x = 1\n"

    assert command("undo")[0] == 0
    assert not (folder / "new.py").exists()


@needs_sandbox
@needs_jq
def test_documented_logger_writes_to_the_home_if_the_user_lets_hooks_do_so(
    command: Command, folder: Path, home: Path
) -> None:
    trusted(command, folder, PreToolUse=("Bash", LOGGER))
    listing = 'tool: run_command({"argv": ["ls", "-a"]})'
    log = home / ".claude" / "bash-command-log.txt"

    _, shown = run(command, "--allow-program", "ls", "List the files", says=(listing, "Done."))
    assert ("ended with exit code 1" in shown, log.exists()) == (True, False)

    (home.parent / "user.toml").write_text('hooks = "unconfined"\n')
    _, shown = run(command, "--allow-program", "ls", "List the files", says=(listing, "Done."))
    assert ("exit code 1" in shown, log.read_text()) == (False, "ls -a - No description\n")


DECISIONS: list[tuple[str, str, bool]] = [
    ("echo Use another name. >&2; exit 2", "Use another name.", False),
    (deciding(decision="block", reason="Not here."), "Not here.", False),
    (deciding(hookSpecificOutput={"permissionDecision": "deny", "permissionDecisionReason": "No."}), "No.", False),
    (deciding(hookSpecificOutput={"permissionDecision": "ask", "permissionDecisionReason": "Sure?"}), "Sure?", False),
    (deciding(hookSpecificOutput={"permissionDecision": "allow"}), "", True),
    (deciding(**{"continue": False, "stopReason": "Enough."}), "Enough.", False),
    ("echo plain words", "", True),
    ("exit 1", "ended with exit code 1", True),
    ("test -w . && exit 2; true", "", True),
]


@needs_sandbox
@rows(*DECISIONS)
def test_hook_before_a_call_decides_whether_it_runs(
    line: str, part: str, runs: bool, command: Command, folder: Path
) -> None:
    (folder / "new.py").unlink(missing_ok=True)
    trusted(command, folder, PreToolUse=("Write", line))
    _, shown = run(command, "Write it", says=(NEW, "Done."))
    assert ((folder / "new.py").exists(), part in shown) == (runs, True), shown


@needs_sandbox
def test_hook_that_takes_too_long_ends_with_its_processes_and_its_call_does_not_run(
    command: Command, folder: Path
) -> None:
    hook = {"type": "command", "command": "(sleep 2; touch late) & wait", "timeout": 0.3}
    (folder / ".claude").mkdir()
    (folder / HOOKS_FILE).write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}}))
    assert command("config", "trust")[0] == 0
    _, shown = run(command, "Write it", says=(NEW, "Done."))
    assert ("was stopped after 0.3 s" in shown, (folder / "new.py").exists()) == (True, False)


@needs_sandbox
def test_allowing_hook_does_not_widen_what_guard_denies(command: Command, folder: Path) -> None:
    allow = deciding(decision="approve", hookSpecificOutput={"permissionDecision": "allow"})
    trusted(command, folder, PreToolUse=allow)
    denied = 'tool: write_file({"path": ".env", "content": "A=1"})'
    command(*OPTIONS, "Write it", says=(denied, "Done."))
    assert not (folder / ".env").exists()


@needs_sandbox
def test_words_of_hooks_reach_the_model_and_are_not_the_persons(command: Command, folder: Path) -> None:
    (folder / "AGENTS.md").write_text("notes\n")
    finish = "grep -q '\"stop_hook_active\":true' || { echo Say thanks. >&2; exit 2; }"
    submit = "grep -q forbidden && { echo No such words. >&2; exit 2; }; echo Change AGENTS.md"
    trusted(command, folder, SessionStart=("startup", "echo Branch main"), UserPromptSubmit=submit, Stop=finish)

    change = 'tool: write_file({"path": "AGENTS.md", "content": "changed"})'
    code, out, err = command(*OPTIONS, "Say hello", says=(change, "Hello.", "Thanks."))
    assert (code, "Hello." in out, "Thanks." in out) == (0, True, True)
    assert (folder / "AGENTS.md").read_text() == "notes\n", err

    code, _, err = command(*OPTIONS, "Say forbidden words", says=("Hello.",))
    assert (code, "A hook blocks this request: No such words." in err) == (2, True)


@needs_sandbox
def test_hook_after_a_call_tells_the_model(command: Command, folder: Path) -> None:
    trusted(command, folder, PostToolUse=("Read", "echo Mind the tabs. >&2; exit 2"))
    read = 'tool: read_file({"path": "calc.py"})'
    code, shown = run(command, "--debug", "Read it", says=(read, "Done."))
    assert (code, '"hooks":"Mind the tabs."' in shown.replace('": "', '":"')) == (0, True), shown[-3000:]


@needs_sandbox
def test_changed_script_ends_the_trust_and_a_named_data_file_does_not(command: Command, folder: Path) -> None:
    (folder / "check.sh").write_text("exit 2\n")
    (folder / "log.txt").write_text("")
    line = f"cat data.json | bash check.sh >> {folder}/log.txt"
    (folder / "data.json").write_text("{}")
    trusted(command, folder, UserPromptSubmit=line)
    (folder / "data.json").write_text("{1}")
    (folder / "log.txt").write_text("more")
    assert NOT_RUN not in command(*OPTIONS, "Say hello", says=("Hello.",))[2]
    (folder / "check.sh").write_text("exit 0\n")
    assert "as it or what it runs has changed" in command(*OPTIONS, "Say hello", says=("Hello.",))[2]


@needs_sandbox
def test_hook_that_wants_a_person_asked_lets_a_call_run_that_they_have_approved(command: Command, folder: Path) -> None:
    ask = deciding(hookSpecificOutput={"permissionDecision": "ask", "permissionDecisionReason": "Sure?"})
    trusted(command, folder, PreToolUse=("Write", ask))
    command(*OPTIONS, "--mode", "ask", "Write it", says=(NEW, "Done."), typed=Typed("y\n"))
    assert (folder / "new.py").exists()
