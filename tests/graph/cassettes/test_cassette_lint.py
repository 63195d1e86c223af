"""What is wrong with the cassettes of a folder."""

from pathlib import Path

import pytest
import yaml

from graph.cassettes.cassette_file import CassetteFile, Exchange, render
from graph.cassettes.cassette_lint import _LARGEST_MODULE, RECORD_AGAIN, LintFinding, lint_cassettes
from nodes.records import ToolError, ToolErrorCode
from tests.architecture.house import ROOT

KEY = "sk-" + "a1B2" * 8
OURS = (ROOT / "cassettes/bug_repaired/text.yaml").read_text(encoding="utf-8")


def exchange(said: str = "hello", answered: str = "hi", status: int = 200) -> Exchange:
    return Exchange(
        method="POST",
        path="/v1/chat/completions",
        request=f'{{"said": "{said}"}}'.encode(),
        status=status,
        headers={},
        response=answered.encode(),
    )


def text(*exchanges: Exchange) -> str:
    return render(CassetteFile(recorded_from="a test", exchanges=exchanges))


def found(root: Path, content: str, name: str = "tests/test_a/test_it.yaml") -> list[LintFinding]:
    """The findings of one cassette, whose test there is."""
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text("def test_it(): ...\n", encoding="utf-8")
    path = root / "cassettes" / name
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    findings = lint_cassettes("cassettes", str(root))
    assert not isinstance(findings, ToolError), findings
    assert all(each.path == f"cassettes/{name}" for each in findings)
    return list(findings)


def test_a_good_cassette_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, text(exchange())) == []


def test_a_file_that_is_no_text_is_a_finding(tmp_path: Path) -> None:
    assert found(tmp_path, text(exchange())) == []
    (tmp_path / "cassettes/tests/test_a/test_it.yaml").write_bytes(b"\xff\xfe")
    findings = lint_cassettes("cassettes", str(tmp_path))
    assert not isinstance(findings, ToolError)
    remedy = f"{RECORD_AGAIN}, or take it back from version control"
    path = "cassettes/tests/test_a/test_it.yaml"
    assert findings == (LintFinding(path, 1, "is not UTF-8 text (line 1)", remedy),)


def test_a_cassette_of_another_layout_has_its_drift_in_the_first_line(tmp_path: Path) -> None:
    document = yaml.safe_load(OURS.replace("Read a file before", "Look at a file before"))
    first, *_ = found(tmp_path, yaml.safe_dump(document, default_flow_style=True))
    assert (first.line, first.what.partition(":")[0]) == (1, "this version sends something else")


def test_a_module_that_is_too_large_to_be_a_test_names_no_cassette(tmp_path: Path) -> None:
    assert found(tmp_path, text(exchange())) == []
    (tmp_path / "tests/test_a.py").write_bytes(b"#" * (_LARGEST_MODULE + 1))
    findings = lint_cassettes("cassettes", str(tmp_path))
    assert not isinstance(findings, ToolError)
    assert [each.what for each in findings] == ["no test plays it"]


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (text(exchange(said=KEY)), 8, "holds a secret"),
        (text(exchange(said="/home/me/x")), 8, "holds a home directory"),
        ("recorded_from: [", 1, "is not YAML (line 2, column 1)"),
        ("a: 1\n", 1, "is no cassette of mendgraph"),
    ],
)
def test_a_finding_has_its_line_and_its_remedy(tmp_path: Path, content: str, line: int, what: str) -> None:
    (finding,) = found(tmp_path, content)
    assert (finding.line, finding.what[: len(what)]) == (line, what)
    assert finding.remedy
    assert KEY not in repr(finding)


def test_a_test_may_ask_the_same_twice(tmp_path: Path) -> None:
    assert found(tmp_path, text(exchange(), exchange(), exchange(status=503), exchange(status=503))) == []


