"""A batch: many tasks, each on its own copy of its workspace, started, recorded, and continued after any interruption.

`run_batch` is the Python function, `mendgraph batch` the command.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias, Unpack, cast

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import Problem
from mendgraph.graph.fleet.batch.batch_folder import (
    BatchEnd,
    BatchFolder,
    BatchResult,
    CompletedTask,
    Tally,
    end_words,
    open_batch_folder,
)
from mendgraph.graph.fleet.batch.executors import Executor, ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import (
    UNFINISHED,
    BatchTask,
    TaskLine,
    TaskOutput,
    TaskResult,
    WorkOrder,
    find_duplicate_ids,
    pin_sources,
    problems_of,
    read_task_file,
    with_absolute_workspace,
)
from mendgraph.graph.machine.options import MachineOptions, SessionOptions, check_options, context_overrides
from mendgraph.graph.machine.run_records import Durability
from mendgraph.graph.spending.store import account_spent
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.os_errors import is_disk_full, os_failure
from mendgraph.nodes.records import StopReason, ToolError, invalid
from mendgraph.nodes.workspace.copies.workspace_copies import delete_copy, open_copy
from mendgraph.nodes.workspace.store.run_folder import remove_run_folder, workspace_folder_path

WORKERS: Final = 4
"""Tasks at a time by default: most of a task's time is the model's."""

MOST_WORKERS: Final = 10_000
OUT_SUFFIX: Final = ".batch"
"""The suffix of a batch's default folder: `tasks.batch/` for `tasks.jsonl`."""

Tasks: TypeAlias = str | os.PathLike[str] | Iterable[BatchTask]
"""The path of a task file, or the tasks themselves."""

_NOT_SENT: Final = ("tools", "rules", "roles", "arg_validators", "model", "store", "secrets")
"""Options of a session that cannot be sent to another process, unless they are names."""

_NO_FILE: Final = "tasks"
"""The name in problems of tasks that come from no file."""

LIMITS_OF_ALL: Final = UNFINISHED - {StopReason.CANCELLED}
"""Reasons that hold for all later tasks as well."""


@dataclass(frozen=True)
class BatchOptions:
    """What the tasks may do (`context`), what all of them together may use, and who runs them.

    The settings of a task's own workspace are not read. Tasks run on threads, on `processes`, or on a Ray cluster
    (`on`) at `address`. `workers` is the number of tasks at a time, by default `WORKERS`, and on a cluster that of its
    CPUs.
    """

    context: AgentContext = field(default_factory=AgentContext)
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    durability: Durability = "sync"
    workers: int | None = None
    processes: int = 1
    on: Literal["ray"] | None = None
    address: str | None = None

    @property
    def has_limit(self) -> bool:
        """Whether the usage of all tasks together is limited."""
        return self.max_cost_usd is not None or self.max_tokens is not None

    def context_of(self, batch: str) -> AgentContext:
        """Return the context of the tasks, with the limits of the batch's account if there are any."""
        if not self.has_limit:
            return self.context

        limits = {"max_cost_usd_per_account": self.max_cost_usd, "max_tokens_per_account": self.max_tokens}
        return AgentContext(**{**self.context.model_dump(), "account": account_of(batch), **limits})


def account_of(batch: str) -> str:
    """Return the account of the batch's spending."""
    return f"batch/{batch}"


