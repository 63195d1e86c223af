import pytest

from benchmarks import run
from benchmarks.overhead.workers import ENTRANTS, OURS


def test_quick_runs_are_short() -> None:
    chosen = run.parse(["--quick", "--only", "steps"])
    assert {name: vars(chosen)[name] for name in run.QUICK} == run.QUICK
    assert chosen.only == ["steps"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.parse(["--only", "nonsense"])
    assert "create_agent" in capsys.readouterr().err


def test_contestants_are_left_out_where_their_environment_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "prepare", lambda name: "no uv" if name == "langchain" else None)
    names = [entrant.name for entrant in run.taking_part([])]
    assert names == [entrant.name for entrant in ENTRANTS if entrant.environment != "langchain"]
    assert "'langchain' cannot be made: no uv" in capsys.readouterr().err
    assert [entrant.name for entrant in run.taking_part(["steps", OURS])] == [OURS]
