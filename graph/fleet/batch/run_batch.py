"""`run_batch`: from Python, what `mendgraph batch` is at the terminal."""

import os
from collections.abc import Callable
from typing import Literal, Unpack

from langchain_core.language_models import BaseChatModel

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.batch import Terms
from mendgraph.graph.fleet.batch.batch_result import BatchResult, Tally
from mendgraph.graph.fleet.batch.orders import TaskResult
from mendgraph.graph.fleet.batch.preparing import Crew, Tasks, check_crew, prepare, terms_problem
from mendgraph.graph.machine.build_arguments import SessionOptions
from mendgraph.nodes.records import ToolError, ToolErrorCode


def run_batch(  # noqa: D417, PLR0913 - some arguments are told with others
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
