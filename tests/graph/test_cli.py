"""The command line: what is a task, how each mistake is answered, and what is loaded for it."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from mendgraph.graph import cli
from mendgraph.graph.configuration.settings import MOST
from mendgraph.graph.fleet.serving.admission import open_admitter
from mendgraph.graph.fleet.serving.tenants import token_hash
from mendgraph.graph.runs.runs import ListedRun, list_runs
from mendgraph.graph.terminal.output_lines import line_schema, object_schema
from mendgraph.nodes.records import JsonMap, StopReason
from tests.architecture.product import ROOT
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel

BUG = "def add(a, b):\n    return a - b\n"
FIXED = BUG.replace("-", "+")
FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
COMMAND = Path(sys.executable).parent / "mendgraph"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a bug, which is the current folder."""
    (tmp_path / "calc.py").write_text(BUG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process on a model that fixes the bug: exit code, standard output, standard error."""

    def called(*words: str, script: tuple[str, ...] = (FIX, "It adds now.")) -> tuple[int, str, str]:
        model = ScriptedModel([Say(line) for line in script])
        monkeypatch.setattr(cli, "_session_options", lambda: {"model": model})
        code = cli.main([*words, "--protocol", "text"])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert folder.is_dir()
    return called


def code_of(folder: Path) -> str:
    return (folder / "calc.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["Fix it"], ["run", "Fix it"], ["--seed", "1", "Fix it", "--temperature", "0.5"]])
def test_task_is_done(run: Run, folder: Path, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, code_of(folder)) == (0, FIXED)
    assert re.fullmatch(r"(mendgraph: programs run in the sandbox \w+\n)?mendgraph: run [0-9a-f]{8}\n", err)
    end = "FINISHED (answered): Changed calc.py; not checked: no test of calc.py was found ("
    assert f"-    return a - b\n+    return a + b\n{end}" in out


def test_changes_that_nothing_could_check_have_a_code_of_their_own_where_checks_are_required(run: Run) -> None:
    code, out, _ = run("--require-checks", "Fix it")
    assert (code, "SYSTEM_ERROR (not_checked): " in out) == (5, True)


AGENTS = 'tool: write_file({"path": "AGENTS.md", "content": "x"})'


@pytest.mark.parametrize(
    ("required", "script", "code", "line"),
    [
        (
            "--require-changes",
            ("It adds.", "It adds."),
            4,
            "SYSTEM_ERROR (nothing_changed): This run has to change a file. No ",
        ),
        ("--require-changes", (FIX, AGENTS, "Done."), 5, "FINISHED (answered): Changed calc.py; "),
        ("--require-changes", (FIX, "Done."), 0, "FINISHED (answered): Changed calc.py; "),
        ("--no-require-changes", ("It adds.",), 0, "FINISHED (answered): No file was changed.\n"),
        ("--no-require-changes", (AGENTS, "Done."), 0, "FINISHED (answered): No file was changed: refused ("),
    ],
)
def test_run_without_its_changes_has_a_code_where_changes_are_required(
    run: Run, required: str, script: tuple[str, ...], code: int, line: str
) -> None:
    ended, out, _ = run(required, "Fix it", script=script)
    assert (ended, line in out) == (code, True)
    assert ("refused (" in out) is (AGENTS in script)


def test_task_may_come_from_the_input(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Fix it\n"))
    assert run("-")[0] == 0
    assert code_of(folder) == FIXED


def test_another_folder_may_be_named(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("Fix it", "--root", "..")[0] == 0
    assert code_of(folder) == FIXED


def test_json_is_one_object(run: Run) -> None:
    code, out, err = run("--json", "--debug", "Fix it")
    assert (code, json.loads(out)["outcome"]["kind"]) == (0, "FINISHED")
    lines = err.splitlines()
    assert [json.loads(line)["event"] for line in lines if line.startswith("{")][:2] == ["tool.call", "tool.response"]
    assert lines[-1] == f"log: {json.loads(out)['log']}"


@pytest.mark.parametrize(
    ("words", "code"), [(["--max-calls", "1"], 3), (["--max-steps", "1"], 3), (["--mode", "read-only"], 0)]
)
def test_limits_and_modes_reach_the_run(run: Run, words: list[str], code: int) -> None:
    assert run("Fix it", *words)[0] == code


def test_person_is_asked_on_standard_error(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Person(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    code, out, err = run("--mode", "ask", "Fix it")
    assert (code, code_of(folder)) == (0, FIXED)
    assert "Allow edit_file calc.py? " in err
    assert "Allow" not in out


def test_without_a_terminal_nobody_is_asked(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, _ = run("--mode", "ask", "Fix it")
    assert (code, code_of(folder)) == (0, BUG)
    assert "nobody can be asked" in out


def test_chat_reads_its_requests_from_the_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Fix it\nThanks\n"))
    code, out, _ = run("chat", script=(FIX, "It adds now.", "You are welcome."))
    assert code == 0
    assert "You: mendgraph: It adds now.\n" in out.replace("→ edit_file calc.py  1 replacement\n", "")
    assert re.search(r"\n  Output Tokens: \d+/50000\n  Cost: unknown: .*\n\Z", out)
    assert "API Usage Stats:\n  Calls: 3/100\n" in out


USAGE_ERRORS = [
    (["--nonsense", "Fix it"], "No such option: --nonsense"),
    (["Fix it", "--mode", "yolo"], "Invalid value for '--mode': 'yolo' is not one of"),
    (["Fix it", "--max-calls", "0"], "Invalid value for '--max-calls'"),
    (["Fix it", "--max-seconds", "nan"], "Invalid value for '--max-seconds'"),
    (["Fix it", "--allow-program", "python3 -m pytest"], "Invalid value for '--allow-program': 'python3 -m pytest' is"),
    (["Fix it", "--allow-host", "https://a.b"], "Invalid value for '--allow-host': 'https://a.b' is no host: write a"),
    (["Fix it", "--allow-private-host", "*"], "Invalid value for '--allow-private-host': '*' cannot stand for private"),
    (["Fix it", "--root", "nowhere"], "Invalid value for '--root': dir 'nowhere' does not exist"),
    (["Fix it", "--root"], "Option '--root' requires an argument"),
    (["Fix it", "now"], "put the task in quotes"),
    (["Fix", "it"], "'Fix' is no command. As a task it is: mendgraph run -- 'Fix it'"),
    (["dcotor"], "'dcotor' is no command; did you mean doctor? As a task it is: mendgraph run -- dcotor"),
    (["--mode", "ask", "batc", "--nonsense"], "'batc' is no command; did you mean batch"),
    (["run"], "there is no task"),
    (["  "], "the task is empty"),
    (["\udcff"], "the task is not valid UTF-8 text"),
    (["chat", "now"], "Got unexpected extra argument"),
    (["model", "eat"], "No such command 'eat'"),
]


@pytest.mark.parametrize(("words", "message"), USAGE_ERRORS)
def test_mistake_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert folder.is_dir()
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"mendgraph: {message}")
    assert shown.err.count("\n") == 1
    assert shown.err.endswith("; see `mendgraph --help`\n")


@pytest.mark.parametrize("form", ["--json", "--json-lines"])
def test_mistake_is_an_object_as_well_for_programs(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([form, "Fix it", "now"]) == 2
    told = {"error": {"code": "usage_error", "message": "put the task in quotes; see `mendgraph --help`"}}
    assert json.loads(capsys.readouterr().out) == ({"event": "error", **told} if form == "--json-lines" else told)
    assert cli.main([form, "--json" if form == "--json-lines" else "--json-lines", "Fix it"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_folder_that_cannot_be_written_in_is_refused_before_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, asked: asked == os.R_OK)
    code, out, err = run("Fix it", "--mode", "ask")
    assert (code, out) == (2, "")
    assert err.startswith("mendgraph: cannot write in the folder '.': use --mode read-only")
    assert run("Fix it", "--mode", "read-only", script=("No.",))[0] == 0


def test_help_tells_everything_that_one_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    options = ("--root DIR", "--protocol", "--json", "--durability")
    commands = ("  run  ", "  chat  ", "  resume  ", "  undo  ", "  fork  ", "  runs  ", "  model  ")
    for word in ("Examples:", *options, *commands, "130  a second Ctrl-C", "SYSTEM_ERROR"):
        assert word in shown
    assert cli.main([]) == 2
    assert capsys.readouterr().out == shown
    assert str(MOST) not in shown


GROUPS = [(), ("runs",), ("config",), ("cassette",), ("model",)]


@pytest.mark.parametrize("width", [60, 80])
def test_help_of_every_command_fits_its_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    app: Any = typer.main.get_command(cli.app)
    for group in GROUPS:
        inner = app.commands[group[0]] if group else app
        for words in (group, *((*group, name) for name in inner.commands)):
            assert cli.main([*words, "--help"]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert (words, [line for line in lines if len(line) > width]) == (words, [])


def test_at_a_terminal_no_word_is_a_chat(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And options alone are one."""
    monkeypatch.setattr("mendgraph.graph.terminal.options.at_terminal", lambda: True)
    for words in ((), ("-m", "local")):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
        code, out, _ = run(*words, script=("Hello.",))
        assert (code, "You: mendgraph: Hello.\n" in out) == (0, True)


ADVISED = [
    (reason, command) for reason in StopReason for command in re.findall("`(mendgraph [^`]+)`", reason.how_to_go_on)
]
VALUES = {"N": "5000000", "USD": "5", "S": "60", "NAME": "another"}


@pytest.mark.parametrize(("reason", "command"), ADVISED)
def test_each_command_that_a_stop_advises_works(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, reason: StopReason, command: str
) -> None:
    (folder / "user.toml").write_text("usd_per_million_input = 1.0\nusd_per_million_output = 1.0\n")
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(folder / "user.toml"))
    code, out, _ = run("--max-calls", "1", "Fix it")
    assert code == 3
    shown = re.search(r"How to go on: .*`(mendgraph resume \w{8}) --max-calls N`", out)
    assert shown is not None
    words = [VALUES.get(word, word) for word in command.replace("max-calls N", "max-calls 20").split()[1:]]
    if words == ["runs"]:
        assert cli.main(words) == 0
    else:
        assert (run(*words, script=("It adds now.",))[0], code_of(folder), reason) == (0, FIXED, reason)


