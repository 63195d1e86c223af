"""Many tasks, each on a copy of its own: begun, watched, written down, and gone on with after whatever ended them."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.batch_folder import (
    WORK,
    BatchEnd,
    BatchFolder,
    BatchResult,
    Tally,
    copies_in,
    forget_run,
    way_to_go_on,
)
from mendgraph.graph.fleet.batch.local import Executor
from mendgraph.graph.fleet.batch.orders import LEFT_OPEN, TaskResult, Worked, WorkOrder
from mendgraph.graph.fleet.batch.tasks import BatchTask, Source, doubled
from mendgraph.graph.machine.run_records import Durability
from mendgraph.graph.spending.store import account_spent
from mendgraph.nodes.execute_tools.copies.workspace_copies import delete_copy, open_copy, pin_source
from mendgraph.nodes.execute_tools.files.failures import is_disk_full, os_failure
from mendgraph.nodes.records import JsonMap, StopReason, ToolError, ToolErrorCode

LIMIT_REACHED: Final = LEFT_OPEN - {StopReason.CANCELLED}
"""Reasons of a task that hold for all tasks after it as well."""

_MOST_NAMED: Final = 10


@dataclass(frozen=True)
class Terms:
    """What the tasks of a batch may do, and what all of them together may use.

    `context` is what the user allows. `given` are fields that neither it nor the settings of a workspace change; those
    settings are read where `own_settings` says so, and `trusted` gives the hash of those that may also widen, by the
    task's workspace.
    """

    context: AgentContext = field(default_factory=AgentContext)
    given: Mapping[str, Any] = field(default_factory=dict)
    own_settings: bool = False
    trusted: Callable[[str], str] = lambda _: ""
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    durability: Durability = "sync"

    @property
    def is_capped(self) -> bool:
        """Whether there is a limit on what all tasks use together."""
        return self.max_cost_usd is not None or self.max_tokens is not None

    def given_to(self, account: str) -> JsonMap:
        """The fields that the caller sets, with the limits of the batch's account where there are some."""
        if not self.is_capped:
            return dict(self.given)
        caps = {"max_cost_usd_per_account": self.max_cost_usd, "max_tokens_per_account": self.max_tokens}
        return {**self.given, "account": account, **caps}


class Watcher(Protocol):
    """Hears how a batch goes, in the thread that runs it."""

    def began(self, tally: Tally, total: int | None) -> None:
        """The batch begins; `tally` counts what earlier starts have done, and is kept up to date."""

    def task_began(self, task_id: str) -> None:
        """A task is handed to somebody who works on it."""

    def task_ended(self, result: TaskResult) -> None:
        """A task has its result, which is on the disk; or it was stopped, and has none yet (`is_final`)."""


