"""The agent's own settings are not for the agent to change."""

import os
import random
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    OWN_SETTINGS_RULE,
    FileGuardrailRule,
    GuardrailViolation,
    WorkspacePath,
    check_file_guardrails,
    create_protected_edit_file_tool,
    is_env_file,
    is_git_internal,
    is_own_settings,
    is_private_key,
    is_sensitive_config,
    is_system_path,
)
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.guard.scope import is_project_config, runs_later
from mendgraph.nodes.records import ToolErrorCode

BLOCKED = {
    "env_file": [
        *(".env", "prod.env", ".env.local", "app/.env.production", "x.env.y", ".env.example", ".env-local"),
        *(".env_ci", ".ENV", ".env.", ".env ", ".e\u200bnv", "\uff0eenv", ".env~", ".env.swp", "prod.env.old"),
        *("a\\.env", "a.env.\\b", "/project/.env"),
    ],
    "private_key": [
        *("server.pem", "server.key", "a.p12", "a.pfx", "a.crt", "a.cer", "a.p8", "putty.ppk", "a.jks", "a.keystore"),
        *("SERVER.PEM", "server.key.bak", "a.pem.backup", "a.key.save", "a.p12.tmp", "server.key.", ".pem"),
        "certs/ca.\uff43\uff52\uff54",
    ],
    "system_path": [
        *("/etc", "/etc/passwd", "/usr/bin/env", "/bin/sh", "/sbin/init", "/var/log/syslog", "/System/x", "/Library/x"),
        *("//etc/passwd", "/home/../etc/passwd", "/ETC/passwd", "/private/etc/hosts", "/private/var/db/x"),
        *("/var/tmp/x.py", "/var/folders/zz/x.py", "/var/home/u/x.py"),
        *("../../../etc/passwd", "a/../../../usr/lib/x", "/etc/\0"),
        *("/usr2/x", "/etcetera", "/variable/x", "/binary", "/library2"),  # the document compares prefixes
    ],
    "git_internal": [
        *(".git", ".git/config", ".git/../a.py", "a/.git/hooks/pre-commit", ".git/../.git/x", "/project/.git/HEAD"),
        *(".GIT/config", ".git /config", ".git./config", ".g\u200cit/config", ".\uff47it", "GIT~1/config"),
    ],
    "sensitive_config": [
        *("secrets.yaml", "secrets.yml", "secrets.json", "credentials.json", "credentials.yaml", ".npmrc", ".pypirc"),
        *(".netrc", "id_rsa", "id_ed25519", "id_ecdsa", "home/.ssh/ID_RSA", "id_rsa.bak", "Secrets.YAML", "id_dsa"),
        *(".aws/credentials", ".docker/config.json", ".kube/config", ".git-credentials", ".streamlit/secrets.toml"),
        *("credentials.yml", "_netrc", ".pgpass", ".htpasswd", "id_ecdsa_sk", "id_ed25519_sk", "id_rsa.orig"),
    ],
}
BENIGN = [
    *("environment.py", "env.py", ".environment", "venv/x.py", "dotenv.md", ".envrc", "env", "docs/env.example"),
    *("monkey.py", "keyboard.key.md", "key", "keys.py", "hotkeys.json", "pem.py", "certificates.md", "turkey"),
    *("[...nextauth].ts", "[...slug].tsx", "...", "..a/b", "a..b", "src/*.py", "etc/config.py", "usr/x.py"),
    *("bin/run", "var/x", "/private/var/folders/a/b.py", "/private/tmp/x.py", "/private/var/tmp/x", "/home/u/x.py"),
    *("/Users/u/Library/x.py", "src/etc/passwd", ".gitignore", ".github/workflows/ci.yml", ".gitattributes"),
    *("git/x.py", "my.git.md", "digit.py", "legit/.keep", "secrets_manager.py", "secrets.py", "credentials.py"),
    *("credential_helper.md", "id_rsa.pub", "valid_rsa.py", "docs/ssh.md", "ssh/client.go", "src/aws/client.py"),
    *("aws.tf", "kube/deployment.yaml", "k8s/secret.yaml", "gcloud/README.md", "gcloud/storage/client.py"),
    *("docker/Dockerfile", "docker-compose.yml", "azure/functions.json", "gnupg.py", ".gcloudignore"),
    *(".dockerignore", ".secrets.baseline", "secretary.py", "password_policy.md", "history.py", "HISTORY.md"),
    *("docs/history.rst", "src/history/index.ts", "bash_history.py", "_history.scss", "keyboard.key.ts"),
    *("keychain.ts", "test.pem.md", "wallet.py", "cookies", "src/cookies/index.ts", "cookies.py", "id_rsa_test.go"),
    *("id_rsa.md", "docs/id_rsa.pub", "test_id_rsa.py", "ssh_host_rsa_key.pub", "known_hosts.py", "package.json"),
    *("package-lock.json", "tsconfig.json", "composer.json", "auth.json", "config/hub.ts", "hosts.yml"),
    *("terraform/main.tf", "terraform.tfstate.md", "variables.tf", "dev.tfvars", "gradle.properties", "settings.xml"),
    *("credentials.yml.enc", "config/credentials.rb", "login.json", "logins.py", "netrc.py", "pgpass.md", "boto.py"),
    *("kdbx.py", "docs/kdbx.md", "vault.py", "vault_pass.md", "shadow", "shadow.css", "etc/hosts", "robots.txt"),
    *("pip.conf", "nuget.config", ".yarnrc.yml", ".hgrc", ".curlrc", "server.cfg", "service_account.py"),
    *("client.json", "npmrc.md", "test_secrets.json.py", "config.json", "pyproject.toml", "token.py", "calc.py", "."),
]


