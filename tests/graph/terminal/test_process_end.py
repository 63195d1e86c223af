"""The exit codes are one table, and every terminal of the machine has its own."""

import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from mendgraph.graph.configuration.settings_file import Problem
from mendgraph.graph.terminal import process_end
from mendgraph.graph.terminal.options import Options
from mendgraph.graph.terminal.process_end import MEANINGS, ExitCode, settings_refused


def test_the_readme_has_the_same_table() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    assert rows in readme


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--json-lines"]])
def test_a_failure_is_one_line_and_an_object_where_one_is_wanted(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert process_end.fail(arguments, ExitCode.USAGE_ERROR, "no such thing") is ExitCode.USAGE_ERROR
    said = capsys.readouterr()
    assert said.err == "mendgraph: no such thing\n"
    error = {"code": "usage_error", "message": "no such thing"}
    event = {"event": "error"} if "--json-lines" in arguments else {}
    assert (json.loads(said.out) if said.out else None) == ({**event, "error": error} if arguments else None)


@pytest.mark.parametrize("arguments", [[], ["--debug"]])
def test_a_bug_asks_for_a_report_and_holds_no_secret(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "k3y-of-somebody")
    with pytest.raises(KeyError) as raised:
        dict[str, str]()["k3y-of-somebody"]
    assert process_end.report_bug(arguments, raised.value) is ExitCode.INTERNAL_ERROR
    said = capsys.readouterr().err
    last = "mendgraph: this is a bug (KeyError: '[redacted secret]'): please report it with what --debug says\n"
    assert said.endswith(last)
    assert ("Traceback" in said, "k3y" in said) == (bool(arguments), False)


def test_nothing_is_written_any_more_once_nobody_reads() -> None:
    program = (
        "import sys; from mendgraph.graph.terminal import process_end\n"
        "code = process_end.close_output('cannot write'); sys.stdout.write('lost'); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "mendgraph: cannot write\n")


def test_what_the_encoding_does_not_know_is_escaped_and_a_closed_stream_swallows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    process_end.make_streams_writable()
    sys.stdout.write("ü")
    sys.stdout.flush()
    with sys.stderr as swallowing:
        swallowing.write("gone")
    assert raw.getvalue() == b"\\xfc"


def test_a_closed_input_is_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    process_end.make_streams_writable()
    with sys.stdin as ended:
        assert (ended.isatty(), ended.read()) == (False, "")


def test_threads_are_not_waited_for() -> None:
    program = (
        "import threading; from mendgraph.graph.terminal import process_end\n"
        "threading.Thread(target=threading.Event().wait).start(); print('said'); process_end.leave_at_once(143)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (143, "said\n")


def test_each_problem_is_a_line_and_an_item(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem("a.toml", "`x` is no\nnumber", line=2, field="x"), Problem("b.toml", "is not TOML")]
    assert settings_refused(Options(Path(), as_json=True, debug=False, settings={}), iter(problems)) == 2
    shown = capsys.readouterr()
    first, second = shown.err.splitlines()
    assert first.startswith("mendgraph: a.toml:2: `x` is no")
    assert first.endswith("number")
    assert second == "mendgraph: b.toml: is not TOML"
    said = "\n".join(line.removeprefix("mendgraph: ") for line in (first, second))
    assert json.loads(shown.out) == {
        "error": {"code": "usage_error", "message": said, "problems": [asdict(problem) for problem in problems]}
    }
