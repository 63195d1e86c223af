"""Document 1, section 3: our file rules beside the document's own code."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.guard.file_rules import (
    FileGuardrailRule,
    GuardrailResult,
    GuardrailViolation,
    check_file_guardrails,
    create_protected_edit_file_tool,
    format_guardrail_violations,
)
from mendgraph.nodes.guard.scope import PROJECT_CONFIG_RULE
from tests.specs import document_1
from tests.specs.same_values import plain

names = st.sampled_from(
    [
        *(".env", ".env.local", "prod.env", "x.env.y", "environment.py", "a.py", "README.md", "..", "src", "key"),
        *("pem",),
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
def test_what_the_document_blocks_is_blocked_by_the_same_rules(path: Path) -> None:
    """And by others too where ours are stricter."""
    assert set(rules_of(document_1.check_file_guardrails(path))) <= set(rules_of(check_file_guardrails(path)))


@pytest.mark.parametrize("folder", ["/etc", "/usr", "/bin", "/var"])
def test_relative_path_is_judged_from_the_current_folder(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.chdir(folder)
    assert rules_of(document_1.check_file_guardrails(Path("passwd"))) == ["system_path"]
    assert rules_of(check_file_guardrails(Path("passwd"))) == ["system_path"]


SYSTEM = ("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library")
KEYS = (".pem", ".key", ".p12", ".pfx", ".crt", ".cer", ".PEM", ".Key")
BLOCKED = [
    *((f"{folder}/{name}", "system_path") for folder in SYSTEM for name in ("passwd", "a/b/c.conf", "")),
    *((f"/project/server{suffix}", "private_key") for suffix in KEYS),
    *((f"/project/{name}", "sensitive_config") for name in document_1.SENSITIVE_NAMES),
    *((f"/project/{name}", "env_file") for name in (".env", "prod.env", ".env.local", "a.env.b")),
    *((path, "git_internal") for path in (".git", ".git/config", "/project/a/.git/hooks/pre-commit")),
]


@pytest.mark.parametrize(("path", "rule"), BLOCKED)
def test_each_kind_of_file_is_blocked_by_its_rule(path: str, rule: str) -> None:
    assert rules_of(check_file_guardrails(Path(path))) == [rule]


@pytest.mark.parametrize("path", ["/usr2/x", "/etcetera", "/variable/x", "/Library2", "/var/tmp/x", "/var/folders/a/x"])
def test_system_directory_is_a_prefix_of_the_resolved_path(path: str) -> None:
    assert rules_of(document_1.check_file_guardrails(Path(path))) == ["system_path"]
    assert rules_of(check_file_guardrails(Path(path))) == ["system_path"]


@pytest.mark.parametrize("path", ["/project/.ENV", "/project/.env~", "/project/ID_RSA", "/project/a.key.bak", "/ETC/x"])
def test_other_spellings_and_copies_are_blocked_too(path: str) -> None:
    assert document_1.check_file_guardrails(Path(path)).allowed
    assert not check_file_guardrails(Path(path)).allowed


@pytest.mark.parametrize("name", ["config.yaml", "settings.py", "pyproject.toml", "a/b.toml"])
def test_project_configuration_of_the_threat_model_has_a_rule_of_its_own(name: str) -> None:
    assert PROJECT_CONFIG_RULE.check(Path(name))
    assert check_file_guardrails(Path("/project") / name).allowed
    assert document_1.check_file_guardrails(Path("/project") / name).allowed


@pytest.mark.parametrize("path", ["/project/.env", "/project/.git/id_rsa", "/etc/ssl/a.pem", "/project/calc.py"])
def test_result_and_its_text_are_the_documents(path: str) -> None:
    ours, theirs = check_file_guardrails(Path(path)), document_1.check_file_guardrails(Path(path))
    assert plain(ours) == plain(theirs)
    assert format_guardrail_violations(ours) == document_1.format_guardrail_violations(theirs)


@given(st.lists(st.builds(GuardrailViolation, *[st.text(max_size=5)] * 4), max_size=3), st.booleans())
def test_violations_are_shown_as_the_document_shows_them(violations: list[GuardrailViolation], allowed: bool) -> None:
    theirs = tuple(document_1.GuardrailViolation(*each) for each in violations)
    shown = format_guardrail_violations(GuardrailResult(allowed, tuple(violations)))
    assert shown == document_1.format_guardrail_violations(document_1.GuardrailResult(allowed, theirs))


def test_rules_of_ones_own_take_the_place_of_the_default_ones() -> None:
    """In their order, and only those: `rules` is the second argument."""
    rules = (
        FileGuardrailRule("lock", "Lock files", lambda path: path.suffix == ".lock"),
        FileGuardrailRule("all", "All files", lambda _: True),
    )
    documents = tuple(document_1.FileGuardrailRule(*rule) for rule in rules)
    for path in (Path("uv.lock"), Path(".env")):
        assert plain(check_file_guardrails(path, rules)) == plain(document_1.check_file_guardrails(path, documents))
    assert check_file_guardrails(Path(".env"), ()) == GuardrailResult(allowed=True, violations=())


# --- 3.3 create_protected_edit_file_tool


def edit_file(path: str, old_str: str, new_str: str) -> dict[str, Any]:
    """Replace one text with another."""
    return {"path": path, "action": "edited", "texts": [old_str, new_str]}


@pytest.mark.parametrize(
    "path", [".env", "sub/.git/config", "a.pem", "id_rsa", "/etc/passwd", "~/.env", "/project/calc.py"]
)
def test_protected_tool_answers_as_the_documents(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values for a blocked file, and what the base tool says of the others."""
    monkeypatch.chdir(tmp_path)
    ours = create_protected_edit_file_tool(edit_file)(path, "a", "b")
    assert ours == document_1.create_protected_edit_file_tool(edit_file)(path, "a", "b")


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

    rule = FileGuardrailRule("none", "Nothing", check)
    answer = create_protected_edit_file_tool(edit_file, (rule,))(path, "a", "b")
    assert [answer["path"], *map(str, judged)] == [str(tmp_path.resolve() / "calc.py")] * 2


