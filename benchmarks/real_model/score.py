"""What many runs come to: a row of figures for each harness and label, as JSON and as a Markdown table. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from benchmarks.real_model.record import RunRecord
from mendgraph.nodes.records import Record

HALVES = ("dev", "held_out")


class Tally(Record):
    """How many of how many."""

    solved: int
    total: int

    def __str__(self) -> str:
        """As it stands in a table."""
        return f"{self.solved}/{self.total}"


class Score(Record):
    """One harness with one label over its tasks. What has no other unit is a mean for one task.

    `new_tokens` are uncached prompt tokens and completion tokens together. `false_claims` counts the runs that said
    that they were done and had changed nothing of what they were asked to change, `wrong_claims` all that said so of a
    task that is not solved. `first` are the tasks that were solved without a second try. `failures` says how the runs
    ended whose task is not solved. `uncached_per_solved` is None where nothing is solved.
    """

    harness: str
    label: str
    solved: Tally
    by_half: dict[str, Tally]
    by_kind: dict[str, Tally]
    model_calls: float
    prompt_tokens: float
    uncached_tokens: float
    completion_tokens: float
    new_tokens: float
    seconds: float
    healed: int
    rescued: int
    native_calls: int
    false_claims: int
    wrong_claims: int
    first: Tally
    failures: dict[str, int]
    uncached_per_solved: float | None


def scores(records: Iterable[RunRecord]) -> list[Score]:
    """A score for each harness and label, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.harness, record.label), []).append(record)
    return [_score(harness, label, group) for (harness, label), group in groups.items()]


def _score(harness: str, label: str, runs: list[RunRecord]) -> Score:
    calls = [call for run in runs for call in run.calls]
    solved = _tally(runs)
    uncached = sum(call.uncached_tokens for call in calls)
    completion = sum(call.completion_tokens for call in calls)
    failed = [run for run in runs if run.problem is not None]

    def mean(total: float) -> float:
        return round(total / len(runs), 2)

    return Score(
        harness=harness,
        label=label,
        solved=solved,
        by_half=_tallies(runs, lambda run: run.half),
        by_kind=_tallies(runs, lambda run: run.kind),
        model_calls=mean(len(calls)),
        prompt_tokens=mean(sum(call.prompt_tokens for call in calls)),
        uncached_tokens=mean(uncached),
        completion_tokens=mean(completion),
        new_tokens=mean(uncached + completion),
        seconds=mean(sum(run.end.seconds for run in runs)),
        healed=sum(run.end.healed for run in runs),
        rescued=sum(run.end.rescued for run in runs),
        native_calls=sum(call.native_calls for call in calls),
        false_claims=sum(run.false_claim for run in runs),
        wrong_claims=sum(run.wrong_claim for run in runs),
        first=Tally(solved=sum(run.problem is None and run.tries == 1 for run in runs), total=len(runs)),
        failures=dict(Counter(how_it_ended(run) for run in failed).most_common()),
        uncached_per_solved=round(uncached / solved.solved, 1) if solved.solved else None,
    )


def how_it_ended(run: RunRecord) -> str:
    """The end of a run in one word or two: its kind, and the reason where there is one."""
    reason = run.end.reason if run.end.ended != "limit_time" else ""
    return f"{run.end.ended}/{reason}" if reason else run.end.ended


def markdown(rows: Sequence[Score]) -> str:
    """The table of all scores, and beside it what failed how and how each kind of task went."""
    kinds = sorted({kind for row in rows for kind in row.by_kind})
    return "\n\n".join(
        (
            table([column for column, _ in COLUMNS], [[show(row) for _, show in COLUMNS] for row in rows]),
            table(
                ["harness", "label", *kinds],
                [[row.harness, row.label, *(str(row.by_kind.get(kind, "-")) for kind in kinds)] for row in rows],
            ),
            table(
                ["harness", "label", "how the failures ended"],
                [[row.harness, row.label, _counts(row.failures)] for row in rows],
            ),
        )
    )


def ablation_table(rows: Sequence[Score], harness: str, label: str) -> str:
    """What each other label of `harness` solves, against its score under `label`; "" where that is missing."""
    of_harness = {row.label: row for row in rows if row.harness == harness}
    if label not in of_harness:
        return ""
    whole = of_harness.pop(label)
    heads = ["switched off", "solved", "change", *HALVES, "new tokens", "calls", "false claims"]
    lines = [
        [
            row.label,
            str(row.solved),
            f"{row.solved.solved - whole.solved.solved:+d}",
            *(_change(row, whole, half) for half in HALVES),
            f"{row.new_tokens:.0f}",
            f"{row.model_calls:.1f}",
            str(row.false_claims),
        ]
        for row in of_harness.values()
    ]
    return table(heads, [[f"nothing ({label})", *_cells(whole)], *lines])


COLUMNS: tuple[tuple[str, Callable[[Score], str]], ...] = (
    ("harness", lambda row: row.harness),
    ("label", lambda row: row.label),
    ("solved", lambda row: str(row.solved)),
    ("at first", lambda row: str(row.first)),
    ("dev", lambda row: str(row.by_half.get("dev", "-"))),
    ("held out", lambda row: str(row.by_half.get("held_out", "-"))),
    ("calls", lambda row: f"{row.model_calls:.1f}"),
    ("prompt tok", lambda row: f"{row.prompt_tokens:.0f}"),
    ("uncached tok", lambda row: f"{row.uncached_tokens:.0f}"),
    ("completion tok", lambda row: f"{row.completion_tokens:.0f}"),
    ("uncached + completion", lambda row: f"{row.new_tokens:.0f}"),
    ("uncached per solved", lambda row: "-" if row.uncached_per_solved is None else f"{row.uncached_per_solved:.0f}"),
    ("seconds", lambda row: f"{row.seconds:.1f}"),
    ("healed", lambda row: str(row.healed)),
    ("rescued", lambda row: str(row.rescued)),
    ("done, and wrong", lambda row: str(row.wrong_claims)),
    ("done, nothing changed", lambda row: str(row.false_claims)),
)
"""The columns of the table: its head, and what stands below it."""


def _cells(whole: Score) -> list[str]:
    halves = [str(whole.by_half.get(half, "-")) for half in HALVES]
    figures = [f"{whole.new_tokens:.0f}", f"{whole.model_calls:.1f}", str(whole.false_claims)]
    return [str(whole.solved), "", *halves, *figures]


def _change(row: Score, whole: Score, half: str) -> str:
    now, before = row.by_half.get(half), whole.by_half.get(half)
    return f"{now.solved - before.solved:+d}" if now and before else "-"


def _tally(runs: Sequence[RunRecord]) -> Tally:
    return Tally(solved=sum(run.problem is None for run in runs), total=len(runs))


def _tallies(runs: Sequence[RunRecord], key: Callable[[RunRecord], str]) -> dict[str, Tally]:
    names = sorted({key(run) for run in runs})
    return {name: _tally([run for run in runs if key(run) == name]) for name in names}


def _counts(failures: dict[str, int]) -> str:
    return ", ".join(f"{how} {count}" for how, count in failures.items()) or "none"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
