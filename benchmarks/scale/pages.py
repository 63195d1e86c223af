"""The tables of the documents: made from the measured figures, between two comments of each page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.real_model.child import root_of_project
from benchmarks.scale.plan import assumptions_table, figures_table, needs_table, per_run
from benchmarks.scale.tables import lines_table, measured_of, points_table

GROWTH: Final = "scale: growth"
PLAN: Final = "scale: plan"
PAGES: Final = ("benchmarks/details.md", "docs/scale.md", "README.md")
"""Where the tables may stand."""


def growth_of(told: Mapping[str, Any]) -> str:
    """What was measured, as tables."""
    measured = measured_of(told["series"])
    return "\n".join([*map(points_table, measured), lines_table(measured)])


def plan_of(told: Mapping[str, Any]) -> str:
    """What a number of runs a day needs, as tables."""
    figures = per_run(measured_of(told["series"]))
    return "\n".join([figures_table(figures), assumptions_table(), needs_table(figures)])


def rewritten(page: str, told: Mapping[str, Any]) -> str:
    """The page with its tables made anew; one without their comments stays as it is."""
    for name, tables in ((GROWTH, growth_of), (PLAN, plan_of)):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if found and closed:
            page = f"{head}{begin}\n{tables(told)}\n{end}{tail}"
    return page


def rewrite(told: Mapping[str, Any], root: Path | None = None) -> str:
    """Make the tables of all pages anew; which of them have changed, in words."""
    changed = []
    for name in PAGES:
        path = (root or root_of_project()) / name
        before = path.read_text("utf-8") if path.is_file() else ""
        after = rewritten(before, told)
        if after != before:
            path.write_text(after, "utf-8")
            changed.append(name)
    return f"rewritten: {', '.join(changed)}" if changed else "nothing to rewrite"
