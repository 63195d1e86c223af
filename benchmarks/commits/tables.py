"""The tables, as Markdown."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.commits.child import RIVALS
from benchmarks.commits.result import Row
from benchmarks.commits.script import EDIT, PATCH, WRITE
from benchmarks.real_model.score import table

NOT_NAMED: Final = "not_named"
"""The mark of a file that a request does not name, where it names others; counted by itself."""

_SHOWN: Final = 4
"""Files of a run that a line names."""


def report(rows: Sequence[Row]) -> Iterator[str]:
    """What came of the commits of each repository, and then each thing that went wrong."""
    repositories = list(dict.fromkeys(row.repository for row in rows))
    yield apart_table(rows, repositories)
    yield result_table(rows, repositories)
    yield cost_table(rows)
    yield from _counts("Refusals", [f"{_setting(row)}: {rule}" for row in rows for rule in dict.fromkeys(row.refusals)])
    yield from _counts("Marks", [f"{_setting(row)}: {kind}" for row in rows for kind in row.marks])
    yield from _counts("Outcomes", [f"{_setting(row)}: {row.outcome}" for row in rows if row.outcome])
    yield from map(_fault, (row for row in rows if not row.is_identical and not row.apart))


def apart_table(rows: Sequence[Row], repositories: Sequence[str]) -> str:
    """How many commits were not tried, and why."""
    commits = {(row.repository, row.sha): row.apart for row in rows if row.contestant not in RIVALS}
    reasons = sorted(set(commits.values()) - {""})
    lines = []

    for name in [*repositories, "all"]:
        found = [why for (repository, _), why in commits.items() if name in {repository, "all"}]
        counts = Counter(found)
        lines.append([name, str(len(found)), *(str(counts[why]) for why in reasons), str(counts[""])])
    return "\n" + table(["repository", "commits", *reasons, "made again"], lines)


def result_table(rows: Sequence[Row], repositories: Sequence[str]) -> str:
    """Identical trees of each setting. Of the default, in the order of its requests: runs with refusals and marks.

    The last column is the seconds of a run.
    """
    ran = [row for row in rows if not row.apart]
    settings = list(dict.fromkeys(map(_setting, ran)))
    usual = [name for name in settings if name.startswith("default")]
    lines = []

    for name in [*repositories, "all"]:
        here = [row for row in ran if name in {row.repository, "all"}]
        own = {each: [row for row in here if _setting(row) == each] for each in settings}
        cells = [f"{sum(row.is_identical for row in own[each])} of {len(own[each])}" for each in settings]
        cells.append(" / ".join(str(sum(bool(row.refusals) for row in own[each])) for each in usual))
        cells.append(" / ".join(_share(own[each], lambda row: bool(set(row.marks) - {NOT_NAMED})) for each in usual))
        cells.append(" / ".join(_share(own[each], lambda row: NOT_NAMED in row.marks) for each in usual))
        every = [row.seconds for each in usual for row in own[each]]
        lines.append([name, *cells, f"{sum(every) / max(1, len(every)):.2f}"])
    return "\n" + table(["identical trees", *settings, "refused", "marks", "not named", "s"], lines)


def cost_table(rows: Sequence[Row]) -> str:
    """What the requests for a commit hold on average, of those that all have made from the same form of changes.

    Of mendgraph these are the runs whose request names a file. The rivals make edits in place of patches.
    """
    compared = [row for row in rows if row.is_identical and (row.contestant in RIVALS or row.request == "names")]
    lines = []
    for title, forms in (("edits and whole files", (EDIT, WRITE)), ("patches", (PATCH,))):
        commits_of: dict[str, dict[tuple[str, str], Row]] = {}
        for row in compared:
            if row.form in forms:
                commits_of.setdefault(row.contestant, {})[row.repository, row.sha] = row

        made_by_all = set.intersection(*map(set, commits_of.values())) if commits_of else set()
        for name, own in commits_of.items():
            lines.append([title, name, str(len(made_by_all)), *_cost([own[commit] for commit in made_by_all])])

    return "\n" + table(["changes", "contestant", "commits", "requests", "kB sent", "repeated", "kB new"], lines)


def _cost(rows: Sequence[Row]) -> tuple[str, str, str, str]:
    runs = max(1, len(rows))
    requests = sum(row.requests for row in rows) / runs
    sent = sum(row.prompt_bytes for row in rows) / 1000
    repeated = sum(row.repeated_bytes for row in rows) / 1000
    share = 100 * repeated / max(1, sent)
    return f"{requests:.1f}", f"{sent / runs:.1f}", f"{share:.0f} %", f"{(sent - repeated) / runs:.1f}"


def _share(rows: Sequence[Row], counts: Callable[[Row], bool]) -> str:
    return f"{100 * sum(map(counts, rows)) / max(1, len(rows)):.0f} %"


def _setting(row: Row) -> str:
    if row.contestant in RIVALS:
        return row.contestant
    return f"{row.contestant}, {row.request}"


def _counts(title: str, names: Sequence[str]) -> Iterator[str]:
    lines = [[name, str(count)] for name, count in sorted(Counter(names).items())]
    if lines:
        yield f"\n{table([title, 'runs'], lines)}"


def _fault(row: Row) -> str:
    more = len(row.differences) - _SHOWN
    what = "; ".join([*row.differences[:_SHOWN], *[f"{more} more"] * (more > 0)])
    why = "; ".join(dict.fromkeys([row.failure] * bool(row.failure) + row.refusals + row.errors))
    return f"\n{row.repository} {row.sha[:10]}, {_setting(row)}, {row.form}: {what} ({why[:300] or 'no error'})"
