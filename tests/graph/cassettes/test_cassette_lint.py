"""What the cassettes of a folder must not hold."""

from pathlib import Path

import pytest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, render
from mendgraph.graph.cassettes.cassette_lint import RECORD_AGAIN, LintFinding, lint_cassettes
from mendgraph.nodes.records import ToolError, ToolErrorCode

KEY = "sk-" + "a1B2" * 8
NAME = "tests/test_a/test_it.yaml"


def text(said: str = "hello", **headers: str) -> str:
    exchange = Exchange(
        method="POST",
        path="/v1/chat/completions",
        request=f'{{"said": "{said}"}}'.encode(),
        status=200,
        headers=headers,
        response=b"hi",
    )
    return render(CassetteFile(recorded_from="a test", exchanges=(exchange,)))


def found(root: Path, content: str | bytes) -> list[LintFinding]:
    """The findings of one cassette, beside a file of a run, which is none."""
    path = root / "cassettes" / NAME
    (path.parent / "files/before").mkdir(parents=True)
    (path.parent / "files/before/a.yaml").write_text(KEY, encoding="utf-8")
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    findings = lint_cassettes("cassettes", str(root))
    assert not isinstance(findings, ToolError), findings
    assert all(each.path == f"cassettes/{NAME}" for each in findings)
    return list(findings)


def test_a_good_cassette_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, text()) == []


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (text(said=KEY), 8, "holds a secret"),
        (text(said="correct-horse-battery"), 8, "holds a secret of this environment"),
        (text(said="/home/me/x"), 8, "holds a home directory"),
        (text(Server="x"), 20, "holds the header Server"),
        (b"\xff\xfe", 1, "is not UTF-8 text (line 1)"),
        ("recorded_from: [", 1, "is not YAML (line 2, column 1)"),
        ("a: 1\n", 1, "is no cassette of version 1"),
    ],
)
def test_a_finding_has_its_line_and_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, line: int, what: str
) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "plum-42-orchard-7")
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    (finding,) = found(tmp_path, content)
    assert (finding.line, finding.what[: len(what)].lower()) == (line, what.lower())
    assert RECORD_AGAIN in finding.remedy or "tmp_path" in finding.remedy
    assert KEY not in repr(finding)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused = lint_cassettes("nowhere", str(tmp_path))
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.NOT_FOUND
