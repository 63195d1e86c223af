"""The exit codes are one table, and every terminal of the machine has its own."""

import io
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.terminal import process_end
from mendgraph.graph.terminal.process_end import MEANINGS, SIGNALS, ExitCode, RefusedError
from mendgraph.nodes.records import ToolError, ToolErrorCode


def test_documents_have_the_same_table() -> None:
    page = (Path(__file__).parents[3] / "docs/terminal.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    assert rows in page


@pytest.mark.parametrize("arguments", [[], ["--debug"]])
def test_bug_asks_for_a_report_and_holds_no_secret(
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


def refusal(code: ToolErrorCode, message: str, *suggestions: str) -> RefusedError:
    with pytest.raises(RefusedError) as raised:
        process_end.found(ToolError(code=code, message=message, suggestions=suggestions))
    return raised.value


@pytest.mark.parametrize("code", ToolErrorCode)
def test_error_of_the_command_line_is_told_from_a_failure(code: ToolErrorCode) -> None:
    of_the_line = code in {ToolErrorCode.NOT_FOUND, ToolErrorCode.INVALID_ARGUMENT}
    refused = refusal(code, "No run 'ab'.", "abc", "abd")
    assert refused.code is (ExitCode.USAGE_ERROR if of_the_line else ExitCode.SYSTEM_ERROR)
    assert refused.message == ("No run 'ab'. Did you mean abc or abd?" if of_the_line else "No run 'ab'.")
    assert refused.named == ([] if of_the_line else ["  abc", "  abd"])


def test_suggestion_that_the_message_holds_is_not_repeated() -> None:
    refused = refusal(ToolErrorCode.NOT_FOUND, "No run 'ab': give skip_changed, or abc.", "abc")
    assert refused.message == "No run 'ab': give --skip-changed, or abc."


@pytest.mark.parametrize(("count", "more"), [(50, []), (51, ["  and 1 more"]), (900, ["  and 850 more"])])
def test_fifty_files_that_stand_in_the_way_are_named(count: int, more: list[str]) -> None:
    names = [f"file-{number}" for number in range(count)]
    refused = refusal(ToolErrorCode.CONFLICT, "Changed since.", *names)
    assert refused.named == [*(f"  {name}" for name in names[:50]), *more]


def test_file_that_is_there_is_written_over_only_by_force(tmp_path: Path) -> None:
    process_end.write_file(str(tmp_path), "a.md", b"one", force=False)
    with pytest.raises(RefusedError, match="name another file, or write over it with --force") as raised:
        process_end.write_file(str(tmp_path), "a.md", b"two", force=False)
    assert (raised.value.code, (tmp_path / "a.md").read_bytes()) == (ExitCode.USAGE_ERROR, b"one")
    process_end.write_file(str(tmp_path), "a.md", b"two", force=True)
    assert (tmp_path / "a.md").read_bytes() == b"two"


def test_ignored_signal_stays_ignored_and_another_thread_hears_none() -> None:
    def hear(*_: Any) -> None:
        """Nothing."""

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        installed = process_end.install(dict.fromkeys(SIGNALS, hear))
        assert installed == {signal.SIGTERM: signal.SIG_DFL}
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (signal.SIG_IGN, hear)
        in_thread: list[Any] = []
        thread = threading.Thread(target=lambda: in_thread.append(process_end.install({signal.SIGTERM: hear})))
        thread.start()
        thread.join()
        assert in_thread == [{}]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
