"""The tables of the documents, which are generated between two comments of each page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.real_model.child import root_of_project
from benchmarks.scale.plan import assumptions_table, figures_table, needs_table, per_run
from benchmarks.scale.tables import lines_table, points_table, read_document

GROWTH: Final = "scale: growth"
PLAN: Final = "scale: plan"
PAGES: Final = ("benchmarks/details.md", "docs/scale.md", "README.md")
"""The pages with tables."""


def growth_tables(document: Mapping[str, Any]) -> str:
    """Return the tables of the measured figures."""
    series = read_document(document["series"])
    return "\n".join([*map(points_table, series), lines_table(series)])


def plan_tables(document: Mapping[str, Any]) -> str:
    """Return the tables of the resources for a number of runs per day."""
    figures = per_run(read_document(document["series"]))
    return "\n".join([figures_table(figures), assumptions_table(), needs_table(figures)])


def update_page(page: str, document: Mapping[str, Any]) -> str:
    """Return the page with current tables. A page without the comments does not change."""
    for name, tables in ((GROWTH, growth_tables), (PLAN, plan_tables)):
        start_comment = f"<!-- {name} -->\n"
        end_comment = f"<!-- end of {name} -->"
        if start_comment not in page or end_comment not in page:
            continue

        head, _, section = page.partition(start_comment)
        _, _, tail = section.partition(end_comment)
        page = f"{head}{start_comment}\n{tables(document)}\n{end_comment}{tail}"
    return page


def update_pages(document: Mapping[str, Any], root: Path | None = None) -> str:
    """Update the tables of all pages, and return a sentence with the changed pages."""
    changes = []
    for name in PAGES:
        path = (root or root_of_project()) / name
        before = path.read_text("utf-8") if path.is_file() else ""
        after = update_page(before, document)
        if after != before:
            path.write_text(after, "utf-8")
            changes.append(name)

    if not changes:
        return "All pages are up to date."
    return f"Updated: {', '.join(changes)}"
