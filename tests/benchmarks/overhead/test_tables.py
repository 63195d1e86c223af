from io import StringIO

from rich.console import Console

from benchmarks.overhead.scenarios import Figures
from benchmarks.overhead.tables import document, figures_table, growth_table, markdown
from tests.runs.growth import Growth

COMPARED = Figures("CPU per step", "ms", {"mendgraph": [2.0, 3.0], "other": [10.0, 15.0]})
ALONE = Figures("First request", "bytes", {"mendgraph": [12.0]}, ours="", digits=0)


def test_the_tables_of_the_readme() -> None:
    assert markdown(COMPARED) == (
        "| CPU per step | median ms | lowest | highest | mendgraph / it |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| mendgraph | 2.50 | 2.00 | 3.00 | 1.00 |\n"
        "| other | 12.50 | 10.00 | 15.00 | 0.20 |\n"
    )
    assert markdown(ALONE) == (
        "| First request | median bytes | lowest | highest |\n| --- | --- | --- | --- |\n| mendgraph | 12 | 12 | 12 |\n"
    )


def test_the_printed_tables_say_the_same() -> None:
    text = StringIO()
    console = Console(file=text, width=120)
    console.print(figures_table(COMPARED), growth_table({"20 turns": Growth((1_000_000, 2_000_000, 3_000_000))}))
    printed = " ".join(text.getvalue().replace("│", " ").split())
    assert "other 12.50 10.00 15.00 0.20" in printed
    assert "20 turns 1.0 3.0 1.0000" in printed


def test_the_document_has_every_round() -> None:
    assert document([ALONE]) == [
        {
            "title": "First request",
            "unit": "bytes",
            "ours": "",
            "rows": [
                {"name": "mendgraph", "median": 12.0, "lowest": 12.0, "highest": 12.0, "ratio": None, "rounds": [12.0]}
            ],
        }
    ]
