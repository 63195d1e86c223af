"""Many tasks, each on a copy of its own: begun, watched, written down, and gone on with after whatever ended them.

`run_batch` is from Python what `mendgraph batch` is at the terminal.
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
from mendgraph.graph.fleet.batch import batch_folder
from mendgraph.graph.fleet.batch.local import PATIENCE_S, Executor, ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import (
    LEFT_OPEN,
    BatchTask,
    ReadTask,
    Sources,
    TaskResult,
    Worked,
    WorkOrder,
    absolute,
    find_sources,
    numbered,
    problems_of,
    read_task_file,
)
from mendgraph.graph.machine.options import MachineOptions, SessionOptions, check_options, context_overrides
from mendgraph.graph.machine.run_records import Durability
from mendgraph.graph.spending.store import account_spent
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.execute_tools.copies.workspace_copies import delete_copy, open_copy
from mendgraph.nodes.execute_tools.store.run_folder import remove_run_folder, workspace_folder_path
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.os_errors import is_disk_full, os_failure
from mendgraph.nodes.records import StopReason, ToolError, invalid

WORKERS: Final = 4
"""Tasks at work at a time where nobody says how many: most of a task's time is the model's."""

MOST_WORKERS: Final = 10_000
OUT_SUFFIX: Final = ".batch"
"""What the folder of a batch is called where it has no other name: `tasks.batch/` of `tasks.jsonl`."""

Tasks: TypeAlias = str | os.PathLike[str] | Iterable[BatchTask]
"""The path of a task file, or the tasks themselves."""

_NOT_SENT: Final = ("tools", "rules", "roles", "arg_validators", "model", "store", "secrets")
_A_LIST: Final = "tasks"
"""What problems call tasks that come from no file."""

LIMIT_REACHED: Final = LEFT_OPEN - {StopReason.CANCELLED}
"""Reasons of a task that hold for all tasks after it as well."""


@dataclass(frozen=True)
class Terms:
    """What the tasks of a batch may do, and what all of them together may use.

    `context` is what the user allows; the settings of a task's own workspace are not read.
    """

    context: AgentContext = field(default_factory=AgentContext)
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    durability: Durability = "sync"

    @property
    def is_capped(self) -> bool:
        """Whether there is a limit on what all tasks use together."""
        return self.max_cost_usd is not None or self.max_tokens is not None

    def context_of(self, batch: str) -> AgentContext:
        """The context of the tasks, with the limits of the batch's account where there are some."""
        if not self.is_capped:
            return self.context

        caps = {"max_cost_usd_per_account": self.max_cost_usd, "max_tokens_per_account": self.max_tokens}
        return AgentContext(**{**self.context.model_dump(), "account": account_of(batch), **caps})


def account_of(batch: str) -> str:
    """The name under which the whole batch's spending is counted."""
    return f"batch/{batch}"


