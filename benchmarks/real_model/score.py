"""The scores of an evaluation: a row of figures for each harness and label, as JSON and as Markdown tables. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from benchmarks.real_model.record import RunRecord
from mendgraph.nodes.records import Record

HALVES = ("dev", "held_out")


class Tally(Record):
    """A number of solved tasks, and their total."""

    solved: int
    total: int

    def __str__(self) -> str:
        """Return the cell of a table."""
        return f"{self.solved}/{self.total}"


class Score(Record):
    """The score of one harness with one label. Calls, tokens and seconds are means per task.

    `new_tokens` are uncached prompt tokens and completion tokens. `wrong_claims` counts the runs that claim success for
    an unsolved task, and `false_claims` those that claim it without a necessary change. `first` are the tasks solved
    without a second try. `failures` counts the ends of the runs with unsolved tasks. `uncached_per_solved` is None if
    no task is solved.
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
    """Return a score for each harness and label, in the order of their first record."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.harness, record.label), []).append(record)
    return [_score(harness, label, group) for (harness, label), group in groups.items()]


def _score(harness: str, label: str, runs: list[RunRecord]) -> Score:
    calls = [call for run in runs for call in run.calls]
    solved = _tally(runs)
    uncached = sum(call.uncached_tokens for call in calls)
    completion = sum(call.completion_tokens for call in calls)
    ends = Counter(describe_end(run) for run in runs if run.problem is not None)

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
        failures=dict(ends.most_common()),
        uncached_per_solved=round(uncached / solved.solved, 1) if solved.solved else None,
    )


def describe_end(run: RunRecord) -> str:
    """Return the end of a run, with its reason if there is one."""
    if not run.end.reason or run.end.ended == "limit_time":
        return run.end.ended
    return f"{run.end.ended}/{run.end.reason}"


def markdown(rows: Sequence[Score]) -> str:
    """Return the tables of all scores, of the kinds of tasks, and of the failures."""
    score_heads = [head for head, _ in COLUMNS]
    score_lines = [[cell(row) for _, cell in COLUMNS] for row in rows]

    kinds = sorted({kind for row in rows for kind in row.by_kind})
    kind_lines = []
    for row in rows:
        tallies = [str(row.by_kind.get(kind, "-")) for kind in kinds]
        kind_lines.append([row.harness, row.label, *tallies])

    failure_lines = [[row.harness, row.label, _counts(row.failures)] for row in rows]
    tables = (
        table(score_heads, score_lines),
        table(["harness", "label", *kinds], kind_lines),
        table(["harness", "label", "ends of the failures"], failure_lines),
    )
    return "\n\n".join(tables)


def ablation_table(rows: Sequence[Score], harness: str, label: str) -> str:
    """Return a table that compares the other labels of `harness` with `label`; "" if `label` has no score."""
    rows_of_harness = {row.label: row for row in rows if row.harness == harness}
    if label not in rows_of_harness:
        return ""

    reference = rows_of_harness.pop(label)
    heads = ["switched off", "solved", "change", *HALVES, "new tokens", "calls", "false claims"]
    lines = [[f"nothing ({label})", *_reference_cells(reference)]]
    for row in rows_of_harness.values():
        lines.append(
            [
                row.label,
                str(row.solved),
                f"{row.solved.solved - reference.solved.solved:+d}",
                *(_change(row, reference, half) for half in HALVES),
                f"{row.new_tokens:.0f}",
                f"{row.model_calls:.1f}",
                str(row.false_claims),
            ]
        )
    return table(heads, lines)


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
"""The heads of the columns, and the functions that return their cells."""


def _reference_cells(row: Score) -> list[str]:
    halves = [str(row.by_half.get(half, "-")) for half in HALVES]
    figures = [f"{row.new_tokens:.0f}", f"{row.model_calls:.1f}", str(row.false_claims)]
    return [str(row.solved), "", *halves, *figures]


def _change(row: Score, reference: Score, half: str) -> str:
    """Return the change of the solved tasks of a half."""
    tally = row.by_half.get(half)
    reference_tally = reference.by_half.get(half)
    if not tally or not reference_tally:
        return "-"
    return f"{tally.solved - reference_tally.solved:+d}"


def _tally(runs: Sequence[RunRecord]) -> Tally:
    return Tally(solved=sum(run.problem is None for run in runs), total=len(runs))


def _tallies(runs: Sequence[RunRecord], key: Callable[[RunRecord], str]) -> dict[str, Tally]:
    names = sorted({key(run) for run in runs})
    return {name: _tally([run for run in runs if key(run) == name]) for name in names}


def _counts(failures: dict[str, int]) -> str:
    return ", ".join(f"{end} {count}" for end, count in failures.items()) or "none"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
