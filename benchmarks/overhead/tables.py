"""The figures as tables and as JSON."""

from collections.abc import Iterable, Mapping

from rich.table import Table

from benchmarks.overhead.figures import Row, rows
from benchmarks.overhead.scenarios import MEGABYTE, Figures
from mendgraph.nodes.records import JsonMap
from tests.surfaces.store.growth import Growth


def figures_table(figures: Figures) -> Table:
    """Return the figures as a table, cheapest contestant first."""
    table = Table(title=figures.title)
    table.add_column("", no_wrap=True)
    for column in _number_columns(figures):
        table.add_column(column, justify="right")

    for row in rows(figures.series, figures.ours):
        table.add_row(*_cells(figures, row))
    return table


def _number_columns(figures: Figures) -> list[str]:
    columns = [f"median {figures.unit}", "lowest", "highest"]
    if figures.ours:
        columns.append(f"{figures.ours} / it")
    return columns


def _cells(figures: Figures, row: Row) -> list[str]:
    values = (row.median, row.lowest, row.highest)
    cells = [row.name, *(f"{value:.{figures.digits}f}" for value in values)]
    if figures.ours:
        cells.append("-" if row.ratio is None else f"{row.ratio:.2f}")
    return cells


def growth_table(growths: Mapping[str, Growth]) -> Table:
    """Return the sizes of the databases as a table."""
    table = Table(title="Size of a workspace's database")
    table.add_column("")
    for column in ("MB at half", "MB at the end", "R² of a line"):
        table.add_column(column, justify="right")

    for name, growth in growths.items():
        half = growth.sizes[len(growth.sizes) // 2 - 1] / MEGABYTE
        end = growth.sizes[-1] / MEGABYTE
        table.add_row(name, f"{half:.1f}", f"{end:.1f}", f"{growth.r_squared:.4f}")
    return table


def document(tables: Iterable[Figures]) -> list[JsonMap]:
    """Return all tables as JSON values, with the figure of each round."""
    return [_table_document(figures) for figures in tables]


def _table_document(figures: Figures) -> JsonMap:
    return {
        "title": figures.title,
        "unit": figures.unit,
        "ours": figures.ours,
        "rows": [
            {
                "name": row.name,
                "median": row.median,
                "lowest": row.lowest,
                "highest": row.highest,
                "ratio": row.ratio,
                "rounds": list(figures.series[row.name]),
            }
            for row in rows(figures.series, figures.ours)
        ],
    }


def markdown(figures: Figures) -> str:
    """Return the figures as a Markdown table for `README.md`."""
    head = [figures.title, *_number_columns(figures)]
    body = [_cells(figures, row) for row in rows(figures.series, figures.ours)]
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
