import resource
from pathlib import Path

import pytest

from benchmarks.real_model import claims
from benchmarks.real_model.claims import first_problem, raises, read, run, said


def test_line_ends_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xc3\xa4\r\n")
    assert read(str(tmp_path / "a")) == "ä\r\n"


@pytest.mark.parametrize(("text", "expected"), [("x", True), ("1", False)])
def test_an_exception_is_expected(text: str, *, expected: bool) -> None:
    assert raises(ValueError, int, text) is expected


def test_another_exception_comes_through() -> None:
    with pytest.raises(TypeError):
        raises(ValueError, int, None)


def test_a_program_is_run_as_its_user_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("NAME = 'Ann'\n")
    (tmp_path / "main.py").write_text("import sys, beside\nprint(beside.NAME, sys.argv[1])\nsys.exit(3)\n")
    assert run("main.py", "x") == (3, "Ann x\n")
    assert [path.name for path in tmp_path.rglob("__pycache__")] == []


def test_claims_share_what_the_setup_has_made() -> None:
    assert first_problem("seen = []", ["seen.append(1) is None", "seen == [1]"]) is None
    assert first_problem("", ["raises(ZeroDivisionError, lambda: 1 / 0)"]) is None


def test_an_exception_is_said_in_one_short_line() -> None:
    assert said(ValueError("a\n b")) == "ValueError: a b"
    assert len(said(ValueError("x" * 1_000))) == 300


def test_limits_are_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_CPU: (5, 5), resource.RLIMIT_FSIZE: (-1, -1), resource.RLIMIT_AS: (-1, 9 * 1024**3)}
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    claims.limit()
    assert limits == {
        resource.RLIMIT_CPU: (5, 5),
        resource.RLIMIT_FSIZE: (10 * 1024**2, -1),
        resource.RLIMIT_AS: (2 * 1024**3, 9 * 1024**3),
    }
