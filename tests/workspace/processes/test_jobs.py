"""Commands that run in the background, and what they share with later commands."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands
from mendgraph.nodes.execute_tools.commands.jobs import MOST_JOBS, Job, Jobs
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.workspace.sandboxes.shared import CHANGED, TOO_LONG
from tests.architecture.product import ROOT
from tests.workspace.processes.command_place import is_alive, opened, unique_seconds

PATIENCE_S = 30.0
STOP_LAUNCHER = """for folder in /proc/[0-9]*; do
  number=${folder#/proc/}
  if [ $number != $$ ] && grep -q shared_launcher $folder/cmdline; then kill -STOP $number; fi
done"""


class Shared:
    """The commands of a workspace, and their jobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: Commands = opened(root, sandbox="bubblewrap")
        self.jobs = Jobs()

    def run(
        self, script: str, seconds: float = PATIENCE_S, *, background: bool = False
    ) -> CommandResult | Job | ToolError:
        return self.jobs.run(self.commands, ["sh", "-c", script], ".", seconds, 3, background=background)

    def job(self, script: str) -> Job:
        job = self.run(script, background=True)
        assert isinstance(job, Job), job
        return job

    def says(self, script: str) -> str:
        result = self.run(script)
        assert isinstance(result, CommandResult), result
        return (result.stdout.head + result.stderr.head).decode()

    def wait(self, job: Job, text: str = "") -> str:
        """Wait for the end of the job, or for what it prints; returns its output."""
        job.wait(PATIENCE_S, text, lambda: None)
        return job.take_output()[0].head.decode()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    root = tmp_path / "root"
    root.mkdir()
    (root / ".env").write_text("KEY=1\n")
    place = Shared(root)
    yield place
    place.jobs.end()


def test_command_without_jobs_behaves_as_usual(shared: Shared) -> None:
    result = shared.run("cat .env; echo out; echo err >&2; sleep 100 & kill -9 $$")
    assert isinstance(result, CommandResult)
    assert (result.exit_code, result.stdout.head) == (137, b"out\n")
    assert result.stderr.head == b"cat: .env: Permission denied\nerr\n"
    assert shared.jobs.have_ended
    refused = shared.jobs.run(shared.commands, ["ls"], ".", 1.0, 3, background=False)
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.PERMISSION_DENIED


def test_command_that_exceeds_its_timeout_becomes_a_job(shared: Shared) -> None:
    job = shared.run("echo first; read line < /dev/null; while ! test -f go; do sleep 0.05; done; exit 7", 0.5)
    assert isinstance(job, Job)
    assert (job.name, job.is_running) == ("3.1", True)
    assert shared.wait(job, "first") == "first\n"
    assert shared.says("touch go; echo done") == "done\n"
    assert shared.wait(job) == ""
    assert (job.command.exit_code, shared.jobs.find("3.1")) == (7, job)


def test_later_command_shares_processes_and_temporary_files_of_a_job(shared: Shared) -> None:
    mark = unique_seconds()
    job = shared.job(f"echo {mark} > /tmp/mark; exec sleep {mark}")
    assert f"sleep {mark}" in shared.says("sleep 0.3; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; cat /tmp/mark")
    shared.jobs.kill(job, 2.0)
    assert (job.is_running, job.command.exit_code, shared.jobs.have_ended) == (False, 143, True)
    assert not is_alive(f"sleep {mark}")


def test_end_of_a_job_ends_its_remaining_processes(shared: Shared) -> None:
    mark = unique_seconds()
    job = shared.job(f"sleep {mark} & setsid sleep {mark}0 & exit 0")
    shared.wait(job)
    shared.jobs.close_idle()
    assert not is_alive(f"sleep {mark}")


def test_cancelled_call_ends_its_command(shared: Shared) -> None:
    scope = CancellationScope()
    shared.commands = shared.commands.in_scope(scope)
    scope.revoke()
    with pytest.raises(ScopeOverError):
        shared.run("sleep 100")
    assert shared.jobs.have_ended


def test_new_denied_file_blocks_further_commands(shared: Shared) -> None:
    shared.job("sleep 100")
    (shared.root / "keys").mkdir()
    refused = shared.run("true")
    assert isinstance(refused, ToolError)
    assert (refused.code, "end the jobs by job_kill" in refused.message) == (ToolErrorCode.CONFLICT, True)


def test_replaced_denied_file_ends_the_jobs(shared: Shared) -> None:
    job = shared.job("while true; do cat .env; sleep 0.05; done")
    (shared.root / "new").write_text("KEY=2\n")
    (shared.root / "new").rename(shared.root / ".env")
    shared.wait(job)
    assert (job.is_running, job.command.why) == (False, CHANGED)


def test_sandbox_that_uses_a_copy_has_no_jobs(tmp_path: Path) -> None:
    problem = Jobs.problem(opened(tmp_path, sandbox="landlock"))
    assert problem.startswith("No command can run in the background in the sandbox 'landlock', only in bubblewrap: ")


def test_number_of_jobs_is_limited(shared: Shared) -> None:
    for _ in range(MOST_JOBS):
        shared.job("sleep 100")
    refused = shared.run("true", background=True)
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.RATE_LIMITED
    assert shared.says("echo done") == "done\n"
    stopped = shared.run("sleep 100", 0.5)
    assert isinstance(stopped, CommandResult)
    assert stopped.timed_out


@pytest.mark.parametrize("way", ["kill", "run"])
def test_unresponsive_sandbox_is_closed(shared: Shared, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    job = shared.job(f"{STOP_LAUNCHER}; echo stopped; sleep 100")
    assert shared.wait(job, "stopped") == "stopped\n"
    monkeypatch.setattr("mendgraph.nodes.workspace.sandboxes.shared._ANSWER_S", 0.2)
    if way == "kill":
        shared.jobs.kill(job, 0.1)
    else:
        refused = shared.run("true")
        assert isinstance(refused, ToolError)
        assert refused.message == "It was ended: its sandbox was closed."
    assert (job.is_running, shared.jobs.have_ended) == (False, True)


def test_jobs_end_after_their_time_limit(shared: Shared) -> None:
    shared.jobs = Jobs(0.3)
    job = shared.job("sleep 100")
    shared.wait(job)
    assert (job.is_running, job.command.why) == (False, TOO_LONG)


def test_jobs_of_two_sandboxes_have_different_names(shared: Shared) -> None:
    first = shared.job("exit 0")
    shared.wait(first)
    assert shared.says("echo done") == "done\n"
    second = shared.job("sleep 100")
    assert (first.name, second.name, shared.jobs.find("3.1")) == ("3.1", "3.2", first)


def test_command_that_cannot_be_executed_is_an_error(shared: Shared) -> None:
    for script in ("a\0b", "\ud800"):
        refused = shared.run(script)
        assert isinstance(refused, ToolError)
        assert refused.code is ToolErrorCode.INVALID_ARGUMENT
    (shared.root / "tool").write_text("#!/no/such/interpreter\n")
    (shared.root / "tool").chmod(0o755)
    commands = opened(shared.root, programs=("./tool",), sandbox="bubblewrap")
    missing = shared.jobs.run(commands, ["./tool"], ".", PATIENCE_S, 3, background=False)
    assert isinstance(missing, ToolError)
    assert missing.code is ToolErrorCode.NOT_FOUND


def test_job_of_a_dead_process_is_reported_as_ended() -> None:
    refused = Jobs().find("3.1")
    assert isinstance(refused, ToolError)
    assert refused.message == (
        "There is no job '3.1': none is running. Jobs end with the turn, before its changes are checked, and with the"
        " process of the run, and are not started again."
    )


def test_job_is_killed_with_its_agent(shared: Shared) -> None:
    mark = unique_seconds()
    program = (
        "import time\n"
        "from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules\n"
        "from mendgraph.nodes.execute_tools.commands.commands import open_commands\n"
        "from mendgraph.nodes.execute_tools.commands.jobs import Jobs\n"
        f"commands = open_commands({str(shared.root)!r}, CommandRules(('sh',)), lambda name: False)\n"
        f"Jobs().run(commands, ['sh', '-c', 'setsid sleep {mark}'], '.', 9.0, 1, background=True)\n"
        "time.sleep(100)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    ) as agent:
        while not is_alive(f"sleep {mark}"):
            assert agent.poll() is None
            time.sleep(0.01)
        agent.kill()
    deadline = time.monotonic() + 10
    while is_alive(f"\nsleep {mark}\n") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(f"\nsleep {mark}\n")