class Batch:
    """A batch in its folder, ready to run once. The caller closes the folder.

    `tally` counts the results, those of earlier starts included; `notes` are sentences about files that are in no copy.
    """

    def __init__(
        self,
        tasks: Sequence[BatchTask],
        folder: BatchFolder,
        executor: Executor,
        options: BatchOptions,
        *,
        remove_copies: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self._tasks = tasks
        self.folder = folder
        self.executor = executor
        self._options = options
        self._remove_copies = remove_copies
        self.notes = notes
        self._context = options.context_of(folder.batch).model_dump_json()
        self.total = len(tasks)
        self.tally = Tally()

        for task in tasks:
            if task.id in folder.completed:
                self.tally.add(folder.completed[task.id])

        self._end: tuple[BatchEnd, str] | None = None

    def cancel(self, reason: str) -> None:
        """Start no further task, and stop the active ones early. Any thread and any signal handler may call this."""
        if self._end is None or self._end[0] is BatchEnd.LIMIT:
            self._end = (BatchEnd.CANCELLED, reason)

        self.executor.cancel(reason)

    def run(self, on_result: Callable[[TaskResult], None] = lambda _: None) -> BatchResult:
        """Run all tasks that have no result yet.

        `on_result` is called in this thread with each result that is on the disk, and with those of tasks that were
        stopped, which have none yet (`is_final`).
        """
        if self._remove_copies:
            for task_id in self.folder.completed:
                self._remove_copy(task_id)  # that an earlier start did not remove

        with closing(self.executor.run(self._orders())) as outputs:
            for output in outputs:
                result = self._record(output)
                if result is not None:
                    on_result(result)

        return self._result()

    def _orders(self) -> Iterator[WorkOrder]:
        for task in self._tasks:
            if task.id in self.folder.completed:
                continue
            if self._is_over():
                return

            try:
                self.folder.begin(task)
            except OSError as error:
                self._fail(os_failure(error, "write in", self.folder.path))
                return

            commit = self.folder.pins.get((task.workspace, task.revision), task.revision)
            yield WorkOrder(
                batch=self.folder.batch,
                task=task.model_copy(update={"revision": commit}),
                context=self._context,
                folder=self.folder.copy_of(task.id),
                without=(self.folder.path,),
                task_hash=task.sha256,
                durability=self._options.durability,
            )

    def _record(self, output: TaskOutput) -> TaskResult | None:
        """Write the result if it is final and return it; None if the disk refuses it."""
        result = output.result
        if result.error is not None and is_disk_full(result.error):  # this meets the other tasks as well
            self._fail(result.error)

        if result.is_final and not self._has_failed:
            try:
                result = self.folder.write(output)
            except OSError as error:
                self._fail(os_failure(error, "write in", self.folder.path))
                return None

            self.tally.add(CompletedTask.of(result))
            if self._remove_copies:
                self._remove_copy(result.id)
        elif result.reason in LIMITS_OF_ALL:
            message = result.message
            if self._options.has_limit and result.reason == StopReason.ACCOUNT_LIMIT:
                message = self._spending_message()
            self._end = self._end or (BatchEnd.LIMIT, message)

        return result

    def _is_over(self) -> bool:
        """Return whether no further task may start."""
        if self._options.has_limit and self._end is None:
            message = self._spending_message(if_reached=True)
            if message:
                self._end = (BatchEnd.LIMIT, message)

        return self._end is not None

    def _spending_message(self, *, if_reached: bool = False) -> str:
        """Return that the limit leaves no room for a call, or why the spending is unknown.

        `if_reached`: return "" if the limit is not reached.
        """
        spent = account_spent(account_of(self.folder.batch))
        if isinstance(spent, ToolError):
            return spent.message

        parts = []
        is_reached = False
        if self._options.max_cost_usd is not None:
            is_reached = spent.cost_usd >= self._options.max_cost_usd
            parts.append(f"{spent.cost_usd:.4f} of {self._options.max_cost_usd:g} USD (--max-cost)")
        if self._options.max_tokens is not None:
            is_reached = is_reached or spent.tokens >= self._options.max_tokens
            parts.append(f"{spent.tokens:,} of {self._options.max_tokens:,} tokens (--max-tokens)")

        if if_reached and not is_reached:
            return ""

        used = " and ".join(parts)
        return f"The limit for the whole batch leaves no room for another call: {used} are used. Raise it."

    @property
    def _has_failed(self) -> bool:
        return self._end is not None and self._end[0] is BatchEnd.FAILED

    def _fail(self, problem: ToolError) -> None:
        """End the batch, which cannot continue. Active tasks are stopped, and can be resumed."""
        if not self._has_failed:
            self._end = (BatchEnd.FAILED, problem.message)

        self.executor.cancel("because the batch cannot continue")

    def _remove_copy(self, task_id: str) -> None:
        """Remove a task's copy and the files of its run, unless its changes are in no patch. Errors are ignored."""
        if self.folder.completed[task_id].needs_copy:
            return

        folder = self.folder.copy_of(task_id)
        copy = open_copy(folder)

        with suppress(OSError):
            if copy is not None:
                remove_run_folder(f"{self.folder.batch}-{task_id}")
                shutil.rmtree(workspace_folder_path(copy.root))

        delete_copy(folder)

    def _result(self) -> BatchResult:
        remaining = self.total - self.tally.done
        end = BatchEnd.COMPLETE
        reason = ""
        if self._end is not None and (remaining or self._has_failed):
            end, reason = self._end
        elif remaining:
            end = BatchEnd.CANCELLED
            reason = "because somebody cancelled its tasks"

        message = end_words(end, reason, remaining)
        return BatchResult(self.folder.batch, self.folder.path, end, message, self.total, self.tally)


# --- Before a batch begins


def prepare_batch(
    tasks: Tasks,
    options: BatchOptions,
    *,
    out: str | os.PathLike[str] | None = None,
    remove_copies: bool = False,
    standby: bool = False,
    session_options: SessionOptions | None = None,
) -> Batch | ToolError | tuple[Problem, ...]:
    """Open the folder of a batch, and make all checks that are possible before it begins.

    Returns:
        The batch, whose folder the caller closes; every problem of the task file; or why it cannot begin.
    """
    file = ""
    if isinstance(tasks, str | os.PathLike):
        file = os.fspath(tasks)
        lines = read_task_file(file)
    else:
        lines = _check_tasks(tasks)

    if isinstance(lines, tuple):
        return lines

    problems = find_duplicate_ids(lines, file or _NO_FILE)
    if problems:
        return problems

    path = os.path.abspath(out or os.path.splitext(file)[0] + OUT_SUFFIX)
    folder = open_batch_folder(path, standby=standby)
    if isinstance(folder, ToolError):
        return folder

    notes = _pin_commits(lines, folder, file or _NO_FILE)
    if isinstance(notes, list):
        executor = _open_executor(options, path, session_options)
        if isinstance(executor, Executor):
            all_tasks = [line.task for line in lines]
            return Batch(all_tasks, folder, executor, options, remove_copies=remove_copies, notes=notes)

        notes = executor

    folder.close()
    return notes


def _check_tasks(tasks: Iterable[BatchTask]) -> list[TaskLine]:
    """Return the tasks with their numbers. Raises TypeError: one is no BatchTask."""
    lines = []
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, BatchTask):
            kind = type(task).__name__
            raise TypeError(f"tasks: {kind} is not a BatchTask: use BatchTask(id=..., prompt=..., workspace=...).")

        lines.append(TaskLine(with_absolute_workspace(task, os.getcwd()), number))

    return lines


