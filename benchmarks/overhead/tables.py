"""The figures as tables to read, and as JSON to paste from."""

from collections.abc import Iterable, Mapping

from rich.table import Table

from benchmarks.overhead.figures import Row, rows
from benchmarks.overhead.scenarios import Figures
from mendgraph.nodes.records import JsonMap
from tests.surfaces.store.growth import Growth


def figures_table(figures: Figures) -> Table:
    """One table, cheapest first."""
    table = Table(title=figures.title)
    for column in _columns(figures):
        table.add_column(column, justify="left" if not column else "right", no_wrap=not column)
    for row in rows(figures.series, figures.ours):
        table.add_row(*_cells(figures, row))
    return table


def _columns(figures: Figures) -> list[str]:
    return ["", f"median {figures.unit}", "lowest", "highest", *([f"{figures.ours} / it"] if figures.ours else [])]


def _cells(figures: Figures, row: Row) -> list[str]:
    told = [f"{value:.{figures.digits}f}" for value in (row.median, row.lowest, row.highest)]
    compared = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return [row.name, *told, *([compared] if figures.ours else [])]


def growth_table(grown: Mapping[str, Growth]) -> Table:
    """How large the databases become."""
    table = Table(title="Size of a workspace's database")
    for column in ("", "MB at half", "MB at the end", "R² of a line"):
        table.add_column(column, justify="left" if not column else "right")
    for name, growth in grown.items():
        half, end = growth.sizes[len(growth.sizes) // 2 - 1], growth.sizes[-1]
        table.add_row(name, f"{half / 1e6:.1f}", f"{end / 1e6:.1f}", f"{growth.r_squared:.4f}")
    return table


def document(all_figures: Iterable[Figures]) -> list[JsonMap]:
    """All tables as plain data, with the figure of each round."""
    return [
        {
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
        for figures in all_figures
    ]


def markdown(figures: Figures) -> str:
    """One table for `README.md`."""
    [_, *columns] = _columns(figures)
    lines = [[figures.title, *columns], ["---"] * (len(columns) + 1)]
    lines += [_cells(figures, row) for row in rows(figures.series, figures.ours)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