@pytest.mark.parametrize(
    ("before", "after", "whats"),
    [
        ("settings:", "settings:\n  protocol: foo", ["has settings.protocol that no run can have (Input should be "]),
        ('"model"', '"tools": [5],\n        "model"', []),
        ('"messages": [', '"messages": [5, ', []),
    ],
    ids=["protocol", "tools", "messages"],
)
def test_what_somebody_made_of_a_cassette_by_hand_is_no_crash(
    tmp_path: Path, before: str, after: str, whats: list[str]
) -> None:
    content = OURS.replace("interactions:", "settings:\n  model: m\ninteractions:", 1)
    content = content.replace(f"{before}", after, 1)
    findings = found(tmp_path, content)
    assert [each.what[: len(what)] for each, what in zip(findings, whats, strict=True)] == whats
    assert all(each.remedy.startswith(RECORD_AGAIN) for each in findings)


def test_a_value_of_the_environment_is_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "plum-42-orchard-7")
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    (finding,) = found(tmp_path, text(exchange(said="correct-horse-battery")))
    assert finding.what == "holds a secret of this environment"


def test_drift_is_told_at_the_first_exchange(tmp_path: Path) -> None:
    assert found(tmp_path / "", OURS) == []
    (path,) = (tmp_path / "cassettes").rglob("*.yaml")
    path.write_text(OURS.replace("Read a file before", "Look at a file before"), encoding="utf-8")
    findings = lint_cassettes("cassettes", str(tmp_path))
    assert not isinstance(findings, ToolError)
    assert [(each.line, each.what.partition(":")[0]) for each in findings] == [(3, "this version sends something else")]


def test_what_drift_does_not_know_is_a_note(tmp_path: Path) -> None:
    asked = [exchange().model_copy(update={"path": path}) for path in ("/v1/messages", "/api/chat")]
    (finding,) = found(tmp_path, text(*asked))
    what = "drift was not looked for: it is known for /chat/completions, and this begins with POST /v1/messages"
    assert finding == LintFinding(finding.path, 3, what, "its test tells of every request that differs", note=True)


def test_a_cassette_without_an_exchange_has_no_drift(tmp_path: Path) -> None:
    assert found(tmp_path, text()) == []


def test_headers_that_no_recording_keeps_are_found(tmp_path: Path) -> None:
    headers = {"content-type": "a", "x-api-key": "short"}
    content = text(exchange().model_copy(update={"request_headers": headers, "headers": {"set-cookie": "a"}}))
    by_hand = content.replace("x-api-key:", "X-Api-Key:").replace(
        "      set-cookie:\n      - a", "      ? set-cookie\n      : a"
    )
    findings = found(tmp_path, by_hand)
    lines = by_hand.split("\n")
    assert [(each.line, each.what) for each in findings] == [
        (1, "holds the header set-cookie"),
        (lines.index("      X-Api-Key:") + 1, "holds the header x-api-key"),
    ]
    assert all(each.remedy == f"remove it, or {RECORD_AGAIN}" for each in findings)


@pytest.mark.parametrize("key", ["sk-ant-api03-" + "a1B2c3D4e5-" * 4, "AIza" + "a1B2-" * 7, "xai-" + "a1B2" * 8])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1beta/models/m:generateContent", "/api/chat"])
def test_keys_are_found_whichever_api_it_is(tmp_path: Path, key: str, path: str) -> None:
    findings = found(tmp_path, text(exchange(answered=f"key {key}").model_copy(update={"path": path})))
    assert [each.note for each in findings] == [True, False]
    assert findings[1].what == "holds a secret"


def test_a_key_in_an_address_is_found(tmp_path: Path) -> None:
    content = text(exchange()).replace("/v1/chat/completions", "/v1/chat/completions?key=a1B2-a1B2-a1B2-a1B2-a1")
    assert [each.what for each in found(tmp_path, content)] == ["holds a secret"]


def test_a_cassette_without_a_test_is_an_orphan(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, text(exchange()), "tests/test_a/test_gone.yaml")
    assert (finding.line, finding.what) == (1, "no test plays it")


def test_the_files_of_a_run_are_no_cassettes(tmp_path: Path) -> None:
    assert found(tmp_path, "a: 1\n", "tests/test_a/files/before/config.yaml") == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    findings = lint_cassettes("nowhere", str(tmp_path))
    assert isinstance(findings, ToolError)
    assert findings.code is ToolErrorCode.NOT_FOUND
    assert "'nowhere'" in findings.message