def test_resumed_run_takes_the_options_that_are_given(run: Run, folder: Path) -> None:
    run("--max-calls", "1", "Fix it")
    assert run("resume", "--max-calls", "200", script=("It adds now.",))[0] == 0
    (known,) = cast("tuple[ListedRun, ...]", list_runs(str(folder)))
    limits = known.context.max_calls_per_turn, known.context.max_calls_per_session
    assert (known.turns, limits) == (2, (200, 200))


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "\nmendgraph: stopped by you (Ctrl-C)\n"),
        (OSError(28, "No space left on device"), 1, "mendgraph: cannot read or write (No space left on device)\n"),
        (BrokenPipeError(), 1, ""),
        (KeyError("x\n"), 70, "mendgraph: this is a bug (KeyError: 'x\\n'): please report it with what --debug says\n"),
    ],
)
def test_what_nobody_expected_is_one_line(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def fail(**_: Any) -> None:
        raise error

    assert run("Fix it")[0] == 0
    monkeypatch.setattr(cli, "_session_options", fail)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # a terminal echoes ^C
    assert cli.main(["Fix it"]) == code
    assert capsys.readouterr().err == line


# --- As a process ----------------------------------------------------------------------------------------------

HEAVY = ("langgraph", "langchain_core", "langchain_openai", "openai", "httpx2")
PROBE = f"""
import json, sys
from mendgraph.graph.cli import main
codes = [main(words) for words in json.loads(sys.argv[1])]
heavy = [name for name in {HEAVY} if name in sys.modules]
sys.exit(f"loaded: {{heavy}}" if heavy else codes != json.loads(sys.argv[2]))
"""


def test_what_needs_no_run_loads_nothing_heavy() -> None:
    lines = {
        "--help": 0,
        "runs": 0,
        "--version": 0,
        "Fix it": 2,
        "--json --nonsense": 2,
        "dcotor": 2,
        "model status": 4,
        "undo": 2,
    }
    words = json.dumps([line.split() for line in lines])
    done = process(sys.executable, "-c", PROBE, words, json.dumps([*lines.values()]))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen([COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert (running.wait(), running.stderr.read()) == (1, b"")


def test_full_disk_is_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "mendgraph: cannot read or write (No space left on device)\n")


def process(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [str(word) for word in command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, **options)


# --- Commands that only print


def test_new_token_is_printed_with_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--new-token"]) == 0
    found = re.fullmatch(
        r'token, for the user alone:   (mg_\S{43})\nline for the tenants file:   token_sha256 = \["(\w+)"\]\n',
        capsys.readouterr().out,
    )
    assert found is not None
    assert token_hash(found[1]) == found[2]


def test_server_that_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    open_admitter.cache_clear()
    assert cli.main(["serve"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "mendgraph: Name the file with the server's users in MENDGRAPH_TENANTS.\n")


@pytest.mark.parametrize(("words", "schema"), [([], object_schema), (["json-lines"], line_schema)])
def test_schema_is_printed(words: list[str], schema: Callable[[], JsonMap], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", *words]) == 0
    assert json.loads(capsys.readouterr().out) == schema()
    assert cli.main(["schema", "xml"]) == 2


def test_shell_gets_commands_options_and_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    monkeypatch.setattr(sys, "argv", ["mendgraph"])
    monkeypatch.setenv("_MENDGRAPH_COMPLETE", "complete_bash")

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        cli.main()
        return capsys.readouterr().out.split()

    assert offered("mendgraph und") == ["undo"]
    assert offered("mendgraph chat --ru") == ["--run"]
    assert "undo" in offered("mendgraph --json ")
    assert offered("mendgraph --mode re") == ["read-only"]
    assert offered("mendgraph model ") == ["pull", "status", "serve"]
    assert offered("mendgraph nothing here ") == []