def _pin_commits(lines: list[TaskLine], folder: BatchFolder, file: str) -> list[str] | ToolError | tuple[Problem, ...]:
    """Find the commits of the copies and write them to the folder; return the notes about them.

    Or return the problems of tasks and workspaces.
    """
    changed = find_changed_tasks(folder, [line.task for line in lines])
    if changed is not None:
        return changed

    sources = pin_sources([line for line in lines if line.task.id not in folder.completed], folder.pins, file)
    if isinstance(sources, tuple):
        return sources

    notes: dict[str, None] = {}
    try:
        for source, pin in sources.items():
            notes |= dict.fromkeys(pin.notes)
            if pin.revision:
                folder.pin(source, pin.revision)
    except OSError as error:
        return os_failure(error, "write in", folder.path)

    return list(notes)


def find_changed_tasks(folder: BatchFolder, tasks: Iterable[BatchTask]) -> ToolError | None:
    """Return an error if tasks have changed since they began: the results would not be theirs."""
    changed = [task.id for task in tasks if folder.known_hash(task.id) not in {None, task.sha256}]
    if not changed:
        return None

    subject = f"{len(changed):,} tasks were changed after they were"
    if len(changed) == 1:
        subject = "1 task was changed after it was"

    return invalid(
        f"{subject} started in this folder ({listed(changed)}): restore the old text, change the ids, or start a"
        " new batch in another folder (--out)."
    )


def _open_executor(options: BatchOptions, folder: str, session_options: SessionOptions | None) -> Executor | ToolError:
    if options.on == "ray":
        from mendgraph.graph.fleet.batch.on_ray import open_ray_executor

        return open_ray_executor(options.context, folder, workers=options.workers, address=options.address)

    workers = options.workers or WORKERS
    if options.processes > 1:
        return ProcessExecutor(workers, options.processes)
    return ThreadExecutor(workers, session_options)


def check_batch_options(options: BatchOptions) -> None:
    """Check what the tasks may do and use, and who runs them. Raises ValueError: the reason, for people."""
    for name, count in (("workers", options.workers), ("processes", options.processes)):
        if count is not None and (not isinstance(count, int) or not 1 <= count <= MOST_WORKERS):
            raise ValueError(f"{name}: {count!r} is not a number from 1 to {MOST_WORKERS:,}.")

    if options.on not in {None, "ray"}:
        raise ValueError(f'on: {options.on!r} is unknown: use "ray", or omit it for this machine.')

    try:
        AgentContext(max_cost_usd_per_account=options.max_cost_usd, max_tokens_per_account=options.max_tokens)
    except ValidationError as error:
        raise ValueError(problems_of(error)[0]) from None

    context = options.context
    if context.mode == "ask":
        raise ValueError(
            'mode: "ask" needs a person for each change, whom a batch does not have: use "auto" or "read-only"'
        )

    if options.processes > 1 and options.on is None:
        endpoint = find_endpoint(context.model, context.base_url, os.environ)
        if isinstance(endpoint, Endpoint) and endpoint.embedded:
            raise ValueError(
                "processes: the embedded model would be loaded by each of them: leave this at 1, or name an endpoint"
            )

    if context.account and options.has_limit:
        raise ValueError(
            f"account: a limit for the whole batch is counted on an account of the batch's own, and {context.account!r}"
            " is set: omit one of the two"
        )