def rules_that_block(path: str) -> list[str]:
    return [violation.rule_name for violation in check_file_guardrails(Path(path)).violations]


@pytest.mark.parametrize(("rule", "path"), [(rule, path) for rule, paths in BLOCKED.items() for path in paths])
def test_sensitive_names_are_blocked_by_their_rule(rule: str, path: str) -> None:
    assert rule in rules_that_block(path)


@pytest.mark.parametrize("path", BENIGN)
def test_harmless_names_raise_no_alarm(path: str) -> None:
    assert rules_that_block(path) == []


_PREFIXES = ("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library")
_SENSITIVE = {"secrets.yaml", "credentials.json", ".npmrc", ".netrc", "id_rsa"}
DOCUMENT: dict[Callable[[Path], bool], Callable[[Path], bool]] = {
    is_env_file: lambda path: path.name == ".env" or path.suffix == ".env" or ".env." in path.name,
    is_private_key: lambda path: path.suffix.lower() in {".pem", ".key", ".p12", ".pfx", ".crt", ".cer"},
    is_system_path: lambda path: str(path.resolve()).startswith(_PREFIXES),
    is_git_internal: lambda path: ".git" in path.parts,
    is_sensitive_config: lambda path: path.name in _SENSITIVE,
}
"""The rules as spec 1 section 3.1 writes them."""

_PARTS = ["/", "..", ".git", ".env", "a.env.b", "~", "\\", "x.Pem", "etc", "usr2", "var/tmp", "Library", "id_rsa", "b"]


@given(st.lists(st.sampled_from(_PARTS), min_size=1, max_size=5).map("/".join) | st.text("/.envgitpm~\\", min_size=1))
def test_what_the_document_blocks_is_blocked(path: str) -> None:
    opened = [ours.__name__ for ours, theirs in DOCUMENT.items() if theirs(Path(path)) and not ours(Path(path))]
    assert opened == []


INVISIBLE = st.sampled_from("\u200b\u200d\u2060\ufeff\u00ad\U000e0041")
PLAIN = [(rule, path) for rule, paths in BLOCKED.items() for path in paths if path.isascii() and ".." not in path]


@given(st.sampled_from(PLAIN), st.randoms(use_true_random=False), INVISIBLE)
def test_no_case_and_no_invisible_character_opens_a_file(
    blocked: tuple[str, str], chance: random.Random, invisible: str
) -> None:
    rule, path = blocked
    letters = [chance.choice([letter.lower(), letter.upper()]) for letter in path]
    letters.insert(chance.randint(1, len(letters)), invisible)  # never first: an absolute path must stay absolute
    assert rule in rules_that_block("".join(letters))


