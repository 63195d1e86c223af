"""How the process ends: exit codes, bug reports, closed streams, error messages, signals."""

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
from tests.extent import slow


def test_documented_exit_codes_equal_those_of_the_command() -> None:
    page = (Path(__file__).parents[3] / "docs/terminal.md").read_text(encoding="utf-8")
    assert "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()) in page


@pytest.mark.parametrize("debug", [False, True])
def test_bug_report_is_redacted_and_has_a_traceback_only_with_debug(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "k3y-of-somebody")
    with pytest.raises(KeyError) as raised:
        dict[str, str]()["k3y-of-somebody"]
    refusal = process_end.bug(raised.value, debug=debug)
    assert process_end.fail([], refusal) is ExitCode.INTERNAL_ERROR
    error = capsys.readouterr().err
    last = "mendgraph: this is a bug (KeyError: '[redacted secret]'): please report it with the output of --debug\n"
    assert error.endswith(last)
    assert ("Traceback" in error, "k3y" in error) == (debug, False)


CLOSED = """
import io, sys
from mendgraph.graph.terminal import process_end
raw = io.BytesIO()
held = io.TextIOWrapper(raw, encoding="ascii")
sys.stdout, sys.stderr = held, None
process_end.make_streams_writable()
print("ü", flush=True)
print("gone", file=sys.stderr)
sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
print(raw.getvalue().decode(), end="", flush=True)
code = process_end.close_output("cannot write")
sys.stdout.write("lost")
sys.exit(code)
"""


@slow
def test_odd_characters_are_escaped_and_nothing_is_written_after_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "\\xfc\n", "mendgraph: cannot write\n")


def refusal(code: ToolErrorCode, message: str, *suggestions: str) -> RefusedError:
    with pytest.raises(RefusedError) as raised:
        process_end.unwrap(ToolError(code=code, message=message, suggestions=suggestions))
    return raised.value


def test_usage_error_is_distinguished_from_a_failure() -> None:
    mistakes = {ToolErrorCode.NOT_FOUND, ToolErrorCode.INVALID_ARGUMENT}
    mistake = (ExitCode.USAGE_ERROR, "No run 'ab'. Did you mean abc or abd?", list[str]())
    failure = (ExitCode.SYSTEM_ERROR, "No run 'ab'.", ["  abc", "  abd"])
    for code in ToolErrorCode:
        refused = refusal(code, "No run 'ab'.", "abc", "abd")
        assert (refused.code, refused.message, refused.named) == (mistake if code in mistakes else failure), code


def test_suggestion_in_the_message_is_not_repeated_and_at_most_fifty_files_are_named() -> None:
    refused = refusal(ToolErrorCode.NOT_FOUND, "No run 'ab': give skip_changed, or abc.", "abc")
    assert refused.message == "No run 'ab': give --skip-changed, or abc."
    names = [f"file-{number}" for number in range(51)]
    expected = [f"  {name}" for name in names[:50]]
    assert refusal(ToolErrorCode.CONFLICT, "Changed since.", *names[:50]).named == expected
    assert refusal(ToolErrorCode.CONFLICT, "Changed since.", *names).named == [*expected, "  and 1 more"]


def test_ignored_signal_stays_ignored_and_other_threads_install_no_handler() -> None:
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
