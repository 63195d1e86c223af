"""The tables, as Markdown."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.commits.child import RIVALS
from benchmarks.commits.result import Row
from benchmarks.commits.script import EDIT, PATCH, WRITE
from benchmarks.real_model.score import table

NOT_NAMED: Final = "not_named"
"""The mark of a changed file that the request does not name, although it names others. It is counted separately."""

_MOST_FILES: Final = 4
"""The maximum of files in the line of a fault."""

CommitId = tuple[str, str]
"""The repository and the SHA of a commit."""


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the tables of all repositories, and a line for each fault."""
    repositories = list(dict.fromkeys(row.repository for row in rows))
    yield skip_table(rows, repositories)
    yield result_table(rows, repositories)
    yield cost_table(rows)

    refusals = [f"{_setting(row)}: {rule}" for row in rows for rule in dict.fromkeys(row.refusals)]
    marks = [f"{_setting(row)}: {kind}" for row in rows for kind in row.marks]
    outcomes = [f"{_setting(row)}: {row.outcome}" for row in rows if row.outcome]
    yield from _count_table("Refusals", refusals)
    yield from _count_table("Marks", marks)
    yield from _count_table("Outcomes", outcomes)

    for row in rows:
        if not row.is_identical and not row.apart:
            yield _fault(row)


def skip_table(rows: Sequence[Row], repositories: Sequence[str]) -> str:
    """Return a table of the skipped commits by reason."""
    commits = {(row.repository, row.sha): row.apart for row in rows if row.contestant not in RIVALS}
    reasons = sorted(set(commits.values()) - {""})
    lines = []

    for name in [*repositories, "all"]:
        counts = Counter(reason for (repository, _), reason in commits.items() if name in {repository, "all"})
        cells = [str(counts[reason]) for reason in reasons]
        lines.append([name, str(counts.total()), *cells, str(counts[""])])
    return "\n" + table(["repository", "commits", *reasons, "reproduced"], lines)


def result_table(rows: Sequence[Row], repositories: Sequence[str]) -> str:
    """Return a table of the identical trees of each setting.

    The columns for refusals, marks and seconds are those of the default setting, by kind of request.
    """
    runs = [row for row in rows if not row.apart]
    settings = list(dict.fromkeys(map(_setting, runs)))
    default_settings = [setting for setting in settings if setting.startswith("default")]
    lines = []

    for name in [*repositories, "all"]:
        runs_of: dict[str, list[Row]] = {setting: [] for setting in settings}
        for row in runs:
            if name in {row.repository, "all"}:
                runs_of[_setting(row)].append(row)

        defaults = [runs_of[setting] for setting in default_settings]
        seconds = [row.seconds for members in defaults for row in members]
        lines.append(
            [
                name,
                *(_identical_count(runs_of[setting]) for setting in settings),
                " / ".join(_refused_count(members) for members in defaults),
                " / ".join(_share(members, _has_mark) for members in defaults),
                " / ".join(_share(members, _has_unnamed_mark) for members in defaults),
                f"{sum(seconds) / max(1, len(seconds)):.2f}",
            ]
        )
    return "\n" + table(["identical trees", *settings, "refused", "marks", "not named", "s"], lines)


def _identical_count(rows: Sequence[Row]) -> str:
    return f"{sum(row.is_identical for row in rows)} of {len(rows)}"


def _refused_count(rows: Sequence[Row]) -> str:
    return str(sum(bool(row.refusals) for row in rows))


def _has_mark(row: Row) -> bool:
    return bool(set(row.marks) - {NOT_NAMED})


def _has_unnamed_mark(row: Row) -> bool:
    return NOT_NAMED in row.marks


def cost_table(rows: Sequence[Row]) -> str:
    """Return a table of the average requests for a commit, over the commits that all contestants reproduce.

    For mendgraph, these are the runs whose request names a file. The rivals make edits in place of patches.
    """
    runs = [row for row in rows if row.is_identical and (row.contestant in RIVALS or row.request == "names")]
    lines = []

    for title, forms in (("edits and whole files", (EDIT, WRITE)), ("patches", (PATCH,))):
        runs_of: dict[str, dict[CommitId, Row]] = {}
        for row in runs:
            if row.form in forms:
                runs_of.setdefault(row.contestant, {})[row.repository, row.sha] = row

        common: set[CommitId] = set()
        if runs_of:
            common = set.intersection(*map(set, runs_of.values()))
        for contestant, run_of in runs_of.items():
            cost = _cost([run_of[commit] for commit in common])
            lines.append([title, contestant, str(len(common)), *cost])

    return "\n" + table(["changes", "contestant", "commits", "requests", "kB sent", "repeated", "kB new"], lines)


def _cost(rows: Sequence[Row]) -> tuple[str, str, str, str]:
    """Return the cells for requests, kB, the repeated share and new kB."""
    runs = max(1, len(rows))
    requests = sum(row.requests for row in rows) / runs
    prompt_kb = sum(row.prompt_bytes for row in rows) / 1000
    repeated_kb = sum(row.repeated_bytes for row in rows) / 1000
    share = 100 * repeated_kb / max(1, prompt_kb)
    new_kb = (prompt_kb - repeated_kb) / runs
    return f"{requests:.1f}", f"{prompt_kb / runs:.1f}", f"{share:.0f} %", f"{new_kb:.1f}"


def _share(rows: Sequence[Row], matches: Callable[[Row], bool]) -> str:
    percent = 100 * sum(map(matches, rows)) / max(1, len(rows))
    return f"{percent:.0f} %"


def _setting(row: Row) -> str:
    if row.contestant in RIVALS:
        return row.contestant
    return f"{row.contestant}, {row.request}"


def _count_table(title: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a table of the number of runs for each name; nothing without names."""
    lines = [[name, str(count)] for name, count in sorted(Counter(names).items())]
    if lines:
        yield f"\n{table([title, 'runs'], lines)}"


def _fault(row: Row) -> str:
    """Return a line with the differences of a run and their reasons."""
    differences = row.differences[:_MOST_FILES]
    more = len(row.differences) - _MOST_FILES
    if more > 0:
        differences.append(f"{more} more")

    reasons = [reason for reason in (row.failure, *row.refusals, *row.errors) if reason]
    reason = "; ".join(dict.fromkeys(reasons))[:300] or "no error"
    return f"\n{row.repository} {row.sha[:10]}, {_setting(row)}, {row.form}: {'; '.join(differences)} ({reason})"
