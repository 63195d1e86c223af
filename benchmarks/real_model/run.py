"""Run real tasks with the embedded model, in mendgraph and in its rivals, and print one table.

All harnesses have the same endpoint, tasks and limits: 12 model calls and 150 s a request, 800 tokens a reply, for
exercism 600 s and 2048 tokens, and for the rivals temperature 0. Tasks run one at a time. Each result is on the disk
before the next run begins, so that what was ended with Ctrl-C goes on when it is started again.
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
from benchmarks.real_model.options import HERE, Choice, chosen_tasks, read_choice
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
"""Of one request, where a set has others than our own tasks: a solution may be long."""
REPLIES = HERE / ".reply_cache"


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says. 0: all ran; 1: something could not be run; 130: ended with Ctrl-C."""
    choice, console = read_choice(arguments, __doc__ or ""), Console()
    limits = _limits(choice)
    try:
        tasks = chosen_tasks(TASKS[choice.tasks_of](), choice)
        everyone = our_contestants(choice.label, choice.options, ablate=choice.ablate) if choice.ours else []
        for contestant in everyone:
            context_of(".", contestant.options, limits)
    except (OSError, ValueError, ValidationError) as error:
        console.print(str(error), markup=False)
        return 1
    if unavailable := why_unavailable():
        console.print(unavailable.message, markup=False)
        return 1
    rivals = [name for name in choice.rivals if _is_ready(name, console)]
    everyone += [rival_contestant(name) for name in rivals]
    results = Results(choice.out)
    if choice.fresh:
        results.forget({(each.harness, each.label, task.name) for each in everyone for task in tasks})
    code = 0 if len(rivals) == len(choice.rivals) else 1
    try:
        _run_all(everyone, tasks, results, choice, console)
    except KeyboardInterrupt:
        console.print("Ended; the same command goes on from here.")
        code = INTERRUPTED
    _report(tasks, results, choice, console)
    return code


def _limits(choice: Choice) -> Limits:
    return LIMITS.get(choice.tasks_of, Limits())


def _is_ready(name: str, console: Console) -> bool:
    console.print(f"Preparing {name} …")
    problem = prepare(name)
    if problem:
        console.print(f"{name} is left out: {problem}", markup=False)
    return problem is None


def _run_all(
    everyone: Sequence[Contestant], tasks: Sequence[Task], results: Results, choice: Choice, console: Console
) -> None:
    """Run what has no result yet, one task at a time, each contestant with a server of its own."""
    weights, server = embedded_weights(), EmbeddedServer()
    cache = ReplyCache(REPLIES) if choice.cache else None
    done = {record.place: record.options for record in results.records(_digests(tasks))}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[solved]}"))
    try:
        with (
            MeasuredEndpoint(server, weights.model, weights.sha256, cache) as endpoint,
            Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress,
        ):
            bar = progress.add_task("", total=len(everyone) * len(tasks), solved="")
            solved = 0
            for contestant in everyone:
                server.stop()
                for task in tasks:
                    progress.update(bar, description=f"{contestant.harness} {contestant.label} {task.name}")
                    if done.get((contestant.harness, contestant.label, task.name)) != contestant.options:
                        record = run_task(contestant, task, endpoint, _limits(choice))
                        results.add(record)
                        solved += record.problem is None
                        progress.console.print(_told(record), markup=False, soft_wrap=True)
                    progress.update(bar, advance=1, solved=f"{solved} solved")
    finally:
        server.stop()


def _told(record: RunRecord) -> str:
    """A result in one line."""
    tokens = sum(call.uncached_tokens + call.completion_tokens for call in record.calls)
    words = "solved" if record.problem is None else f"not solved ({record.end.ended}): {record.problem}"
    figures = f"{len(record.calls)} calls, {tokens} new tokens, {record.end.seconds:.1f} s"
    return f"{record.harness} {record.label} {record.task}: {words} [{figures}]"


def _digests(tasks: Sequence[Task]) -> dict[str, str]:
    return {task.name: task_digest(task) for task in tasks}


def _report(tasks: Sequence[Task], results: Results, choice: Choice, console: Console) -> None:
    """Print the table of all results that there are for these tasks, and write the summary."""
    rows = scores(results.records(_digests(tasks)))
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"\n{markdown(rows)}")
    if choice.ablate:
        say(f"\n{ablation_table(rows, NAME, choice.label)}")
    summary = {
        "model": embedded_weights().model,
        "weights_sha256": embedded_weights().sha256,
        "tasks_digest": tasks_digest(tasks),
        "tasks": [task.name for task in tasks],
        "limits": _limits(choice).model_dump(),
        "scores": [row.model_dump() for row in rows],
    }
    say(f"\n{results.summarize(summary)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
