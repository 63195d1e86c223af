"""Document 1, section 3: our file rules beside the document's own code."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.documents import (
    FileGuardrailRule,
    GuardrailResult,
    GuardrailViolation,
    check_file_guardrails,
    create_protected_edit_file_tool,
    format_guardrail_violations,
)
from tests.specs import document_1
from tests.specs.document_1 import plain

names = st.sampled_from(
    [
        *(".env", ".env.local", "prod.env", "x.env.y", "environment.py", "a.py", "README.md", "..", "src", "key"),
        *("a.pem", "a.KEY", "a.p12", "a.pfx", "a.crt", "a.Cer", "a.key.md", ".git", ".github", ".gitignore", "git"),
        *document_1.SENSITIVE_NAMES,
        *("id_rsa.pub", "secrets.py", "etc", "usr", "bin", "sbin", "var", "System", "Library", "lib", "passwd"),
    ]
)
paths = st.builds(
    lambda start, parts: Path(start + "/".join(parts)),
    st.sampled_from(["", "/", "./", "../../../../../../../../"]),
    st.lists(names, min_size=1, max_size=4),
)


def rules_of(result: GuardrailResult | document_1.GuardrailResult) -> list[str]:
    return [violation.rule_name for violation in result.violations]


@given(paths)
def test_path_blocked_by_the_document_is_blocked_by_the_same_rules(path: Path) -> None:
    """Also by others where ours are stricter; each time the same."""
    ours = check_file_guardrails(path)
    assert set(rules_of(document_1.check_file_guardrails(path))) <= set(rules_of(ours))
    assert ours == check_file_guardrails(path)
    assert type(ours.violations) is tuple


def test_kind_of_file_is_blocked_by_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system directory is a prefix of the resolved path, which begins with the current folder."""
    monkeypatch.chdir("/usr")
    system = ("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library")
    blocked = {
        "system_path": ["passwd", "/usr2/x", "/var/tmp/x", *(f"{folder}/a" for folder in system), *system],
        "private_key": [
            f"/project/server{suffix}" for suffix in (".pem", ".key", ".p12", ".pfx", ".crt", ".cer", ".PEM")
        ],
        "sensitive_config": [f"/project/{name}" for name in document_1.SENSITIVE_NAMES],
        "env_file": [f"/project/{name}" for name in (".env", "prod.env", ".env.local", "a.env.b")],
        "git_internal": ["/project/.git", "/project/.git/config", "/project/a/.git/hooks/pre-commit"],
    }
    for rule, files in blocked.items():
        assert [path for path in files if rules_of(check_file_guardrails(Path(path))) != [rule]] == []
        assert [path for path in files if rules_of(document_1.check_file_guardrails(Path(path))) != [rule]] == []


def test_other_spellings_and_copies_are_blocked_too() -> None:
    spellings = ("/project/.ENV", "/project/.env~", "/project/ID_RSA", "/project/a.key.bak", "/ETC/x")
    more = ("/project/.env-local", "/project/.env_local", "/project/a.jks", "/project/git~1/config", "/project/.aws/x")
    for path in (*spellings, *more):
        assert document_1.check_file_guardrails(Path(path)).allowed, path
        assert not check_file_guardrails(Path(path)).allowed, path


def test_project_configuration_is_blocked_by_no_default_rule() -> None:
    for name in ("config.yaml", "settings.py", "pyproject.toml", "a/b.toml"):
        assert check_file_guardrails(Path("/project") / name).allowed, name
        assert document_1.check_file_guardrails(Path("/project") / name).allowed, name


def test_guardrail_result_and_its_text_match_the_document() -> None:
    for path in ("/project/.env", "/project/.git/id_rsa", "/etc/ssl/a.pem", "/project/calc.py"):
        ours, theirs = check_file_guardrails(Path(path)), document_1.check_file_guardrails(Path(path))
        assert plain(ours) == plain(theirs)
        assert format_guardrail_violations(ours) == document_1.format_guardrail_violations(theirs)


@given(st.lists(st.builds(GuardrailViolation, *[st.text(max_size=5)] * 4), max_size=3), st.booleans())
def test_violations_are_formatted_as_in_the_document(violations: list[GuardrailViolation], allowed: bool) -> None:
    theirs = tuple(document_1.GuardrailViolation(*violation) for violation in violations)
    formatted = format_guardrail_violations(GuardrailResult(allowed, tuple(violations)))
    assert formatted == document_1.format_guardrail_violations(document_1.GuardrailResult(allowed, theirs))