class Batch:
    """A batch in its folder, ready to be worked on, once."""

    def __init__(
        self,
        tasks: Iterable[BatchTask],
        folder: BatchFolder,
        executor: Executor,
        terms: Terms,
        *,
        pins: Mapping[Source, str],
        work_folder: str | None = None,
        remove_copies: bool = False,
        total: int | None = None,
    ) -> None:
        """Nothing is begun. `pins` are the commits of copies, `total` is how many tasks there are, if that is known."""
        self._tasks, self._folder, self._terms = tasks, folder, terms
        self.executor = executor
        self._pins, self._remove = dict(pins), remove_copies
        self._place = os.path.join(work_folder, folder.batch) if work_folder else os.path.join(folder.path, WORK)
        self._without = (folder.path, self._place)
        self._total, self._read, self._all_read = total, 0, False
        self._ids: dict[str, str] = {}
        self._tally = Tally()
        self._watcher: Watcher | None = None
        self._cancelled, self._limit = "", ""
        self._trouble: ToolError | None = None

    def cancel(self, reason: str) -> None:
        """Begin nothing any more, and let the tasks at work stop early; any thread and signal handler may ask."""
        self._cancelled = self._cancelled or reason
        self.executor.cancel(reason)

    def run(self, watcher: Watcher | None = None) -> BatchResult:
        """Work on all tasks that have no result yet."""
        self._watcher = watcher
        if self._total is not None:
            for task in self._tasks:
                self._count_earlier(task)
        if watcher is not None:
            watcher.began(self._tally, self._total)
        if self._remove:
            for name in copies_in(self._place):  # what an earlier start had no time to remove
                self._clear(name, f"{self._folder.batch}-{name}")
        with closing(self.executor.run(self._orders())) as results:
            for worked in results:
                self._take(worked)
        return self._result()

    # --- One task

    def _orders(self) -> Iterator[WorkOrder]:
        for task in self._tasks:
            self._read += 1
            problem = self._problem(task)
            if problem is not None:
                self._fail(problem)
                return
            if task.id in self._folder.done:
                if self._total is None:
                    self._count_earlier(task)
                continue
            if self._is_over():
                return
            try:
                order = self._order(task)
                self._folder.begin(task)
            except OSError as error:
                self._fail(os_failure(error, "write in", self._folder.path))
                return
            if self._watcher is not None:
                self._watcher.task_began(task.id)
            yield order
        self._all_read = True

    def _problem(self, task: BatchTask) -> ToolError | None:
        """Why the task cannot be one of this batch. Tasks of a file were looked at before."""
        before = self._ids.setdefault(task.id.lower(), task.id)
        if self._total is None and len(self._ids) < self._read:
            self._read -= 1
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"{doubled(task.id, before)}.")
        return changed_since(self._folder, [task])

    def _order(self, task: BatchTask) -> WorkOrder:
        source = (task.workspace, task.revision)
        commit = self._folder.pins.get(source)
        if commit is None:
            commit = self._pins[source] if source in self._pins else _commit_of(source)
            if commit:
                self._folder.pin(*source, commit)
        pinned = task.model_copy(update={"revision": commit}) if commit else task
        order = WorkOrder(
            batch=self._folder.batch,
            task=pinned,
            context=self._terms.context.model_dump_json(),
            folder=os.path.join(self._place, task.id),
            own_settings=self._terms.own_settings,
            trusted=self._terms.trusted(task.workspace) if self._terms.own_settings else "",
            without=self._without,
            known_as=task.sha256,
            durability=self._terms.durability,
        )
        return order._replace(given=json.dumps(self._terms.given_to(order.account)))

    def _take(self, worked: Worked) -> None:
        """Write down what came of a task, unless it has no result yet."""
        result = worked.result
        if result.error is not None and is_disk_full(result.error):  # says nothing of the task, and meets the others
            self._fail(result.error)
        if result.is_final and self._trouble is None:
            try:
                result = self._folder.write(worked)
            except OSError as error:
                self._fail(os_failure(error, "write in", self._folder.path))
                return
            self._tally.add(result.kind, result.usage)
            if self._remove:
                self._clear(result.id, result.run_id)
        elif result.reason in LIMIT_REACHED:
            own = self._terms.is_capped and result.reason == StopReason.ACCOUNT_LIMIT
            self._limit = self._limit or (self._used_up(any_room=False) if own else result.message)
        if self._watcher is not None:
            self._watcher.task_ended(result)

    def _is_over(self) -> bool:
        """Whether nothing further may begin."""
        if self._terms.is_capped and not self._limit:
            self._limit = self._used_up()
        return bool(self._limit or self._cancelled or self._trouble)

    def _used_up(self, *, any_room: bool = True) -> str:
        """Why no further call may be made, "" where one may: what cannot be counted is not spent.

        Without `any_room` a call was refused, as it could exceed the limit together with the calls under way.
        """
        spent = account_spent(f"batch/{self._folder.batch}")
        if isinstance(spent, ToolError):
            return spent.message
        cost, tokens = self._terms.max_cost_usd, self._terms.max_tokens
        if any_room and (cost is None or spent.cost_usd < cost) and (tokens is None or spent.tokens < tokens):
            return ""
        used = [f"{spent.cost_usd:.4f} of {cost:g} USD (--max-cost)"] if cost is not None else []
        used += [f"{spent.tokens:,} of {tokens:,} tokens (--max-tokens)"] if tokens is not None else []
        return (
            f"The limit for the whole batch leaves no room for another call: {' and '.join(used)} are used. Raise it."
        )

    def _fail(self, problem: ToolError) -> None:
        """End the batch: it cannot go on. What is at work is stopped, and can be taken up."""
        self._trouble = self._trouble or problem
        self.executor.cancel("because the batch cannot go on")

    # --- The whole

    def _count_earlier(self, task: BatchTask) -> None:
        done = self._folder.done.get(task.id)
        if done is not None:
            self._tally.add(done.kind, done.usage)

    def _clear(self, task_id: str, run_id: str) -> None:
        """Remove a task's copy and what is kept of its run, unless no patch has what was changed in it.

        What cannot be removed is left: its result is there.
        """
        done = self._folder.done.get(task_id)
        if done is None or done.in_copy_alone:
            return
        folder = os.path.join(self._place, task_id)
        copy = open_copy(folder)
        with suppress(OSError):
            if copy is not None:
                forget_run(copy.root, run_id)
        delete_copy(folder)

    def _result(self) -> BatchResult:
        total = self._read if self._total is None and self._all_read else self._total
        end, reason = BatchEnd.COMPLETE, ""
        if self._trouble is not None:
            end, reason = BatchEnd.FAILED, self._trouble.message
        elif total is None or self._tally.done < total:
            limit = (BatchEnd.LIMIT, self._limit)
            end, reason = (BatchEnd.CANCELLED, self._cancelled) if self._cancelled else limit
        left = None if total is None else total - self._tally.done
        message = way_to_go_on(end, reason, left)
        return BatchResult(self._folder.batch, self._folder.path, end, message, total, self._tally)


def changed_since(folder: BatchFolder, tasks: Iterable[BatchTask]) -> ToolError | None:
    """What is wrong where tasks have changed since they were begun: what came of the old ones is none of theirs."""
    changed = [task.id for task in tasks if folder.known_hash(task.id) not in {None, task.sha256}]
    if not changed:
        return None
    more = f" and {len(changed) - _MOST_NAMED:,} more" if changed[_MOST_NAMED:] else ""
    named = ", ".join(changed[:_MOST_NAMED]) + more
    one = len(changed) == 1
    what = "1 task was changed after it was" if one else f"{len(changed):,} tasks were changed after they were"
    message = (
        f"{what} begun in this folder ({named}): put the old text back, give what has changed"
        " new ids, or begin a batch of its own in another folder (--out)."
    )
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def _commit_of(source: Source) -> str:
    """The commit to pin, "" where there is none: what is wrong becomes the task's result."""
    pinned = pin_source(*source)
    return "" if isinstance(pinned, ToolError) else pinned.revision
