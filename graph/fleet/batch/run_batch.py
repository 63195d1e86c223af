"""`run_batch`, and what is looked at before a batch begins: its tasks, their workspaces, its folder, who does the work.

From Python it is what `mendgraph batch` is at the terminal.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, Unpack, cast

from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.settings_file import Problem
from mendgraph.graph.fleet.batch.batch import Batch, Terms, changed_since
from mendgraph.graph.fleet.batch.batch_folder import BatchFolder, BatchResult, Tally, is_batch_folder, open_batch_folder
from mendgraph.graph.fleet.batch.local import PATIENCE_S, Executor, ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.orders import TaskResult
from mendgraph.graph.fleet.batch.tasks import (
    BatchTask,
    Numbered,
    ReadTask,
    Sources,
    absolute,
    find_sources,
    read_task_file,
)
from mendgraph.graph.fleet.batch.work import first_problem
from mendgraph.graph.machine.build import BuildArguments, SessionOptions, check_arguments
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.records import ToolError, ToolErrorCode

WORKERS: Final = 4
"""Tasks at work at a time where nobody says how many: most of a task's time is the model's."""

MOST_WORKERS: Final = 10_000
OUT_SUFFIX: Final = ".batch"
"""What the folder of a batch is called where it has no other name: `tasks.batch/` of `tasks.jsonl`."""

Tasks: TypeAlias = str | os.PathLike[str] | Iterable[BatchTask]
"""The path of a task file, or the tasks themselves."""

_NOT_SENT: Final = ("tools", "rules", "roles", "model", "store", "secrets")
_A_LIST: Final = "tasks"
"""What problems call tasks that come from no file."""


@dataclass(frozen=True)
class Crew:
    """Who does the work: threads of this process, `processes` of this machine, or a cluster (`on`, at `address`).

    `workers` are tasks at work at a time: None is `WORKERS` here, and as many as a cluster has CPUs.
    """

    workers: int | None = None
    processes: int = 1
    on: Literal["ray"] | None = None
    address: str | None = None


@dataclass(frozen=True)
class Ready:
    """A batch that can begin, in the folder that it has taken, and sentences about what its copies do not hold."""

    batch: Batch
    folder: BatchFolder
    notes: tuple[str, ...] = ()


def prepare(
    tasks: Tasks,
    terms: Terms,
    crew: Crew,
    *,
    out: str | None = None,
    work_folder: str | None = None,
    remove_copies: bool = False,
    options: SessionOptions | None = None,
) -> Ready | ToolError | tuple[Problem, ...]:
    """Take the folder of a batch and look at all that can be looked at before it begins.

    Returns:
        The batch, whose folder is the caller's to close; every problem of the task file; or why it cannot begin.
    """
    file = os.fspath(tasks) if isinstance(tasks, str | os.PathLike) else ""
    known, wrong = _known(tasks)
    path = os.path.abspath(out or os.path.splitext(file)[0] + OUT_SUFFIX)
    sources: Sources | ToolError | tuple[Problem, ...] = Sources({})
    if wrong or not is_batch_folder(path):
        sources = find_sources(known or [], {}, file or _A_LIST)
    if wrong:
        return tuple(sorted((*wrong, *([] if isinstance(sources, Sources) else sources)), key=attrgetter("line")))
    if not isinstance(sources, Sources):
        return sources
    folder = open_batch_folder(path, _noted(terms, crew))
    if isinstance(folder, ToolError):
        return folder
    if known is not None and not folder.is_new:
        left = [each for each in known if each.task.id not in folder.done]
        changed = changed_since(folder, [task for task, _ in known])
        sources = changed or find_sources(left, folder.pins, file or _A_LIST)
    executor = _executor(crew, terms, options) if isinstance(sources, Sources) else sources
    if not isinstance(sources, Sources) or not isinstance(executor, Executor):
        folder.close()
        return cast("ToolError | tuple[Problem, ...]", executor)
    batch = Batch(
        _one_by_one(cast("Iterable[BatchTask]", tasks)) if known is None else [task for task, _ in known],
        folder,
        executor,
        terms,
        pins=sources.pins,
        work_folder=os.path.abspath(work_folder) if work_folder else None,
        remove_copies=remove_copies,
        total=None if known is None else len(known),
    )
    return Ready(batch, folder, sources.notes)


def check_crew(crew: Crew, options: SessionOptions) -> None:
    """Raise for what nobody can work with.

    Raises:
        TypeError, ValueError: a number is out of range, or an option cannot be sent to where the work is done.
    """
    for name, count in (("workers", crew.workers), ("processes", crew.processes)):
        if count is not None and (not isinstance(count, int) or not 1 <= count <= MOST_WORKERS):
            raise ValueError(f"{name}: {count!r} is no number from 1 to {MOST_WORKERS:,}.")
    if crew.on not in {None, "ray"}:
        raise ValueError(f'on: {crew.on!r} is unknown: give "ray", or nothing for this machine.')
    given: dict[str, Any] = dict(options)
    if given.get("thread_id") or given.get("checkpointer") is not None:
        raise ValueError("thread_id, checkpointer: each task of a batch has a thread and a store of its own.")
    named = ", ".join(name for name in _NOT_SENT if given.get(name) and not isinstance(given[name], str))
    if named and (crew.on is not None or crew.processes > 1):
        raise ValueError(f"{named}: these cannot be sent to other processes: give processes=1, and no `on`.")
    check_arguments(BuildArguments(**{name: given[name] for name in BuildArguments._fields if name in given}))


def terms_problem(terms: Terms, crew: Crew) -> str | None:
    """What is wrong with what the tasks may do and use, or with who is to do it; None where nothing is."""
    try:
        whole = AgentContext(**{**terms.context.model_dump(), **terms.given})
        AgentContext(max_cost_usd_per_account=terms.max_cost_usd, max_tokens_per_account=terms.max_tokens)
    except ValidationError as error:
        return first_problem(error)
    if whole.mode == "ask":
        return 'mode: "ask" needs a person for each change, whom a batch does not have: use "auto" or "read-only"'
    if crew.processes > 1 and crew.on is None:
        endpoint = find_endpoint(whole.model, whole.base_url, os.environ)
        if isinstance(endpoint, Endpoint) and endpoint.embedded:
            return "processes: the embedded model would be loaded by each of them: leave this at 1, or name an endpoint"
    if whole.account and terms.is_capped:
        return (
            f"account: a limit for the whole batch is counted on an account of the batch's own, and {whole.account!r}"
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
    work_folder: str | os.PathLike[str] | None = None,
    remove_copies: bool = False,
    on_result: Callable[[TaskResult], None] | None = None,
    **options: Unpack[SessionOptions],
) -> BatchResult | ToolError:
    """Run many tasks, each on a copy of its own of its workspace, with a result line and a patch for each.

    Called again with the same folder it goes on: what has a result is left alone, what was cut off is resumed.

    Args:
        tasks: the path of a task file (JSON lines), or the tasks themselves; a generator is read as it is needed.
        out: the batch's folder; by default `<task file without its suffix>.batch`, and needed without a file.
        context: what each task may do. Its workspace counts for nothing; a task's own limits go before it.
        workers: how many tasks are at work at a time, over `processes` processes; 1 is this one. By default 4, and of
            a cluster its CPUs.
        on: "ray" lets a Ray cluster do the work (extra `ray`), the one at `address` or a new one.
        max_cost_usd: what all tasks together may cost, over all starts; likewise `max_tokens`, in and out.
        work_folder: where the copies are made, instead of `work/` in `out`.
        remove_copies: remove each copy, and what is kept of its run, once its result is on the disk.
        on_result: is called in this thread with each result, once it is on the disk.
        options: those of `Session` without the thread: model, tools, rules. Only a model's name can be sent to other
            processes.

    Returns:
        How the batch ended; a task that fails is one of its results. INVALID_ARGUMENT with all that is wrong with the
        tasks, UNAVAILABLE where another process works on this batch.

    Raises:
        TypeError, ValueError: the arguments are wrong.
        Exception: what `tasks` or `on_result` raises; the tasks at work are stopped and can go on.
    """
    if out is None and not isinstance(tasks, str | os.PathLike):
        raise TypeError("out: name the folder of the batch, as there is no task file that it could be named after.")
    crew = Crew(workers, processes, on, address)
    check_crew(crew, options)
    context = _with_model(context or AgentContext(), options.pop("model", None), options)
    durability = options.pop("durability", "sync")
    terms = Terms(context, max_cost_usd=max_cost_usd, max_tokens=max_tokens, durability=durability)
    problem = terms_problem(terms, crew)
    if problem is not None:
        raise ValueError(problem)
    place, work_place = (None if each is None else os.fspath(each) for each in (out, work_folder))
    ready = prepare(tasks, terms, crew, out=place, work_folder=work_place, remove_copies=remove_copies, options=options)
    if isinstance(ready, ToolError):
        return ready
    if isinstance(ready, tuple):
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message="\n".join(map(str, ready)))
    with ready.folder:
        return ready.batch.run(_OnResult(on_result) if on_result is not None else None)


def _with_model(context: AgentContext, model: BaseChatModel | str | None, options: SessionOptions) -> AgentContext:
    """The context, with the model where that is named; a chat model itself is an option of each session."""
    if isinstance(model, str):
        return AgentContext(**{**context.model_dump(), "model": model})
    options["model"] = model
    return context


class _OnResult:
    """Hands on the results alone."""

    def __init__(self, on_result: Callable[[TaskResult], None]) -> None:
        self._on_result = on_result

    def began(self, tally: Tally, total: int | None) -> None:
        """Nobody wants to know."""

    def task_began(self, task_id: str) -> None:
        """Nobody wants to know."""

    def task_ended(self, result: TaskResult) -> None:
        """Hand it on, if it is one."""
        if result.is_final:
            self._on_result(result)


def _executor(crew: Crew, terms: Terms, options: SessionOptions | None) -> Executor | ToolError:
    if crew.on == "ray":
        from mendgraph.graph.fleet.batch.on_ray import ray_executor

        context = AgentContext(**{**terms.context.model_dump(), **terms.given})
        return ray_executor(workers=crew.workers, address=crew.address, context=context)
    if crew.processes > 1:
        return ProcessExecutor(crew.workers or WORKERS, crew.processes, PATIENCE_S)
    return ThreadExecutor(crew.workers or WORKERS, options, PATIENCE_S)


def _known(tasks: Tasks) -> tuple[list[ReadTask] | None, list[Problem]]:
    """The tasks of a file or a list, and all that is wrong with them; None of a generator, which is read later."""
    if isinstance(tasks, str | os.PathLike):
        return read_task_file(os.fspath(tasks))
    if not isinstance(tasks, Sequence):
        return None, []
    found = Numbered(_A_LIST)
    for number, task in enumerate(_one_by_one(cast("Sequence[BatchTask]", tasks)), 1):
        found.add(task, number)
    return found.tasks, found.problems


def _one_by_one(tasks: Iterable[BatchTask]) -> Iterator[BatchTask]:
    for task in tasks:
        if not isinstance(task, BatchTask):
            kind = type(task).__name__
            raise TypeError(f"tasks: {kind} is no BatchTask: give BatchTask(id=..., prompt=..., workspace=...).")
        yield absolute(task, os.getcwd())


def _noted(terms: Terms, crew: Crew) -> dict[str, Any]:
    """The options that are written down beside the batch's name, for people."""
    context = {**terms.context.model_dump(mode="json", exclude_defaults=True), **terms.given}
    caps = {"max_cost_usd": terms.max_cost_usd, "max_tokens": terms.max_tokens}
    return {"context": context, **caps, "workers": crew.workers, "processes": crew.processes, "on": crew.on}