class Batch:
    """A batch in its folder, ready to be worked on, once. The folder is the caller's to close.

    `tally` counts the results, those of earlier starts included; `notes` are sentences about what copies do not hold.
    """

    def __init__(
        self,
        tasks: Sequence[BatchTask],
        folder: batch_folder.BatchFolder,
        executor: Executor,
        terms: Terms,
        *,
        remove_copies: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._tasks = tasks
        self.folder = folder
        self._terms = terms
        self.executor = executor
        self._remove = remove_copies
        self.notes = notes
        self._context = terms.context_of(folder.batch).model_dump_json()
        self.total = len(tasks)
        self.tally = batch_folder.Tally()

        for done in (folder.done[task.id] for task in tasks if task.id in folder.done):
            self.tally.add(done)

        self._cancelled = ""
        self._limit = ""
        self._trouble: ToolError | None = None

    def cancel(self, reason: str) -> None:
        """Begin nothing any more, and let the tasks at work stop early; any thread and signal handler may ask."""
        self._cancelled = self._cancelled or reason
        self.executor.cancel(reason)

    def run(self, heard: Callable[[TaskResult], None] = lambda _: None) -> batch_folder.BatchResult:
        """Work on all tasks that have no result yet.

        In this thread `heard` gets each result that is on the disk, and those of tasks that were stopped, which have
        none yet (`is_final`).
        """
        for task_id in self.folder.done if self._remove else ():
            self._clear(task_id)  # what an earlier start has left

        with closing(self.executor.run(self._orders())) as results:
            for worked in results:
                result = self._take(worked)
                if result is not None:
                    heard(result)

        return self._result()

    # --- One task

    def _orders(self) -> Iterator[WorkOrder]:
        for task in self._tasks:
            if task.id in self.folder.done:
                continue
            if self._is_over():
                return

            try:
                self.folder.begin(task)
            except OSError as error:
                self._fail(os_failure(error, "write in", self.folder.path))
                return

            yield self._order(task)

    def _order(self, task: BatchTask) -> WorkOrder:
        commit = self.folder.pins.get((task.workspace, task.revision))
        if commit:
            pinned = task.model_copy(update={"revision": commit})
        else:
            pinned = task

        return WorkOrder(
            batch=self.folder.batch,
            task=pinned,
            context=self._context,
            folder=self.folder.copy_of(task.id),
            without=(self.folder.path,),
            task_hash=task.sha256,
            durability=self._terms.durability,
        )

    def _take(self, worked: Worked) -> TaskResult | None:
        """Write down what came of a task, unless it has no result yet; None where the disk refuses it."""
        result = worked.result
        if result.error is not None and is_disk_full(result.error):  # says nothing of the task, and meets the others
            self._fail(result.error)

        if result.is_final and self._trouble is None:
            try:
                result = self.folder.write(worked)
            except OSError as error:
                self._fail(os_failure(error, "write in", self.folder.path))
                return None

            self.tally.add(batch_folder.Done.of(result))
            if self._remove:
                self._clear(result.id)
        elif result.reason in LIMIT_REACHED and not self._limit:
            self._limit = result.message
            if self._terms.is_capped and result.reason == StopReason.ACCOUNT_LIMIT:
                self._limit = self._used_up(any_room=False)

        return result

    def _is_over(self) -> bool:
        """Whether nothing further may begin."""
        if self._terms.is_capped and not self._limit:
            self._limit = self._used_up()

        return bool(self._limit or self._cancelled or self._trouble)

    def _used_up(self, *, any_room: bool = True) -> str:
        """Why no further call may be made, "" where one may; the reason as well where the spending is unknown.

        Without `any_room` a call was refused, as it could exceed the limit together with those under way.
        """
        spent = account_spent(account_of(self.folder.batch))
        if isinstance(spent, ToolError):
            return spent.message

        cost = self._terms.max_cost_usd
        tokens = self._terms.max_tokens
        if any_room and (cost is None or spent.cost_usd < cost) and (tokens is None or spent.tokens < tokens):
            return ""

        sums = []
        if cost is not None:
            sums.append(f"{spent.cost_usd:.4f} of {cost:g} USD (--max-cost)")
        if tokens is not None:
            sums.append(f"{spent.tokens:,} of {tokens:,} tokens (--max-tokens)")

        return (
            f"The limit for the whole batch leaves no room for another call: {' and '.join(sums)} are used. Raise it."
        )

    def _fail(self, problem: ToolError) -> None:
        """End the batch, which cannot continue. Tasks at work are stopped, and can be resumed."""
        self._trouble = self._trouble or problem
        self.executor.cancel("because the batch cannot go on")

    # --- The end

    def _clear(self, task_id: str) -> None:
        """Remove a task's copy and the files of its run, unless its changes are in no patch.

        Errors are ignored: the result is written.
        """
        if self.folder.done[task_id].in_copy_alone:
            return

        folder = self.folder.copy_of(task_id)
        copy = open_copy(folder)

        with suppress(OSError):
            if copy is not None:
                remove_run_folder(f"{self.folder.batch}-{task_id}")
                shutil.rmtree(workspace_folder_path(copy.root))

        delete_copy(folder)

    def _result(self) -> batch_folder.BatchResult:
        end = batch_folder.BatchEnd.COMPLETE
        reason = ""

        if self._trouble is not None:
            end = batch_folder.BatchEnd.FAILED
            reason = self._trouble.message
        elif self.tally.done < self.total:
            end = batch_folder.BatchEnd.LIMIT
            reason = self._limit
            if self._cancelled:
                end = batch_folder.BatchEnd.CANCELLED
                reason = self._cancelled

        message = batch_folder.how_to_continue(end, reason, self.total - self.tally.done)
        return batch_folder.BatchResult(self.folder.batch, self.folder.path, end, message, self.total, self.tally)


def changed_since(folder: batch_folder.BatchFolder, tasks: Iterable[BatchTask]) -> ToolError | None:
    """The error where tasks have changed since they began: the results of the old ones are not theirs."""
    changed = [task.id for task in tasks if folder.known_hash(task.id) not in {None, task.sha256}]
    if not changed:
        return None

    what = f"{len(changed):,} tasks were changed after they were"
    if len(changed) == 1:
        what = "1 task was changed after it was"

    return invalid(
        f"{what} begun in this folder ({listed(changed)}): put the old text back, give what has changed"
        " new ids, or begin a batch of its own in another folder (--out)."
    )


# --- What is looked at before a batch begins: its tasks, their workspaces, its folder, who does the work


@dataclass(frozen=True)
class Crew:
    """Who does the work: threads of this process, `processes` of this machine, or a cluster (`on`, at `address`).

    `workers` are tasks at work at a time: None is `WORKERS` here, and as many as a cluster has CPUs.
    """

    workers: int | None = None
    processes: int = 1
    on: Literal["ray"] | None = None
    address: str | None = None


def prepare(
    tasks: Tasks,
    terms: Terms,
    crew: Crew,
    *,
    out: str | os.PathLike[str] | None = None,
    remove_copies: bool = False,
    standby: bool = False,
    options: SessionOptions | None = None,
) -> Batch | ToolError | tuple[Problem, ...]:
    """Open the folder of a batch, and make all checks that are possible before it begins.

    Returns:
        The batch, whose folder is the caller's to close; every problem of the task file; or why it cannot begin.
    """
    file = ""
    if isinstance(tasks, str | os.PathLike):
        file = os.fspath(tasks)
        task_lines = read_task_file(file)
    else:
        task_lines = _checked_tasks(tasks)

    if isinstance(task_lines, tuple):
        return task_lines

    problems = numbered(task_lines, file or _A_LIST)
    if problems:
        return problems

    path = os.path.abspath(out or os.path.splitext(file)[0] + OUT_SUFFIX)
    folder = batch_folder.open_batch_folder(path, _options_as_map(terms, crew), standby=standby)
    if isinstance(folder, ToolError):
        return folder

    sources = _pinned(task_lines, folder, file or _A_LIST)
    if not isinstance(sources, Sources):
        folder.close()
        return sources

    executor = _executor(crew, terms, path, options)
    if not isinstance(executor, Executor):
        folder.close()
        return executor

    every = [task for task, _ in task_lines]
    return Batch(every, folder, executor, terms, remove_copies=remove_copies, notes=sources.notes)


def _pinned(
    lines: list[ReadTask], folder: batch_folder.BatchFolder, file: str
) -> Sources | ToolError | tuple[Problem, ...]:
    """The commits of the copies, which are written to the folder; or the problems of tasks and workspaces."""
    changed = changed_since(folder, [task for task, _ in lines])
    if changed is not None:
        return changed

    sources = find_sources([line for line in lines if line.task.id not in folder.done], folder.pins, file)
    if isinstance(sources, Sources):
        try:
            for source, commit in sources.pins.items():
                if commit:
                    folder.pin(source, commit)
        except OSError as error:
            return os_failure(error, "write in", folder.path)

    return sources


def check_crew(crew: Crew, options: SessionOptions) -> MachineOptions:
    """The options of the machine of each task.

    Raises:
        TypeError, ValueError: a number is out of range, or an option cannot be sent to where the work is done.
    """
    for name, count in (("workers", crew.workers), ("processes", crew.processes)):
        if count is not None and (not isinstance(count, int) or not 1 <= count <= MOST_WORKERS):
            raise ValueError(f"{name}: {count!r} is no number from 1 to {MOST_WORKERS:,}.")

    if crew.on not in {None, "ray"}:
        raise ValueError(f'on: {crew.on!r} is unknown: give "ray", or nothing for this machine.')

    arguments: dict[str, Any] = dict(options)
    if arguments.get("thread_id") or arguments.get("checkpointer") is not None:
        raise ValueError("thread_id, checkpointer: each task of a batch has a thread and a store of its own.")

    named = ", ".join(name for name in _NOT_SENT if arguments.get(name) and not isinstance(arguments[name], str))
    if named and (crew.on is not None or crew.processes > 1):
        raise ValueError(f"{named}: these cannot be sent to other processes: give processes=1, and no `on`.")

    for name in ("thread_id", "checkpointer", "durability", "kept_permissions"):
        arguments.pop(name, None)

    return check_options(None, None, cast("MachineOptions", arguments))


def terms_problem(terms: Terms, crew: Crew) -> str | None:
    """What is wrong with what the tasks may do and use, or with who is to do it; None where nothing is."""
    try:
        AgentContext(max_cost_usd_per_account=terms.max_cost_usd, max_tokens_per_account=terms.max_tokens)
    except ValidationError as error:
        return problems_of(error)[0]

    context = terms.context
    if context.mode == "ask":
        return 'mode: "ask" needs a person for each change, whom a batch does not have: use "auto" or "read-only"'

    if crew.processes > 1 and crew.on is None:
        endpoint = find_endpoint(context.model, context.base_url, os.environ)
        if isinstance(endpoint, Endpoint) and endpoint.embedded:
            return "processes: the embedded model would be loaded by each of them: leave this at 1, or name an endpoint"

    if context.account and terms.is_capped:
        return (
            f"account: a limit for the whole batch is counted on an account of the batch's own, and {context.account!r}"
            " is set: omit one of the two"
        )

    return None


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
) -> batch_folder.BatchResult | ToolError:
    """Run many tasks, each on a copy of its own of its workspace, with a result line and a patch for each.

    Called again with the same folder it goes on: what has a result is left alone, what was cut off is resumed.

    Args:
        tasks: the path of a task file (JSON lines), or the tasks themselves.
        out: the batch's folder; by default `<task file without its suffix>.batch`, and needed without a file.
        context: what each task may do. Its workspace counts for nothing; a task's own limits go before it.
        workers: how many tasks are at work at a time, over `processes` processes; 1 is this one. By default 4, and of
            a cluster its CPUs.
        on: "ray" lets a Ray cluster do the work (extra `ray`), the one at `address` or a new one.
        max_cost_usd: what all tasks together may cost, over all starts; likewise `max_tokens`, in and out.
        remove_copies: remove each copy, and what is kept of its run, once its result is on the disk.
        standby: where another process works on this batch, wait, and go on when it has ended, whatever ended it.
        on_result: is called in this thread with each result, once it is on the disk.
        options: those of `Session` without the thread: model, tools, rules. Only a model's name can be sent to other
            processes.

    Returns:
        How the batch ended; a task that fails is one of its results. INVALID_ARGUMENT with all that is wrong with the
        tasks, UNAVAILABLE where another process works on this batch.

    Raises:
        TypeError, ValueError: the arguments are wrong.
        Exception: what `on_result` raises; the tasks at work are stopped and can go on.
    """
    if out is None and not isinstance(tasks, str | os.PathLike):
        raise TypeError("out: name the folder of the batch, as there is no task file that it could be named after.")
    crew = Crew(workers, processes, on, address)
    overrides = context_overrides(check_crew(crew, options))
    context = (context or AgentContext()).model_copy(update=overrides)
    if isinstance(options.get("model"), str):  # a chat model itself is an option of each session
        context = AgentContext(**{**context.model_dump(), "model": options.pop("model")})
    terms = Terms(context, max_cost_usd, max_tokens, options.pop("durability", "sync"))
    if (problem := terms_problem(terms, crew)) is not None:
        raise ValueError(problem)

    batch = prepare(tasks, terms, crew, out=out, remove_copies=remove_copies, standby=standby, options=options)
    if isinstance(batch, ToolError):
        return batch
    if isinstance(batch, tuple):
        return invalid("\n".join(map(str, batch)))
    with batch.folder:
        return batch.run(partial(_report_final, on_result))