def test_rules_of_the_user_replace_the_default_ones() -> None:
    """In their order, and only those: `rules` is the second argument."""
    rules = (
        FileGuardrailRule("lock", "Lock files", lambda path: path.suffix == ".lock"),
        FileGuardrailRule("all", "All files", lambda _: True),
    )
    documents = tuple(document_1.FileGuardrailRule(*rule) for rule in rules)
    for path in (Path("uv.lock"), Path(".env")):
        assert plain(check_file_guardrails(path, rules)) == plain(document_1.check_file_guardrails(path, documents))
    assert check_file_guardrails(Path(".env"), ()) == GuardrailResult(allowed=True, violations=())


def test_rule_of_the_user_receives_the_resolved_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    (root / "link").symlink_to("private")
    rules = (FileGuardrailRule("private", "Mine", lambda path: path.is_relative_to(root / "private")),)
    for path in (Path("private/a"), Path("link/a"), root / "link/../link/a"):
        assert rules_of(check_file_guardrails(path, rules)) == ["private"]
    assert check_file_guardrails(Path("other/a"), rules).allowed


# --- 3.3 create_protected_edit_file_tool


def edit_file(path: str, old_str: str, new_str: str) -> dict[str, Any]:
    """Replace one text with another."""
    return {"path": path, "action": "edited", "texts": [old_str, new_str]}


def test_protected_tool_answers_as_in_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values for a blocked file, also by a rule of the user, and what the base tool says of the others."""
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    (root / "link").symlink_to("private")
    rule = ("private", "Salaries", lambda path: path.is_relative_to(root / "private"))
    files = (".env", "sub/.git/config", "a.pem", "id_rsa", "/etc/passwd", "~/.env", "/project/calc.py")
    own_files = ("private/a.csv", f"{root}/private/a.csv", "./x/../private/a.csv", "link/a.csv")
    ours = create_protected_edit_file_tool(edit_file)
    theirs = document_1.create_protected_edit_file_tool(edit_file)
    assert [path for path in files if ours(path, "a", "b") != theirs(path, "a", "b")] == []
    ours = create_protected_edit_file_tool(edit_file, (FileGuardrailRule(*rule),))
    theirs = document_1.create_protected_edit_file_tool(edit_file, (document_1.FileGuardrailRule(*rule),))
    assert [path for path in own_files if ours(path, "a", "b") != theirs(path, "a", "b")] == []
    assert {ours(path, "a", "b")["action"] for path in own_files} == {"blocked"}


@pytest.mark.parametrize("path", ["calc.py", "sub/../calc.py", "~/calc.py", "link.py"])
def test_base_tool_receives_the_path_that_was_judged(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link.py").symlink_to("calc.py")
    judged: list[Path] = []

    def check(path: Path) -> bool:
        judged.append(path)
        return False

    protected: Any = create_protected_edit_file_tool(edit_file, (FileGuardrailRule("none", "Nothing", check),))
    answer = protected(path=path, old_str="a", new_str="b")
    assert [answer["path"], *map(str, judged)] == [str(tmp_path.resolve() / "calc.py")] * 2


@pytest.mark.parametrize(("link", "target"), [("notes.txt", ".env"), (".env", "notes.txt")])
def test_protected_tool_judges_a_link_and_its_target(tmp_path: Path, link: str, target: str) -> None:
    (tmp_path / target).touch()
    (tmp_path / link).symlink_to(target)
    blocked = create_protected_edit_file_tool(edit_file)(str(tmp_path / link), "a", "b")
    assert blocked == {
        "path": str(tmp_path.resolve() / target),
        "action": "blocked",
        "reason": "security_guardrail",
        "violations": [{"rule": "env_file", "description": "Environment variable files"}],
    }


def test_protected_tool_blocks_the_home_of_an_unknown_user() -> None:
    assert create_protected_edit_file_tool(edit_file)("~nobody-here/a.py", "a", "b")["action"] == "blocked"


def test_base_tool_is_unchanged_and_not_called_for_a_blocked_file() -> None:
    """The protected tool is described as in the document."""
    called: list[str] = []

    def base(path: str, old_str: str, new_str: str) -> dict[str, Any]:
        """Edit."""
        called.append(path + old_str + new_str)
        return {}

    protected = create_protected_edit_file_tool(base)
    protected("/project/.env", "a", "b")
    protected("/project/calc.py", "a", "b")
    assert called == ["/project/calc.pyab"]
    assert (base.__doc__, protected is base) == ("Edit.", False)
    theirs = document_1.create_protected_edit_file_tool(base).__doc__ or ""
    assert [line.rstrip() for line in (protected.__doc__ or "").splitlines()] == [
        line.rstrip() for line in theirs.splitlines()
    ]