def test_links_to_a_system_directory_are_followed(tmp_path: Path) -> None:
    link = tmp_path / "hosts"
    link.symlink_to("/etc/hosts")
    assert is_system_path(link)
    assert not is_system_path(tmp_path / "calc.py")


def test_path_is_resolved_against_the_current_folder_and_a_name_of_a_workspace_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/etc")
    assert rules_that_block("passwd") == ["system_path"]
    assert check_file_guardrails(WorkspacePath("passwd")).allowed
    assert judge_path("passwd", for_write=True, rules=DEFAULT_GUARDRAIL_RULES) is None


def test_path_that_cannot_be_resolved_is_blocked_only_where_the_disk_may_be_asked(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert is_system_path(loop)
    assert not is_system_path(PurePosixPath(loop))  # type: ignore[arg-type]  # a pure path has no disk to ask


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((name, True) for name in ("config.yaml", "app/settings.py", "pyproject.toml", "CARGO.TOML", ".envrc")),
        *((name, True) for name in (".vscode/settings.json", ".cursor/mcp.json", ".mcp.json", ".idea/workspace.xml")),
        *((name, True) for name in (".github/workflows/ci.yml", ".husky/pre-commit", ".bashrc", ".gitmodules")),
        *((name, True) for name in (".claude/commands/x.md", ".codex/x", ".devcontainer/devcontainer.json", ".zshrc")),
        *((name, True) for name in ("config.yml", ".pre-commit-config.yaml", ".bash_profile", ".profile", ".zprofile")),
        *((name, True) for name in ("tests/conftest.py", "package.json", "sub/CLAUDE.md", "requirements-dev.txt")),
        *((name, False) for name in ("config.py", "test_settings.py", "toml.py", "workflows/x.py", "vscode/x", ".")),
    ],
)
def test_what_counts_as_project_configuration(path: str, expected: bool) -> None:
    assert is_project_config(Path(path)) is expected


def test_what_runs_later_or_steers_tools_and_agents() -> None:
    """A manifest is in many a README, and a file of the standard library's name takes its place where it is new."""
    later = ".github/workflows/ci.yml a/conftest.py setup.py .venv/x.pth Dockerfile MAKEFILE .agents/skills/a/SKILL.md"
    assert all(runs_later(PurePosixPath(path)) for path in later.split())
    assert not any(runs_later(PurePosixPath(path), new=True) for path in ("pyproject.toml", "a/json.py", "calc.py"))
    modules = [PurePosixPath(path) for path in ("json.py", "src/unittest/__init__.py")]
    assert [(runs_later(path), runs_later(path, new=True)) for path in modules] == [(False, True)] * 2


def test_rule_that_fails_blocks() -> None:
    rules = (FileGuardrailRule("broken", "A broken rule", lambda path: bool(path.name[99])),)
    message = "Blocked by rule 'broken': A broken rule (its check raised IndexError)"
    assert check_file_guardrails(Path("calc.py"), rules).violations == (
        GuardrailViolation("broken", "A broken rule", "calc.py", message),
    )


def edit_file(path: str, old_str: str, new_str: str) -> dict[str, Any]:
    """Edit a file."""
    return {"path": path, "action": "edited", "text": old_str + new_str}


protected = create_protected_edit_file_tool(edit_file)


@pytest.mark.parametrize("path", ["a\0b", "loop"])
def test_protected_tool_blocks_a_path_that_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    assert protected(path, "a", "b") == {
        "path": path,
        "action": "blocked",
        "reason": "security_guardrail",
        "violations": [{"rule": "invalid_path", "description": "Paths that cannot be resolved"}],
    }


@pytest.mark.parametrize(
    "path", [".mendgraph.toml", "a/b/.mendgraph.toml", ".MendGraph.TOML", ".mendgraph.toml.", ".mend\u200bgraph.toml"]
)
def test_settings_are_known_by_every_spelling(path: str) -> None:
    assert is_own_settings(Path(path))
    refused = judge_path(path, True, (OWN_SETTINGS_RULE,))
    assert refused is not None
    assert refused.code is ToolErrorCode.PERMISSION_DENIED
    assert judge_path(path, False, (OWN_SETTINGS_RULE,)) is None