def _report_final(on_result: Callable[[TaskResult], None] | None, result: TaskResult) -> None:
    if on_result is not None and result.is_final:
        on_result(result)


def _executor(crew: Crew, terms: Terms, folder: str, options: SessionOptions | None) -> Executor | ToolError:
    if crew.on == "ray":
        from mendgraph.graph.fleet.batch.on_ray import ray_executor

        return ray_executor(terms.context, folder, workers=crew.workers, address=crew.address)

    if crew.processes > 1:
        return ProcessExecutor(crew.workers or WORKERS, crew.processes, PATIENCE_S)
    return ThreadExecutor(crew.workers or WORKERS, options, PATIENCE_S)


def _checked_tasks(tasks: Iterable[BatchTask]) -> list[ReadTask]:
    """The tasks with their numbers. Raises TypeError: one is no BatchTask."""
    lines = []
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, BatchTask):
            kind = type(task).__name__
            raise TypeError(f"tasks: {kind} is no BatchTask: give BatchTask(id=..., prompt=..., workspace=...).")

        lines.append(ReadTask(absolute(task, os.getcwd()), number))

    return lines


def _options_as_map(terms: Terms, crew: Crew) -> dict[str, Any]:
    """The options that the folder stores beside the batch's name, for people."""
    context = terms.context.model_dump(mode="json", exclude_defaults=True)
    caps = {"max_cost_usd": terms.max_cost_usd, "max_tokens": terms.max_tokens}
    return {"context": context, **caps, "workers": crew.workers, "processes": crew.processes, "on": crew.on}
