from benchmarks.mutants.explanations import Explanation
from benchmarks.mutants.mutation import mutants_of
from benchmarks.mutants.report import Row, rows, staleness, survivors, table, verdict
from benchmarks.mutants.verdicts import Judged, Verdict

SOURCE = "def f(a):\n    return a + 1\n"
SUM, NUMBER = mutants_of("nodes/f.py", SOURCE)
OTHER = mutants_of("graph/g.py", SOURCE)[0]
WHY = Explanation("nodes/f.py", "return a + 1", "", "why")
JUDGED = [
    Judged(SUM, Verdict.KILLED, "test_f"),
    Judged(NUMBER, Verdict.SURVIVED),
    Judged(OTHER, Verdict.TIMEOUT),
]


def test_there_is_a_row_for_each_file_and_folder_and_one_for_all() -> None:
    assert rows(JUDGED, {}) == [
        Row("graph/g.py", 1, 1, 1, 0, 0),
        Row("nodes/f.py", 2, 1, 0, 1, 0),
        Row("graph/", 1, 1, 1, 0, 0),
        Row("nodes/", 2, 1, 0, 1, 0),
        Row("all", 3, 2, 1, 1, 0),
    ]


def test_an_explained_survivor_counts_neither_way() -> None:
    total = rows(JUDGED, {NUMBER: WHY})[-1]
    assert (total, total.counted, total.score) == (Row("all", 3, 2, 1, 1, 1), 2, 1.0)


def test_the_table_has_the_figures_in_columns() -> None:
    assert table(rows(JUDGED[:2], {})) == (
        "            mutants  killed  timeout  survived  explained   score\n"
        "nodes/f.py        2       1        0         1          0   50.0%\n"
        "all               2       1        0         1          0   50.0%"
    )


def test_survivors_are_shown_as_a_diff_unless_explained() -> None:
    sources = {"nodes/f.py": SOURCE}
    assert survivors(JUDGED[:2], sources, {}) == "nodes/f.py:2 f\n- return a + 1\n+ return a + 2"
    assert survivors(JUDGED[:2], sources, {NUMBER: WHY}) == ""


def test_the_last_line_says_whether_it_is_enough() -> None:
    assert verdict(Row("all", 100, 85, 0, 15, 0), sampled=False) == (
        "85.0% of 100 mutants are killed: enough, 85% are wanted"
    )
    assert verdict(Row("all", 100, 84, 0, 16, 0), sampled=True) == (
        "84.0% of 100 mutants are killed (95 % confidence: 75.6% to 89.9%): too few, 85% are wanted"
    )


def test_a_stale_explanation_is_named_with_its_reason() -> None:
    assert staleness([(WHY, "its line is gone")]) == "explained.toml, nodes/f.py: its line is gone: return a + 1"
