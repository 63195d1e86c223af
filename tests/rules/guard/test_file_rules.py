"""File rules: which names are blocked, and that the agent cannot change its own settings."""

import os
import random
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.documents.protected_edit_tool import create_protected_edit_file_tool
from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    OWN_SETTINGS_RULE,
    FileGuardrailRule,
    GuardrailViolation,
    WorkspacePath,
    check_file_guardrails,
    is_own_settings,
    is_system_path,
)
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.guard.scope import is_project_config, runs_later
from mendgraph.nodes.records import ToolErrorCode
from tests.row_tables import rows

BLOCKED = {
    "env_file": [
        *(".env", "prod.env", ".env.local", "app/.env.production", "x.env.y", ".env.example", ".env-local"),
        *(".env_ci", ".ENV", ".env.", ".env ", ".e\u200bnv", "\uff0eenv", ".env~", ".env.swp", "prod.env.old"),
        *("a\\.env", "a.env.\\b", "A.Env.\\b", "/project/.env"),
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


@rows(*[(rule, path) for rule, paths in BLOCKED.items() for path in paths])
def test_sensitive_names_are_blocked_by_their_rule(rule: str, path: str) -> None:
    assert rule in rules_that_block(path)


@rows(*BENIGN)
def test_harmless_names_are_not_blocked(path: str) -> None:
    assert rules_that_block(path) == []


INVISIBLE = st.sampled_from("\u200b\u200d\u2060\ufeff\u00ad\U000e0041")
PLAIN = [(rule, path) for rule, paths in BLOCKED.items() for path in paths if path.isascii() and ".." not in path]


@given(st.sampled_from(PLAIN), st.randoms(use_true_random=False), INVISIBLE)
def test_case_and_invisible_characters_do_not_unblock_a_file(
    blocked: tuple[str, str], chance: random.Random, invisible: str
) -> None:
    rule, path = blocked
    letters = [chance.choice([letter.lower(), letter.upper()]) for letter in path]
    letters.insert(chance.randint(1, len(letters)), invisible)  # never first: an absolute path must stay absolute
    assert rule in rules_that_block("".join(letters))


def test_only_a_plain_path_is_resolved_against_the_current_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/etc")
    assert rules_that_block("passwd") == ["system_path"]
    assert check_file_guardrails(WorkspacePath("passwd")).allowed
    assert judge_path("passwd", for_write=True, rules=DEFAULT_GUARDRAIL_RULES) is None


def test_unresolvable_path_is_blocked_only_if_the_disk_may_be_read(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert is_system_path(loop)
    assert not is_system_path(PurePosixPath(loop))  # type: ignore[arg-type]  # a pure path has no disk to ask


CONFIGURATION = """
config.yaml app/settings.py pyproject.toml CARGO.TOML .envrc .vscode/settings.json .cursor/mcp.json .mcp.json config.yml
.idea/workspace.xml .github/workflows/ci.yml .husky/pre-commit .bashrc .gitmodules .claude/commands/x.md .codex/x .zshrc
.devcontainer/devcontainer.json .pre-commit-config.yaml .bash_profile .profile .zprofile tests/conftest.py package.json
sub/CLAUDE.md requirements-dev.txt
"""


def test_project_configuration_is_recognized_by_name() -> None:
    others = ("config.py", "test_settings.py", "toml.py", "workflows/x.py", "vscode/x", ".")
    assert [path for path in CONFIGURATION.split() if not is_project_config(Path(path))] == []
    assert [path for path in others if is_project_config(Path(path))] == []


def test_files_that_run_later_or_instruct_agents_are_recognized() -> None:
    """Manifests are too common to count, and a new file with the name of a standard module shadows it."""
    later = ".github/workflows/ci.yml a/conftest.py setup.py .venv/x.pth Dockerfile MAKEFILE .agents/skills/a/SKILL.md"
    assert all(runs_later(PurePosixPath(path)) for path in later.split())
    assert not any(runs_later(PurePosixPath(path), new=True) for path in ("pyproject.toml", "a/json.py", "calc.py"))
    modules = [PurePosixPath(path) for path in ("json.py", "src/unittest/__init__.py")]
    assert [(runs_later(path), runs_later(path, new=True)) for path in modules] == [(False, True)] * 2


def test_exception_in_a_rule_blocks() -> None:
    rules = (FileGuardrailRule("broken", "A broken rule", lambda path: bool(path.name[99])),)
    message = "Blocked by rule 'broken': A broken rule (its check raised IndexError)"
    assert check_file_guardrails(Path("calc.py"), rules).violations == (
        GuardrailViolation("broken", "A broken rule", "calc.py", message),
    )


def test_user_rule_blocks_an_unresolvable_path(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    rules = (FileGuardrailRule("none", "Nothing", lambda _: False),)
    [violation] = check_file_guardrails(tmp_path / "loop", rules).violations
    assert violation.message == "Blocked by rule 'none': Nothing (the path cannot be resolved)"


def test_protected_tool_blocks_an_unresolvable_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    protected = create_protected_edit_file_tool(lambda *called: pytest.fail(str(called)))
    for path in ("a\0b", "loop"):
        assert protected(path, "a", "b") == {
            "path": path,
            "action": "blocked",
            "reason": "security_guardrail",
            "violations": [{"rule": "invalid_path", "description": "Paths that cannot be resolved"}],
        }


@rows(".mendgraph.toml", "a/b/.mendgraph.toml", ".MendGraph.TOML", ".mendgraph.toml.", ".mend\u200bgraph.toml")
def test_own_settings_are_recognized_in_every_spelling(path: str) -> None:
    assert is_own_settings(Path(path))
    refused = judge_path(path, True, (OWN_SETTINGS_RULE,))
    assert refused is not None
    assert refused.code is ToolErrorCode.PERMISSION_DENIED
    assert judge_path(path, False, (OWN_SETTINGS_RULE,)) is None
