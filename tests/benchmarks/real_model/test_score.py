from benchmarks.real_model.score import Tally, ablation_table, how_it_ended, markdown, scores
from tests.benchmarks.real_model.samples import call, run

RUNS = [
    run("a", solved=True, calls=(call(), call(native_calls=2)), end={"healed": 1, "rescued": 2, "seconds": 7.0}),
    run("b", solved=False, changed_files=(), half="held_out", kind="question"),
    run("c", solved=False, ended="limit_time", calls=(), end={"reason": "killed after 180 s"}),
    run("d", solved=False, ended="SYSTEM_ERROR", calls=(), end={"reason": "loop_persisted"}),
]


def test_a_score_sums_its_runs_up() -> None:
    (score,) = scores(RUNS)
    assert score.model_dump() == {
        "harness": "aider",
        "label": "default",
        "solved": {"solved": 1, "total": 4},
        "by_half": {"dev": {"solved": 1, "total": 3}, "held_out": {"solved": 0, "total": 1}},
        "by_kind": {"question": {"solved": 0, "total": 1}, "repair": {"solved": 1, "total": 3}},
        "model_calls": 0.75,
        "prompt_tokens": 75.0,
        "uncached_tokens": 30.0,
        "completion_tokens": 7.5,
        "new_tokens": 37.5,
        "seconds": 5.5,
        "healed": 1,
        "rescued": 2,
        "native_calls": 2,
        "false_claims": 1,
        "failures": {"done": 1, "limit_time": 1, "SYSTEM_ERROR/loop_persisted": 1},
        "uncached_per_solved": 120.0,
    }


def test_where_nothing_is_solved_there_is_no_cost_of_a_solved_task() -> None:
    assert scores([run("a", solved=False)])[0].uncached_per_solved is None


def test_harnesses_and_labels_have_scores_of_their_own() -> None:
    records = [run("a", solved=True), run("a", solved=False, label="x"), run("a", solved=True, harness="mendgraph")]
    assert [(score.harness, score.label, str(score.solved)) for score in scores(records)] == [
        ("aider", "default", "1/1"),
        ("aider", "x", "0/1"),
        ("mendgraph", "default", "1/1"),
    ]


def test_an_end_is_told_with_its_reason() -> None:
    assert [how_it_ended(each) for each in RUNS] == ["done", "done", "limit_time", "SYSTEM_ERROR/loop_persisted"]


def test_the_table_shows_each_score() -> None:
    table = markdown(scores(RUNS))
    row = "| aider | default | 1/4 | 1/3 | 0/1 | 0.8 | 75 | 30 | 8 | 38 | 120 | 5.5 | 1 | 2 | 1 |"
    assert row in table.splitlines()
    assert "| aider | default | 0/1 | 1/3 |" in table.splitlines()
    assert "| aider | default | done 1, limit_time 1, SYSTEM_ERROR/loop_persisted 1 |" in table.splitlines()
    assert len({line.count("|") for line in table.split("\n\n")[0].splitlines()}) == 1


def test_an_ablation_tells_the_change() -> None:
    whole = [run("a", solved=True), run("b", solved=True, half="held_out")]
    without = [each.model_copy(update={"label": "no_evidence", "problem": "p"}) for each in whole[:1]]
    without += [each.model_copy(update={"label": "no_evidence"}) for each in whole[1:]]
    lines = ablation_table(scores([*whole, *without]), "aider", "default").splitlines()
    assert lines[2:] == [
        "| nothing (default) | 2/2 |  | 1/1 | 1/1 | 50 | 1.0 | 0 |",
        "| no_evidence | 1/2 | -1 | -1 | +0 | 50 | 1.0 | 0 |",
    ]


def test_an_ablation_without_the_whole_has_no_table() -> None:
    assert ablation_table(scores([run("a", solved=True, label="x")]), "aider", "default") == ""


def test_a_tally_reads_as_in_a_table() -> None:
    assert str(Tally(solved=3, total=4)) == "3/4"
