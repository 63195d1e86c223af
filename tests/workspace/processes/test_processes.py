import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.processes.processes import (
    CapturedOutput,
    ProcessResult,
    kill_group,
    outputs,
    read_until,
    run_process,
    start_process,
)


def python(program: str, cwd: Path, timeout_s: float = 10, most: int = 10_000) -> ProcessResult | ToolError:
    return run_process([sys.executable, "-c", program], cwd=str(cwd), timeout_s=timeout_s, max_output_bytes=most)


def has_ended(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        if state.strip().startswith("Z"):
            return True
        time.sleep(0.01)
    return False


def test_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "OPENAI_API_KEY", "RIPGREP_CONFIG_PATH", "LANG"):
        monkeypatch.setenv(name, "x")
    result = python("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))", tmp_path)
    assert result == ProcessResult(0, b"['HOME', 'LANG', 'PATH']\n", b"")


def test_leftover_child_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    program = (
        "import subprocess,sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid)"
    )
    result = python(program, tmp_path, timeout_s=30)
    assert isinstance(result, ProcessResult)
    assert (result.exit_code, has_ended(int(result.stdout))) == (0, True)


def test_endless_output_is_cut_and_the_program_stopped(tmp_path: Path) -> None:
    result = python("while True: print('x' * 1000)", tmp_path, most=5_000)
    assert isinstance(result, ProcessResult)
    assert (len(result.stdout), result.stderr, result.truncated) == (5_000, b"", True)


def test_program_that_cannot_start_is_a_typed_error(tmp_path: Path) -> None:
    rows = [
        (["no-such-program"], ".", ToolErrorCode.NOT_FOUND),
        (["/etc/passwd"], ".", ToolErrorCode.PERMISSION_DENIED),
        (["true"], "nope", ToolErrorCode.NOT_FOUND),
        (["echo", "a\0b"], ".", ToolErrorCode.INVALID_ARGUMENT),
    ]
    for argv, cwd, code in rows:
        env = {"PATH": "/usr/bin:/bin"}
        result = run_process(argv, cwd=str(tmp_path / cwd), timeout_s=1, max_output_bytes=10, env=env)
        assert isinstance(result, ToolError)
        assert result.code is code


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=50)), st.integers(min_value=1, max_value=60))
def test_kept_ends_of_an_output_do_not_depend_on_its_chunks(chunks: list[bytes], most: int) -> None:
    captured = CapturedOutput(most=most)
    assert [captured.add(chunk) for chunk in chunks] == [True] * len(chunks)
    output, tail = b"".join(chunks), most // 2
    head = most - tail
    remainder = output[head:]
    assert captured == CapturedOutput(output[:head], remainder[max(0, len(remainder) - tail) :], len(output))
    assert captured.left_out == max(0, len(output) - most)


def test_reading_stops_on_its_check_or_deadline(tmp_path: Path) -> None:
    process = start_process(["sleep", "60"], cwd=str(tmp_path), env=dict(os.environ))
    assert not isinstance(process, ToolError)
    stdout, stderr = outputs(process)
    with process:
        assert not read_until(process, {stdout: lambda _: True, stderr: lambda _: True}, time.monotonic() + 0.1)
        with pytest.raises(RuntimeError, match="enough"):
            read_until(process, {stdout: lambda _: True}, time.monotonic() + 60, _refuse)
        kill_group(process)
        assert read_until(process, {stdout: lambda _: True}, time.monotonic() + 60)
    assert process.returncode == -9


def _refuse() -> None:
    raise RuntimeError("enough")


class LateProcess(subprocess.Popen[bytes]):
    """It prints and ends after there was nothing to read, before it is asked whether it has, as on a busy machine."""

    def poll(self) -> int | None:
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.close()
            self.wait(60)
        return super().poll()


def test_last_output_before_exit_is_read() -> None:
    program = "import sys; sys.stdin.read(); print('the last word')"
    printed = CapturedOutput(most=100)
    with LateProcess([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert read_until(process, {process.stdout.fileno(): printed.add}, time.monotonic() + 60)
    assert printed.head == b"the last word\n"
