"""The exit codes are one table, and every terminal of the machine has its own."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from mendgraph.graph.terminal import process_end
from mendgraph.graph.terminal.process_end import MEANINGS, ExitCode


def test_the_documents_have_the_same_table() -> None:
    page = (Path(__file__).parents[3] / "docs/terminal.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    assert rows in page


@pytest.mark.parametrize("arguments", [[], ["--debug"]])
def test_a_bug_asks_for_a_report_and_holds_no_secret(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "k3y-of-somebody")
    with pytest.raises(KeyError) as raised:
        dict[str, str]()["k3y-of-somebody"]
    refusal = process_end.bug(raised.value, debug=bool(arguments))
    assert process_end.fail([], refusal) is ExitCode.INTERNAL_ERROR
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