def check_session_options(session_options: SessionOptions, *, in_this_process: bool) -> MachineOptions:
    """Return the options of each task's machine.

    Raises:
        TypeError, ValueError: an option is wrong, or cannot be sent to workers that are not `in_this_process`.
    """
    arguments: dict[str, Any] = dict(session_options)
    if arguments.pop("thread_id", None) or arguments.pop("checkpointer", None) is not None:
        raise ValueError("thread_id, checkpointer: each task of a batch has its own thread and store.")

    names = [name for name in _NOT_SENT if arguments.get(name) and not isinstance(arguments[name], str)]
    if names and not in_this_process:
        raise ValueError(f"{', '.join(names)}: these cannot be sent to other processes: use processes=1 without `on`.")

    for name in ("durability", "kept_permissions"):
        arguments.pop(name, None)

    return check_options(None, None, cast("MachineOptions", arguments))


def _take_settings(
    context: AgentContext, options: SessionOptions, *, in_this_process: bool
) -> tuple[AgentContext, Durability]:
    """Return the context of the tasks and the durability; the model's name and the latter leave the options."""
    overrides = context_overrides(check_session_options(options, in_this_process=in_this_process))
    context = context.model_copy(update=overrides)
    if isinstance(options.get("model"), str):  # a chat model itself is an option of each session
        context = AgentContext(**{**context.model_dump(), "model": options.pop("model")})

    return context, options.pop("durability", "sync")


def run_batch(  # noqa: D417, PLR0913 - some arguments are described with others
    tasks: Tasks,
    *,
    out: str | os.PathLike[str] | None = None,
    context: AgentContext | None = None,
    workers: int | None = None,
    processes: int = 1,
    on: Literal["ray"] | None = None,
    address: str | None = None,
    max_cost_usd: float | None = None,
    max_tokens: int | None = None,
    remove_copies: bool = False,
    standby: bool = False,
    on_result: Callable[[TaskResult], None] | None = None,
    **options: Unpack[SessionOptions],
) -> BatchResult | ToolError:
    """Run many tasks, each in its own copy of its workspace, with a result line and a patch for each.

    Called again with the same folder, it continues: tasks with a result are skipped, interrupted ones are resumed.
    With `processes`, a script needs the usual guard of `multiprocessing`: `if __name__ == "__main__":`.

    Args:
        tasks: the path of a task file (JSON lines), or the tasks themselves.
        out: the batch's folder; by default `<task file without its suffix>.batch`, and required without a file.
        context: what each task may do. Its workspace is ignored; a task's own limits override it.
        workers: how many tasks run at a time, spread over `processes` processes; 1 is this one. By default 4, and on a
            cluster the number of its CPUs.
        on: "ray" runs the tasks on a Ray cluster (extra `ray`), the one at `address` or a new one.
        max_cost_usd: what all tasks together may cost, over all starts; likewise `max_tokens`, in and out.
        remove_copies: remove each copy, and the files of its run, once its result is on the disk.
        standby: wait while another process works on this batch, and continue when it has ended.
        on_result: is called in this thread with each result that is on the disk.
        options: those of `Session` without the thread. To other processes, only a model's name can be sent.

    Returns:
        How the batch ended; a task that fails is one of its results. INVALID_ARGUMENT with all problems of the tasks,
        UNAVAILABLE if another process works on this batch.

    Raises:
        TypeError, ValueError: the arguments are wrong.
        Exception: what `on_result` raises; the active tasks are stopped and can be resumed.
    """
    if out is None and not isinstance(tasks, str | os.PathLike):
        raise TypeError("out: name the folder of the batch, because there is no task file.")

    in_this_process = processes == 1 and on is None
    context, durability = _take_settings(context or AgentContext(), options, in_this_process=in_this_process)
    batch_options = BatchOptions(context, max_cost_usd, max_tokens, durability, workers, processes, on, address)
    check_batch_options(batch_options)

    batch = prepare_batch(
        tasks, batch_options, out=out, remove_copies=remove_copies, standby=standby, session_options=options
    )
    if isinstance(batch, ToolError):
        return batch
    if isinstance(batch, tuple):
        return invalid("\n".join(map(str, batch)))

    with batch.folder:
        return batch.run(partial(_report_final, on_result))


def _report_final(on_result: Callable[[TaskResult], None] | None, result: TaskResult) -> None:
    if on_result is not None and result.is_final:
        on_result(result)