def test_protected_tool_blocks_the_home_of_nobody() -> None:
    assert create_protected_edit_file_tool(edit_file)("~nobody-here/a.py", "a", "b")["action"] == "blocked"


def test_rule_of_ones_own_receives_the_resolved_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("private")
    rules = (FileGuardrailRule("private", "Mine", lambda path: path.is_relative_to(tmp_path.resolve() / "private")),)
    for path in (Path("private/a"), Path("link/a"), tmp_path / "link/../link/a"):
        assert rules_of(check_file_guardrails(path, rules)) == ["private"]
    assert check_file_guardrails(Path("other/a"), rules).allowed


@pytest.mark.parametrize(("link", "target"), [("notes.txt", ".env"), (".env", "notes.txt")])
def test_protected_tool_judges_a_link_and_where_it_leads(tmp_path: Path, link: str, target: str) -> None:
    (tmp_path / target).touch()
    os.symlink(target, tmp_path / link)
    blocked = create_protected_edit_file_tool(edit_file)(str(tmp_path / link), "a", "b")
    assert blocked == {
        "path": str(tmp_path.resolve() / target),
        "action": "blocked",
        "reason": "security_guardrail",
        "violations": [{"rule": "env_file", "description": "Environment variable files"}],
    }


def test_base_tool_stays_as_it_is_and_is_not_called_for_a_blocked_file() -> None:
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


def test_protected_tool_takes_rules_of_ones_own() -> None:
    protected = create_protected_edit_file_tool(edit_file, (FileGuardrailRule("all", "All files", lambda _: True),))
    assert protected("/project/calc.py", "a", "b")["violations"] == [{"rule": "all", "description": "All files"}]


@pytest.mark.parametrize("path", ["private/a.csv", "{root}/private/a.csv", "./x/../private/a.csv", "link/a.csv"])
def test_rule_by_absolute_path_blocks_as_in_the_document(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    (root / "link").symlink_to("private")
    rule = ("private", "Salaries", lambda path: path.is_relative_to(root / "private"))
    ours = create_protected_edit_file_tool(edit_file, (FileGuardrailRule(*rule),))
    theirs = document_1.create_protected_edit_file_tool(edit_file, (document_1.FileGuardrailRule(*rule),))
    name = path.replace("{root}", str(root))
    assert ours(name, "a", "b") == theirs(name, "a", "b")
    assert ours(name, "a", "b")["action"] == "blocked"


def test_protected_tool_takes_its_arguments_by_name() -> None:
    protected: Any = create_protected_edit_file_tool(edit_file)
    assert protected(path="/p/a.py", old_str="a", new_str="b") == edit_file("/p/a.py", "a", "b")


def test_protected_tool_is_described_as_in_the_document() -> None:
    ours = create_protected_edit_file_tool(edit_file).__doc__ or ""
    theirs = document_1.create_protected_edit_file_tool(edit_file).__doc__ or ""
    assert [line.rstrip() for line in ours.splitlines()] == [line.rstrip() for line in theirs.splitlines()]
    assert ours.startswith("Replace one text with another.")


# --- 5.1 pure functions


@given(paths)
def test_check_says_the_same_twice(path: Path) -> None:
    first = check_file_guardrails(path)
    assert first == check_file_guardrails(path)
    assert (type(first.violations), path) == (tuple, Path(str(path)))
    assert format_guardrail_violations(first) == format_guardrail_violations(first)
