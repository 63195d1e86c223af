"""Run real tasks with the embedded model, in mendgraph and in its rivals, and print a table.

All harnesses have the same endpoint, tasks and limits: 12 model calls and 150 s a request, 800 tokens a reply (600 s
and 2048 tokens for exercism), and temperature 0 for the rivals. Tasks run one at a time. Each result is on the disk
before the next run begins, so the same command resumes an evaluation after Ctrl-C.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.real_model.contestants import Contestant, our_contestants, rival_contestant, run_task, task_digest
from benchmarks.real_model.endpoint import EmbeddedServer, MeasuredEndpoint
from benchmarks.real_model.harness_mendgraph import NAME, context_of
from benchmarks.real_model.measured_run import Limits
from benchmarks.real_model.options import FOLDER, EvaluationOptions, parse_arguments, select_tasks
from benchmarks.real_model.record import RunRecord
from benchmarks.real_model.reply_cache import ReplyCache
from benchmarks.real_model.results import Results
from benchmarks.real_model.rivals.environments import prepare
from benchmarks.real_model.score import ablation_table, markdown, scores
from benchmarks.real_model.task import Task
from benchmarks.real_model.tasks import ALL_TASKS, ORDERS, public, tasks_digest
from mendgraph.nodes.call_model.local_model import why_unavailable
from mendgraph.nodes.call_model.weights import embedded_weights

INTERRUPTED = 130
TASKS: dict[str, Callable[[], Sequence[Task]]] = {
    "own": lambda: ALL_TASKS,
    "orders": lambda: ORDERS,
    "exercism": public.exercism,
    "humanevalfix": public.humanevalfix,
}
LIMITS = {"exercism": Limits(seconds=600.0, output_tokens=2048)}
"""The limits of one request, for sets with longer solutions than our own tasks."""
REPLIES = FOLDER / ".reply_cache"


def main(arguments: Sequence[str]) -> int:
    """Run the evaluation and print the tables. Return 0, 1 if a contestant is missing, or 130 after Ctrl-C."""
    options = parse_arguments(arguments, __doc__ or "")
    console = Console()

    contestants: list[Contestant] = []
    try:
        tasks = select_tasks(TASKS[options.tasks_of](), options)
        if options.ours:
            contestants = our_contestants(options.label, options.options, ablate=options.ablate)
        for contestant in contestants:
            context_of(".", contestant.options, _limits(options))
    except (OSError, ValueError, ValidationError) as error:
        console.print(str(error), markup=False)
        return 1
    if unavailable := why_unavailable():
        console.print(unavailable.message, markup=False)
        return 1

    rivals = [name for name in options.rivals if _prepare_rival(name, console)]
    contestants += [rival_contestant(name) for name in rivals]
    results = Results(options.out)
    if options.fresh:
        results.remove(
            {(contestant.harness, contestant.label, task.name) for contestant in contestants for task in tasks}
        )

    code = 0 if len(rivals) == len(options.rivals) else 1
    try:
        _run_all(contestants, tasks, results, options, console)
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes the evaluation.")
        code = INTERRUPTED
    _report(tasks, results, options, console)
    return code


def _limits(options: EvaluationOptions) -> Limits:
    return LIMITS.get(options.tasks_of, Limits())


def _prepare_rival(name: str, console: Console) -> bool:
    """Create the environment of a rival, and return whether it exists."""
    console.print(f"Preparing {name} …")
    problem = prepare(name)
    if problem:
        console.print(f"{name} is excluded: {problem}", markup=False)
    return problem is None


def _run_all(
    contestants: Sequence[Contestant],
    tasks: Sequence[Task],
    results: Results,
    options: EvaluationOptions,
    console: Console,
) -> None:
    """Run the tasks without a result, one at a time, with a new server for each contestant."""
    weights = embedded_weights()
    server = EmbeddedServer()
    cache = ReplyCache(REPLIES) if options.cache else None
    completed = {record.place: record.options for record in results.records(_digests(tasks))}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[solved]}"))
    try:
        with (
            MeasuredEndpoint(server, weights.model, weights.sha256, cache) as endpoint,
            Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress,
        ):
            bar = progress.add_task("", total=len(contestants) * len(tasks), solved="")
            solved = 0
            for contestant in contestants:
                server.stop()
                for task in tasks:
                    progress.update(bar, description=f"{contestant.harness} {contestant.label} {task.name}")
                    if completed.get((contestant.harness, contestant.label, task.name)) != contestant.options:
                        record = run_task(contestant, task, endpoint, _limits(options))
                        results.add(record)
                        solved += record.problem is None
                        progress.console.print(_summary_line(record), markup=False, soft_wrap=True)
                    progress.update(bar, advance=1, solved=f"{solved} solved")
    finally:
        server.stop()


def _summary_line(record: RunRecord) -> str:
    """Return a result in one line."""
    result = "solved"
    if record.problem is not None:
        result = f"not solved ({record.end.ended}): {record.problem}"

    tokens = sum(call.uncached_tokens + call.completion_tokens for call in record.calls)
    figures = f"{len(record.calls)} calls, {tokens} new tokens, {record.end.seconds:.1f} s"
    return f"{record.harness} {record.label} {record.task}: {result} [{figures}]"


def _digests(tasks: Sequence[Task]) -> dict[str, str]:
    return {task.name: task_digest(task) for task in tasks}


def _report(tasks: Sequence[Task], results: Results, options: EvaluationOptions, console: Console) -> None:
    """Print the tables of all results for these tasks, and write the summary."""
    rows = scores(results.records(_digests(tasks)))
    print_plain = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    print_plain(f"\n{markdown(rows)}")
    if options.ablate:
        print_plain(f"\n{ablation_table(rows, NAME, options.label)}")

    summary = {
        "model": embedded_weights().model,
        "weights_sha256": embedded_weights().sha256,
        "tasks_digest": tasks_digest(tasks),
        "tasks": [task.name for task in tasks],
        "limits": _limits(options).model_dump(),
        "scores": [row.model_dump() for row in rows],
    }
    print_plain(f"\n{results.write_summary(summary)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
