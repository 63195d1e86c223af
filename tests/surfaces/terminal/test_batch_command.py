"""`mendgraph batch`: its output for people, its JSON, and its exit codes."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mendgraph.graph import cli
from mendgraph.graph.fleet.batch.batch_folder import BatchEnd, BatchResult, Tally
from mendgraph.graph.fleet.batch.tasks import TaskOutput, TaskResult, TaskUsage, WorkOrder, failed_result
from mendgraph.graph.terminal.batch_command import BatchProgress, exit_code_of_batch
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode
from tests.extent import slow
from tests.surfaces.batch.scripted_work import done, wait_for_stop

Run = Callable[..., tuple[int, str, str]]
ERROR = ToolError(code=ToolErrorCode.RATE_LIMITED, message="Too much.")


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WorkOrder]]:
    orders_run: list[WorkOrder] = []

    def work(order: WorkOrder, stop: StopRequest, _: object) -> TaskOutput:
        orders_run.append(order)
        match order.task.prompt:
            case "fail":
                return TaskOutput(failed_result(order, ERROR, "provider_failed"))
            case "limit":
                return TaskOutput(failed_result(order, ERROR, "account_limit"))
            case "wait" | "twice":
                os.kill(os.getpid(), signal.SIGINT)
                result = wait_for_stop(order, stop)
                if order.task.prompt == "twice":
                    os.kill(os.getpid(), signal.SIGINT)
                return result
            case _:
                return done(order)

    monkeypatch.setattr("mendgraph.graph.fleet.batch.executors.run_order", work)
    monkeypatch.setenv("MENDGRAPH_CONFIG", "")
    before = signal.getsignal(signal.SIGINT)
    yield orders_run
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def played(prompts: str, *words: str) -> tuple[int, str, str]:
        lines = [{"id": f"t{n}", "prompt": prompt, "workspace": "."} for n, prompt in enumerate(prompts.split())]
        Path("tasks.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        code = cli.main(["batch", "tasks.jsonl", "--workers", "1", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return played


def test_each_result_is_a_line_and_the_summary_comes_last(run: Run, orders: list[WorkOrder], tmp_path: Path) -> None:
    code, out, err = run("go fail")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "1/2 FINISHED t0 answered (0 calls, 0.0 s)",
        "2/2 SYSTEM_ERROR t1 provider_failed (0 calls, 0.0 s): Too much.",
        "2 of 2 tasks have results: 1 finished, 1 failed; 0 model calls, 0 tokens",
        "Each task has its result.",
        f"Results and patches are in {tmp_path}/tasks.batch",
    ]
    assert run("go fail")[0] == 1
    assert len(orders) == 2


def test_json_output_has_an_object_on_each_line(run: Run, orders: list[WorkOrder], tmp_path: Path) -> None:
    code, out, err = run("go", "--json", "--out", "there", "--max-steps", "3")
    assert (code, err) == (0, "")
    result, summary = map(json.loads, out.splitlines())
    written = [json.loads(line) for line in Path("there/results.jsonl").read_text().splitlines()]
    assert [TaskResult.model_validate(result)] == [TaskResult.model_validate(line) for line in written]
    ended = {"folder": str(tmp_path / "there"), "end": "complete", "total": 1, "left": 0, "finished": 1}
    assert {name: summary[name] for name in ended} == ended
    assert (json.loads(orders[0].context)["max_steps"], orders[0].folder) == (3, str(tmp_path / "there/work/t0"))


class LeftError(BaseException):
    """The process would have ended."""


@slow
@pytest.mark.usefixtures("orders")
def test_batch_that_ends_early_says_why_and_has_its_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("limit go", "--max-tokens", "9")
    assert (code, out.splitlines()[0]) == (3, "0/2 LEFT t0 account_limit (0 calls, 0.0 s): Too much.")
    assert "2 tasks are left: start the same batch again to continue" in out
    code, out, err = run("wait go", "--out", "stopped")
    assert (code, err) == (130, "mendgraph: stopping the running tasks; Ctrl-C again to stop at once\n")
    assert "It was stopped by you (Ctrl-C). 2 tasks are left" in out

    def leave(code: int) -> None:
        raise LeftError(code)

    monkeypatch.setattr("mendgraph.graph.terminal.process_end.leave_at_once", leave)
    with pytest.raises(LeftError, match="130"):
        run("twice go", "--out", "left")


ENDS = (
    (BatchEnd.COMPLETE, "", Tally(finished=1), ExitCode.FINISHED),
    (BatchEnd.COMPLETE, "", Tally(stopped=1), ExitCode.FINDINGS),
    (BatchEnd.LIMIT, "", Tally(), ExitCode.BUDGET_STOP),
    (BatchEnd.CANCELLED, "SIGTERM", Tally(), ExitCode.TERMINATED),
    (BatchEnd.CANCELLED, "Ctrl-C", Tally(), ExitCode.INTERRUPTED),
    (BatchEnd.FAILED, "", Tally(), ExitCode.SYSTEM_ERROR),
)


def test_end_of_a_batch_has_its_exit_code() -> None:
    ended = [exit_code_of_batch(BatchResult("0a", "/out", end, "", 1, tally), heard) for end, heard, tally, _ in ENDS]
    assert ended == [code for *_, code in ENDS]


@pytest.mark.usefixtures("orders")
def test_batch_that_cannot_start_is_reported_in_one_line(run: Run) -> None:
    for words, code, message in (
        (["--mode", "ask"], 2, 'mode: "ask" needs a person for each change'),
        (["--out", "."], 4, "is not the folder of a batch: it holds 'tasks.jsonl'"),
        (["--workers", "0"], 2, "--workers"),
    ):
        ended, _, err = run("go", *words)
        assert (ended, len(err.splitlines()), message in err) == (code, 1, True), err


@pytest.mark.usefixtures("orders")
def test_every_problem_of_the_task_file_is_reported(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n[]\n")
    assert run("go")[0] == 0
    assert cli.main(["batch", str(tmp_path / "bad.jsonl"), "--json"]) == ExitCode.USAGE_ERROR
    out, err = capfd.readouterr()
    assert [line.rpartition("bad.jsonl:")[2][0] for line in err.splitlines()] == ["1", "2"]
    assert [problem["line"] for problem in json.loads(out)["error"]["problems"]] == [1, 2]
    assert not (tmp_path / "bad.batch").exists()


# --- Progress for people: a bar of any width, or a line for each result

USAGE = TaskUsage(calls=2)
GOOD = TaskResult(
    id="a",
    kind=OutcomeKind.FINISHED,
    reason="answered",
    message="Changed x.",
    changed=("x",),
    usage=USAGE,
    seconds=1.25,
)
BAD = TaskResult(id="b", kind=OutcomeKind.SYSTEM_ERROR, reason="provider_failed", message="No\x1b[31m one.\nThere")
OPEN = TaskResult(id="c", kind=OutcomeKind.BUDGET_STOP, reason="cancelled", message="The task was stopped.")
LINES = (
    "1/3 FINISHED a answered (2 calls, 1.2 s): Changed x.; not in the patch, only in the copy: x.log: git ignores it\n"
    "1/3 SYSTEM_ERROR b provider_failed (0 calls, 0.0 s): No\\x1b[31m one. There\n"
    "1/3 LEFT c cancelled (0 calls, 0.0 s): The task was stopped.\n"
)


PARTLY = GOOD.model_copy(update={"left_out": ("x.log: git ignores it",)})


def show_batch(out: Console, err: Console, good: TaskResult) -> None:
    with closing(BatchProgress(out, err)) as progress:
        progress.began(Tally(finished=1), 3)
        for result in (good, BAD, OPEN):
            progress.task_ended(result)
        assert progress.stopping("Ctrl-C") is err.is_terminal


def test_without_a_terminal_each_result_is_a_plain_line() -> None:
    out, err = StringIO(), StringIO()
    show_batch(Console(file=out), Console(file=err), PARTLY)
    assert (out.getvalue(), err.getvalue()) == (LINES, "")


def test_progress_bar_estimates_the_remaining_time_from_rare_results() -> None:
    now, err, tally = [0.0], StringIO(), Tally(finished=1)
    terminal = Console(file=err, force_terminal=True, get_time=lambda: now[0])
    with closing(BatchProgress(Console(file=StringIO()), terminal)) as progress:
        progress.began(tally, 12)
        for _ in range(2):
            now[0] += 90
            tally.finished += 1
            progress.task_ended(GOOD)
    assert "0:13:30" in err.getvalue()


def test_terminal_shows_a_progress_bar_and_the_failures() -> None:
    out, err = StringIO(), StringIO()
    terminal = Console(file=err, force_terminal=True, width=40, no_color=True)
    show_batch(Console(file=out, force_terminal=True), terminal, GOOD)
    output = err.getvalue()
    assert (out.getvalue(), "FINISHED a" in output, "[31m" in output.replace("\\x1b[31m", "")) == ("", False, False)
    assert [part for part in ("1/3", "SYSTEM_ERROR b", "━") if part not in output] == []
