"""Each name in the tables of the file rules has their effect. `guarded_names.toml` has one for each pattern."""

import tomllib
from pathlib import Path, PurePosixPath

from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    KEY_FILES,
    PACKAGE_LOGINS,
    SENSITIVE_FILES,
    NameTable,
)
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.guard.scope import MANIFESTS, PROTECTED, RUNS_LATER, WIDE, Scope, is_project_config, runs_later
from tests.row_tables import rows

NAMES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("guarded_names.toml").read_text(encoding="utf-8"))
PATTERNS = {
    "secret": (*KEY_FILES.patterns, *SENSITIVE_FILES.patterns),
    "login": PACKAGE_LOGINS.patterns,
    "protected": PROTECTED.patterns,
    "runs_later": RUNS_LATER.patterns,
    "manifest": MANIFESTS.patterns,
    "wide": WIDE.patterns,
}


def is_denied(name: str, *, for_write: bool) -> bool:
    return judge_path(f"a/{name}", for_write=for_write, rules=DEFAULT_GUARDRAIL_RULES) is not None


@rows(*PATTERNS)
def test_every_pattern_has_an_example_name(kind: str) -> None:
    names = [PurePosixPath(name) for name in NAMES[kind]]
    tables = {pattern: NameTable(f"something: {pattern}") for pattern in PATTERNS[kind]}
    assert [pattern for pattern, table in tables.items() if not any(map(table.reason_for, names))] == []


def test_secret_file_is_neither_read_nor_written() -> None:
    names = NAMES["secret"]
    assert [name for name in names if not is_denied(name, for_write=False)] == []
    assert [name for name in names if not is_denied(name, for_write=True)] == []


def test_package_index_credentials_are_judged_by_content_and_never_written() -> None:
    assert [(name, is_denied(name, for_write=False), is_denied(name, for_write=True)) for name in NAMES["login"]] == [
        (".npmrc", False, True),
        (".pypirc", False, True),
    ]


@rows(
    ("protected", True, True, True),
    ("runs_later", False, True, True),
    ("manifest", False, False, True),
    ("wide", False, False, False),
)
def test_listed_name_is_protected_marked_asked_about_and_out_of_strict_scope(
    kind: str, protected: bool, marked: bool, needs_approval: bool
) -> None:
    names = [PurePosixPath("a", name) for name in NAMES[kind]]
    assert [str(name) for name in names if bool(Scope().protection(str(name))) is not protected] == []
    assert [str(name) for name in names if runs_later(name) is not marked] == []
    assert [
        name.name for name in names if name.suffix != ".toml" and is_project_config(name) is not needs_approval
    ] == []
    assert [str(name) for name in names if not Scope(strict=True).protection(str(name))] == []
