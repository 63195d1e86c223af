"""The command line: tasks, usage errors, and which modules are imported."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from mendgraph.graph import cli
from mendgraph.graph.configuration.settings import MOST
from mendgraph.graph.fleet.serving.admission import open_admitter
from mendgraph.graph.fleet.serving.tenants import token_hash
from mendgraph.graph.terminal.json_output import line_schema, object_schema
from mendgraph.nodes.records import StopReason
from tests.architecture.product import ROOT
from tests.extent import slow
from tests.surfaces.conftest import Command, Typed

BUG = "def add(a, b):\n    return a - b\n"
FIXED = BUG.replace("-", "+")
FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
AGENTS = 'tool: write_file({"path": "AGENTS.md", "content": "x"})'
MENDING = ("--protocol", "text", "Fix it")
SAYS = (FIX, "It adds now.")
PROGRAM = Path(sys.executable).parent / "mendgraph"


def code_of(folder: Path) -> str:
    return (folder / "calc.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["Fix it"], ["run", "Fix it"], ["--seed", "1", "Fix it", "--temperature", "0.5"]])
def test_task_is_completed(command: Command, folder: Path, words: list[str]) -> None:
    code, out, err = command("--protocol", "text", *words, says=SAYS)
    assert (code, code_of(folder)) == (0, FIXED)
    assert re.fullmatch(r"mendgraph: run ([0-9a-f]{8}); undo with: mendgraph undo \1\n", err)
    end = "FINISHED (answered): Changed calc.py; not checked: no test of calc.py was found ("
    assert f"-    return a - b\n+    return a + b\n{end}" in out


@pytest.mark.parametrize(
    ("option", "says", "code", "line"),
    [
        ("--require-checks", SAYS, 5, "SYSTEM_ERROR (not_checked): "),
        ("--require-changes", ("It adds.", "It adds."), 4, "SYSTEM_ERROR (nothing_changed): This run has to change "),
        ("--require-changes", (FIX, AGENTS, "Done."), 5, "FINISHED (answered): Changed calc.py; "),
        ("--no-require-changes", (AGENTS, "Done."), 0, "FINISHED (answered): No file was changed: refused ("),
        ("--max-calls=1", SAYS, 3, "BUDGET_STOP (max_calls"),
        ("--mode=read-only", SAYS, 0, "FINISHED (answered): No file was changed"),
    ],
)
def test_options_reach_the_run_and_each_outcome_has_its_exit_code(
    command: Command, option: str, says: tuple[str, ...], code: int, line: str
) -> None:
    ended, out, _ = command(option, *MENDING, says=says)
    assert (ended, line in out) == (code, True), out


def test_another_folder_can_be_named(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert command("--protocol", "text", "--root", "..", "-", says=SAYS, typed=io.StringIO("Fix it\n"))[0] == 0
    assert code_of(folder) == FIXED


def test_piped_standard_output_is_only_the_answer(command: Command) -> None:
    code, out, err = command(*MENDING, says=SAYS, piped=True)
    assert (code, out) == (0, "It adds now.\n")
    assert ("FINISHED (answered): Changed calc.py" in err, "+    return a + b\n" in err) == (True, True)


@slow
def test_newest_run_is_used_if_none_is_named(command: Command, folder: Path) -> None:
    command(*MENDING, says=SAYS)
    assert "+    return a + b\n" in command("diff")[1]
    assert command("report")[1].startswith("report of run ")
    assert command("undo") == (0, "restored calc.py\n", "")
    assert code_of(folder) == BUG


def test_trace_events_are_lines_only_with_debug(command: Command) -> None:
    for words, has_traces in ((["--json-lines"], False), (["--json-lines", "--debug"], True)):
        events = {json.loads(line)["event"] for line in command(*words, *MENDING, says=SAYS)[1].splitlines()}
        assert {"text", "calls_read", "step_done", "ended"} <= events
        assert ("traced" in events) is has_traces


def test_json_is_one_object(command: Command) -> None:
    code, out, err = command("--json", "--debug", *MENDING, says=SAYS)
    assert (code, json.loads(out)["outcome"]["kind"]) == (0, "FINISHED")
    lines = err.splitlines()
    events = {json.loads(line)["event"] for line in lines if line.startswith("{")}
    assert {"calls_read", "tool_started", "step_done"} <= events
    assert lines[-1] == f"log: {json.loads(out)['log']}"


@slow
def test_approval_is_asked_on_standard_error_only_at_a_terminal(command: Command, folder: Path) -> None:
    code, out, _ = command("--mode", "ask", *MENDING, says=SAYS, typed=io.StringIO("y\n"))
    assert (code, code_of(folder), "nobody can be asked" in out) == (0, BUG, True)
    code, out, err = command("--mode", "ask", *MENDING, says=SAYS, typed=Typed("y\n"))
    assert (code, code_of(folder)) == (0, FIXED)
    assert "Allow edit_file calc.py? " in err
    assert "Allow" not in out


def test_limit_is_not_raised_in_a_pipe(command: Command) -> None:
    limits = ("--on-limit", "ask", "--max-calls", "1", *MENDING)
    code, out, err = command(*limits, says=SAYS, typed=io.StringIO("y\n"))
    assert (code, "Raise" in out + err) == (3, False)
    code, _, err = command(*limits, says=SAYS, typed=Typed("y\n"))
    assert (code, "Raise it? " in err) == (0, True)


def test_plan_is_carried_out_after_a_yes_and_by_a_resume(command: Command, folder: Path) -> None:
    plan = ("--mode", "plan", *MENDING)
    code, out, err = command(*plan, says=("Plan: add.", *SAYS), typed=Typed("y\n"))
    assert (code, code_of(folder), "Carry out this plan? [y]es" in err) == (0, FIXED, True)
    assert out.index("Plan: add.") < out.index("It adds now.")

    (folder / "calc.py").write_text(BUG)
    assert command(*plan, says=("Plan: add.",), typed=Typed("n\n"))[0] == 0
    assert code_of(folder) == BUG

    code, out, err = command(*plan, says=(SAYS[0], "Plan: add."), piped=True)
    assert (code, code_of(folder)) == (0, BUG)
    advice = err.partition("carry out the plan with: mendgraph ")[2].split()
    assert advice[::2] == ["resume", "--mode"]
    assert command(*advice, says=SAYS)[0] == 0
    assert code_of(folder) == FIXED
    assert "Carry out the plan." in command("runs", "show")[1]

    code, out, _ = command("--json", *plan, says=("Plan: add.",))
    assert json.loads(out)["resume"].endswith(" --mode auto")


def test_chat_in_mode_plan_does_not_ask_to_carry_out_the_plan(command: Command, folder: Path) -> None:
    code, _, err = command("--mode", "plan", "--protocol", "text", "chat", says=("It adds.",), typed=Typed("Why?\n"))
    assert (code, "Carry out" in err, code_of(folder)) == (0, False, BUG)


def test_chat_reads_its_requests_from_standard_input(command: Command) -> None:
    says = (*SAYS, "You are welcome.")
    code, out, _ = command("--protocol", "text", "chat", says=says, typed=io.StringIO("Fix it\nThanks\n"))
    assert code == 0
    assert "You: mendgraph: It adds now.\n" in out.replace("→ edit_file calc.py  1 replacement\n", "")
    assert "API Usage Stats:\n  Calls: 3/100\n" in out


def test_command_without_a_task_starts_a_chat_at_a_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.terminal.options.at_terminal", lambda: True)
    for words in ((), ("-m", "local")):
        code, out, _ = command(*words, says=("Hello.",), typed=io.StringIO("hi\n"))
        assert (code, "You: mendgraph: Hello.\n" in out) == (0, True)


USAGE_ERRORS = [
    (["--nonsense", "Fix it"], "No such option: --nonsense"),
    (["Fix it", "--mode", "yolo"], "Invalid value for '--mode': 'yolo' is not one of"),
    (["Fix it", "--max-calls", "0"], "Invalid value for '--max-calls'"),
    (["Fix it", "--max-seconds", "nan"], "Invalid value for '--max-seconds'"),
    (["Fix it", "--allow-program", "python3 -m pytest"], "Invalid value for '--allow-program': 'python3 -m pytest' is"),
    (
        ["Fix it", "--allow-host", "https://a.b"],
        "Invalid value for '--allow-host': 'https://a.b' is not a host: write a",
    ),
    (["Fix it", "--allow-private-host", "*"], "Invalid value for '--allow-private-host': '*' cannot stand for private"),
    (["Fix it", "--root", "nowhere"], "Invalid value for '--root': dir 'nowhere' does not exist"),
    (["Fix it", "--root"], "Option '--root' requires an argument"),
    (["Fix it", "now"], "put the task in quotes"),
    (["Fix", "it"], "'Fix' is not a command. To use it as a task, type `mendgraph run -- 'Fix it'`"),
    (["dcotor"], "'dcotor' is not a command; did you mean doctor? To use it as a task, type `mendgraph run -- dcotor`"),
    (["--mode", "ask", "batc", "--nonsense"], "'batc' is not a command; did you mean batch"),
    (["run"], 'there is no task: type mendgraph "what to do" (see `mendgraph run --help`)'),
    (["  "], "the task is empty"),
    (["\udcff"], "the task is not valid UTF-8 text"),
    (["chat", "now"], "Got unexpected extra argument"),
    (["acp"], "an editor starts `mendgraph acp` over pipes"),
    (["model", "eat"], "No such command 'eat'"),
    (["cassette", "from-run"], "Missing argument 'RUN'"),
    (["cassette", "from-run", "nothing"], "There is no run 'nothing' in this workspace"),
    (["cassette", "from-run", "x", "--max-calls", "3"], "--max-calls is an option of run, chat and resume"),
    (["undo"], "This folder has no runs yet"),
    (["fork", "a"], "Missing option '--at'"),
    (["runs", "prune"], "choose the runs to delete: --keep N, --older-than DAYS, or both"),
    (["report", "-o", "-", "--json"], "with --json the page goes into a file: omit -o - or --json"),
    (["undo", "a", "--max-calls", "3"], "--max-calls is an option of run, chat and resume"),
    (["runs", "--durability", "exit"], "--durability is an option of run, chat and resume"),
    (["batch", "t.jsonl", "--json-lines"], "--json-lines is an option of run, chat and resume"),
    (["batch", "t.jsonl", "--address", "a:1"], "--address is the address of a cluster: add --on ray"),
    (["Fix it", "--max-cost-usd", "0.00009"], "Invalid value for '--max-cost-usd': 9e-05 must be at least 0.0001"),
    (["Fix it", "--account", "a\nb"], "Invalid value for '--account': an account's name is empty, or has 1 to 200"),
    (["Fix it", "--fallback", "x @ y"], "Invalid value for '--fallback': Fallback model 1 is none: write"),
    (["Fix it", "--model", "m", "--fallback", "m"], "Invalid value for '--fallback': Fallback model 1 (m) is in the"),
    (["Fix it", "--reasoning-effort", "HIGH"], "Invalid value for '--reasoning-effort': 'HIGH' is not one of 'none'"),
]


def test_usage_error_is_one_line_on_standard_error(command: Command, folder: Path) -> None:
    (folder / "t.jsonl").write_text('{"id": "a", "prompt": "x", "workspace": "."}\n', encoding="utf-8")
    results = {tuple(words): command(*words) for words, _ in USAGE_ERRORS}
    expected = {tuple(words): (2, "", 1, message) for words, message in USAGE_ERRORS}
    assert {
        words: (
            code,
            "" if {"--json", "--json-lines"} & {*words} else out,
            err.count("\n"),
            message if err.startswith(f"mendgraph: {message}") else err,
        )
        for (words, (code, out, err)), (_, message) in zip(results.items(), USAGE_ERRORS, strict=True)
    } == expected


def test_suggested_command_keeps_words_and_options_and_works(command: Command) -> None:
    words = ("--protocol", "text", "--mode", "read-only", *["Don't", "change", "$PATH;"], *["file"] * 60)
    code, _, err = command(*words)
    suggestion = shlex.split(err.split("`")[1])
    assert (code, suggestion[-1]) == (2, " ".join(words[4:]))
    assert command(*suggestion[1:], says=("No.",))[0] == 0
    assert command("runs", "--json")[1].count('"mode": "read-only"') == 1


@pytest.mark.parametrize("form", ["--json", "--json-lines"])
def test_usage_error_is_also_a_json_object(form: str, command: Command) -> None:
    code, out, _ = command(form, "Fix it", "now")
    message = 'put the task in quotes: mendgraph "what to do" (see `mendgraph run --help`)'
    error = {"error": {"code": "usage_error", "message": message}}
    assert (code, json.loads(out)) == (2, {"event": "error", **error} if form == "--json-lines" else error)


def test_read_only_folder_is_refused_before_the_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, access_mode: access_mode == os.R_OK)
    code, out, err = command("Fix it", "--mode", "ask")
    assert (code, out) == (2, "")
    assert err.startswith("mendgraph: cannot write in the folder '.': use --mode read-only")
    assert command("Fix it", "--mode", "read-only", says=("No.",))[0] == 0


def test_help_lists_commands_first_and_the_options_of_run_in_groups(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, help_text, _ = command("--help")
    words = ["\nCommands:", "  run  ", "  chat  ", "  undo  ", "  model  ", "\nOptions:", "--root DIR", "--version"]
    assert (code, sorted(words, key=help_text.find), "--protocol" in help_text) == (0, words, False)
    assert "..." not in help_text  # no summary of a command is cut
    monkeypatch.setattr("mendgraph.graph.terminal.options.at_terminal", lambda: False)
    assert command(piped=True) == (2, help_text, "")

    code, help_text, _ = command("run", "--help")
    words = ["\nPermissions:", "--mode", "\nModel:", "--protocol", "\nLimits:", "--max-calls N", "\nChecks:"]
    words += ["130  a second Ctrl-C", "SYSTEM_ERROR", "\nArguments:\n  TASK  What", "the defaults are 60 calls"]
    assert (code, [word for word in words if word not in help_text], str(MOST) in help_text) == (0, [], False)


@slow
def test_help_of_every_command_fits_a_narrow_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    app: Any = typer.main.get_command(cli.app)
    groups = [
        (),
        *((name,) for name, command_or_group in app.commands.items() if hasattr(command_or_group, "commands")),
    ]
    for group in groups:
        inner = app.commands[group[0]] if group else app
        for words in (group, *((*group, name) for name in inner.commands)):
            code, out, _ = command(*words, "--help")
            assert (code, words, [line for line in out.splitlines() if len(line) > 60]) == (0, words, [])


ADVISED = {command for reason in StopReason for command in re.findall("`(mendgraph [^`]+)`", reason.how_to_go_on)}
VALUES = {"N": "5000000", "USD": "5", "S": "60", "NAME": "another"}


@pytest.mark.parametrize("advice", sorted(ADVISED))
def test_command_suggested_by_an_outcome_works(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, advice: str
) -> None:
    user_file = folder.parent / "user.toml"
    user_file.write_text("usd_per_million_input = 1.0\nusd_per_million_output = 1.0\n")
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(user_file))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder.parent / "data"))  # where the day has no other run
    code, out, _ = command("--max-calls", "1", *MENDING, says=SAYS)
    assert (code, bool(re.search(r"How to continue: .*`mendgraph resume \w{8} --max-calls N`", out))) == (3, True)
    words = [VALUES.get(word, word) for word in advice.replace("max-calls N", "max-calls 20").split()[1:]]
    code, *texts = command(*words, says=("It adds now.",))
    assert (code, code_of(folder)) == (0, FIXED), texts


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "mendgraph: stopped by you (Ctrl-C)\n"),
        (OSError(28, "No space left on device"), 1, "mendgraph: cannot read or write (No space left on device)\n"),
        (
            KeyError("x\n"),
            70,
            "mendgraph: this is a bug (KeyError: 'x\\n'): please report it with the output of --debug\n",
        ),
    ],
)
def test_unexpected_error_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail() -> Any:
        raise error

    monkeypatch.setattr(cli, "_session_options", fail)
    ended, _, err = command("Fix it")
    assert (ended, err) == (code, line)


# --- As a process

HEAVY = ("langgraph", "langchain_core", "langchain_openai", "openai", "httpx2")
PROBE = f"""
import json, sys
from mendgraph.graph.cli import main
codes = [main(words) for words in json.loads(sys.argv[1])]
heavy = [name for name in {HEAVY} if name in sys.modules]
sys.exit(f"loaded: {{heavy}}" if heavy else codes != json.loads(sys.argv[2]))
"""


@slow
def test_command_without_a_run_imports_no_heavy_library() -> None:
    lines = {"--help": 0, "runs": 0, "--version": 0, "Fix it": 2, "--json --nonsense": 2, "model status": 4, "undo": 2}
    words = json.dumps([line.split() for line in lines])
    command = [sys.executable, "-c", PROBE, words, json.dumps([*lines.values()])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@slow
def test_closed_pipe_and_full_disk_do_not_crash_the_command() -> None:
    with subprocess.Popen([PROGRAM, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert (running.wait(), running.stderr.read()) == (1, b"")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "mendgraph: cannot read or write (No space left on device)\n")


# --- Commands that only print


def test_new_token_is_printed_with_its_hash(command: Command) -> None:
    code, out, _ = command("serve", "--new-token")
    line = r'token, only for the user:   (mg_\S{43})\nline for the tenants file:   token_sha256 = \["(\w+)"\]\n'
    match = re.fullmatch(line, out)
    assert (code, match and token_hash(match[1])) == (0, match and match[2])
    assert match is not None


def test_server_without_a_tenants_file_does_not_start(command: Command) -> None:
    open_admitter.cache_clear()
    assert command("serve") == (2, "", "mendgraph: Name the file with the server's users in MENDGRAPH_TENANTS.\n")


@slow
def test_schema_is_printed(command: Command) -> None:
    schemas = [json.loads(command("schema", *words)[1]) for words in ([], ["json-lines"])]
    assert schemas == [object_schema(), line_schema()]
    assert command("schema", "xml")[0] == 2


def test_shell_completes_commands_options_and_values(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MENDGRAPH_COMPLETE", "complete_bash")

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        return command()[1].split()

    assert offered("mendgraph und") == ["undo"]
    assert offered("mendgraph chat --ru") == ["--run"]
    assert "undo" in offered("mendgraph --json ")
    assert offered("mendgraph --mode re") == ["read-only"]
    assert offered("mendgraph model ") == ["pull", "status"]
    assert offered("mendgraph nothing here ") == []
