"""What is looked at before a batch begins: its tasks, what they work on, its folder, and who does the work."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, cast

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.settings_file import Problem
from mendgraph.graph.fleet.batch.batch import Batch, Terms, changed_since
from mendgraph.graph.fleet.batch.batch_folder import BatchFolder, is_batch_folder, open_batch_folder
from mendgraph.graph.fleet.batch.local import PATIENCE_S, ThreadExecutor
from mendgraph.graph.fleet.batch.orders import Executor
from mendgraph.graph.fleet.batch.processes import ProcessExecutor
from mendgraph.graph.fleet.batch.task_file import Sources, absolute, find_sources, read_task_file
from mendgraph.graph.fleet.batch.tasks import BatchTask, ReadTask, doubled
from mendgraph.graph.machine.build_arguments import BuildArguments, SessionOptions, check_arguments
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.records import ToolError

WORKERS: Final = 4
"""Tasks at work at a time where nobody says how many: most of a task's time is the model's."""

MOST_WORKERS: Final = 10_000
OUT_SUFFIX: Final = ".batch"
"""What the folder of a batch is called where it has no other name: `tasks.batch/` of `tasks.jsonl`."""

Tasks: TypeAlias = str | os.PathLike[str] | Iterable[BatchTask]
"""The path of a task file, or the tasks themselves."""

_NOT_SENT: Final = ("tools", "rules", "roles", "model", "store", "secrets")
_A_LIST: Final = "tasks"
"""What problems of tasks are told of that come from no file."""


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
    if wrong:
        found = find_sources(known or [], {}, file or _A_LIST)
        return tuple(sorted((*wrong, *(found if isinstance(found, tuple) else ())), key=attrgetter("line")))
    path = os.path.abspath(out or os.path.splitext(file)[0] + OUT_SUFFIX)
    sources = find_sources(known or [], {}, file or _A_LIST) if not is_batch_folder(path) else Sources({})
    if not isinstance(sources, Sources):
        return sources
    folder = open_batch_folder(path, _noted(terms, crew))
    if isinstance(folder, ToolError):
        return folder
    looked = sources if folder.is_new or known is None else _looked_at(known, folder, file or _A_LIST)
    if not isinstance(looked, Sources):
        folder.close()
        return looked
    executor = _executor(crew, terms, options)
    if isinstance(executor, ToolError):
        folder.close()
        return executor
    batch = Batch(
        _one_by_one(cast("Iterable[BatchTask]", tasks)) if known is None else [task for task, _ in known],
        folder,
        executor,
        terms,
        pins=looked.pins,
        work_folder=os.path.abspath(work_folder) if work_folder else None,
        remove_copies=remove_copies,
        total=None if known is None else len(known),
    )
    return Ready(batch, folder, looked.notes)


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
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
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
    found: list[ReadTask] = []
    problems: list[Problem] = []
    seen: dict[str, tuple[str, int]] = {}
    for number, task in enumerate(_one_by_one(cast("Sequence[BatchTask]", tasks)), 1):
        before = seen.setdefault(task.id.lower(), (task.id, number))
        if before[1] == number:
            found.append(ReadTask(task, number))
        else:
            problems.append(Problem(_A_LIST, doubled(task.id, before[0]), number, field="id"))
    return found, problems


def _one_by_one(tasks: Iterable[BatchTask]) -> Iterator[BatchTask]:
    for task in tasks:
        if not isinstance(task, BatchTask):
            kind = type(task).__name__
            raise TypeError(f"tasks: {kind} is no BatchTask: give BatchTask(id=..., prompt=..., workspace=...).")
        yield absolute(task, os.getcwd())


def _looked_at(known: list[ReadTask], folder: BatchFolder, file: str) -> Sources | ToolError | tuple[Problem, ...]:
    changed = changed_since(folder, [task for task, _ in known])
    if changed is not None:
        return changed
    return find_sources([each for each in known if each.task.id not in folder.done], folder.pins, file)


def _noted(terms: Terms, crew: Crew) -> dict[str, Any]:
    """The options that are written down beside the batch's name, for people."""
    context = {**terms.context.model_dump(mode="json", exclude_defaults=True), **terms.given}
    caps = {"max_cost_usd": terms.max_cost_usd, "max_tokens": terms.max_tokens}
    return {"context": context, **caps, "workers": crew.workers, "processes": crew.processes, "on": crew.on}
