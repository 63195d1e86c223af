"""Which files an agent must leave alone, by name (spec 1, section 3).

The five default rules are the specification's, hardened: names are compared folded (`secret_files.folded`), so
`.ENV`, `.env.` and `.e<zero width>nv` are all `.env`, and a backup (`.env~`, `server.key.bak`) counts as what it
copies. The rules look at names only, so they hold for files that do not exist yet; the names are those of
`secret_files`, which also knows the secrets that only a file's content tells of. The disk is asked in two places, only
to follow links: by `is_system_path` for a `Path`, and by `create_protected_edit_file_tool`'s tool. A name of a
workspace is a `WorkspacePath`, which means the same wherever the process stands.

Not blocked: `.envrc`. It is no `.env` file by the specification's wording, and direnv runs it only after a person has
allowed its exact content; it counts as project configuration instead.
"""

from collections.abc import Callable
from pathlib import Path, PosixPath, PurePath
from typing import Any, Final, NamedTuple

from mendgraph.nodes.guard.secret_files import (
    KEY_FILES,
    PACKAGE_LOGINS,
    SENSITIVE_FILES,
    climbs,
    folded_parts,
    plain_path,
)


class WorkspacePath(PosixPath):
    """A name seen from the workspace: the current folder says nothing about where it leads."""


class FileGuardrailRule(NamedTuple):
    """A named reason to leave a file alone. `check` answers True for a file that is blocked."""

    name: str
    description: str
    check: Callable[[Path], bool]


class GuardrailViolation(NamedTuple):
    """One rule that blocks one file."""

    rule_name: str
    rule_description: str
    file_path: str
    message: str


class GuardrailResult(NamedTuple):
    """Whether a file may be edited, and every rule that says no, in the order of the rules."""

    allowed: bool
    violations: tuple[GuardrailViolation, ...]


_GIT_NAMES = frozenset({".git", "git~1"})  # the second is its short name on Windows volumes
_READABLE_TEMPLATES = frozenset({".env.example", ".env.sample", ".env.template"})
_SYSTEM_PREFIXES = (
    *("/etc", "/usr", "/bin", "/sbin", "/var", "/system", "/library"),  # Source: spec 1 section 3
    *("/private/etc", "/private/var"),
)
_OWN_ON_MACOS = ("/private/var/folders/", "/private/var/tmp/")
_OWN_AS_WRITTEN = (*_OWN_ON_MACOS, "/var/folders/", "/var/tmp/", "/var/home/")  # noqa: S108 - only compared
"""People's own folders; a name that stays below `/var` when it is resolved is the system's, as the document has it."""
_PROJECT_FILES = ("config.yaml", "config.yml", "settings.py", ".gitmodules", ".pre-commit-config.yaml", ".mcp.json")
_SHELL_FILES = (".envrc", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile")
_CONFIG_NAMES = frozenset({*_PROJECT_FILES, *_SHELL_FILES})
_CONFIG_FOLDERS = frozenset({".vscode", ".idea", ".cursor", ".claude", ".codex", ".devcontainer", ".husky", ".github"})


def is_env_file(path: Path) -> bool:
    """Is this an environment file? `.env`, `prod.env`, `.env.local` and `.env-local` are; `environment.py` is not."""
    name = plain_path(path).rpartition("/")[2]
    return name.endswith(".env") or ".env." in name or ".env." in path.name or name.startswith((".env-", ".env_"))


def is_private_key(path: Path) -> bool:
    """Is this a private key, a certificate or a key store, by its extension?"""
    return KEY_FILES.held(path) is not None


def is_system_path(path: Path) -> bool:
    """Is this in a system directory, as it is written or as it resolves, by the first letters of its folded name?

    A `Path` is resolved, against the current folder where it is relative; one that cannot be resolved is blocked. As it
    is written, a path that climbs out of its starting point is judged as if it reached the root. A relative
    `WorkspacePath` and a pure path are not resolved. Source: spec 1 section 3, seven prefixes (`/usr2/x` begins so).
    """
    if (path.is_absolute() or climbs(path)) and _is_below_system(path, _OWN_AS_WRITTEN):
        return True
    if not isinstance(path, Path) or (isinstance(path, WorkspacePath) and not path.is_absolute()):
        return False
    real = _real(path)
    return real is None or _is_below_system(real, _OWN_ON_MACOS)


def is_git_internal(path: Path) -> bool:
    """Is `.git` a part of this, at any depth? `.gitignore` and `.github/` are not."""
    return not _GIT_NAMES.isdisjoint((*path.parts, *folded_parts(path)))


def is_sensitive_config(path: Path) -> bool:
    """Does this name promise secrets: credentials, tokens, keys, histories? `id_rsa.pub` and `secrets.py` do not."""
    return SENSITIVE_FILES.held(path) is not None or PACKAGE_LOGINS.held(path) is not None


def is_project_config(path: Path) -> bool:
    """Is this project configuration, or a file that other programs run later (editors, hooks, agents, CI)?

    Source: spec 1 section 3, threat model (`config.yaml`, `settings.py`, `*.toml`).
    """
    parts = folded_parts(path)
    name = parts[-1] if parts else ""
    return name in _CONFIG_NAMES or name.endswith(".toml") or not _CONFIG_FOLDERS.isdisjoint(parts[:-1])


def is_readable_template(path: Path) -> bool:
    """Is this an environment file without secrets? It may be read, though not edited."""
    return folded_parts(path)[-1:] in {(name,) for name in _READABLE_TEMPLATES}


def is_readable_login(path: Path) -> bool:
    """Is this `.npmrc` or `.pypirc`? It may be read where it holds no secret (`judge_content`), though not edited."""
    return PACKAGE_LOGINS.held(path) is not None and SENSITIVE_FILES.held(path) is None


DEFAULT_GUARDRAIL_RULES: tuple[FileGuardrailRule, ...] = (
    FileGuardrailRule("env_file", "Environment variable files", is_env_file),
    FileGuardrailRule("private_key", "Private keys and certificates", is_private_key),
    FileGuardrailRule("system_path", "System directories", is_system_path),
    FileGuardrailRule("git_internal", "Git internal files", is_git_internal),
    FileGuardrailRule("sensitive_config", "Sensitive configuration files", is_sensitive_config),
)

PROJECT_CONFIG_RULE = FileGuardrailRule("project_config", "Project configuration files", is_project_config)
"""Not a default rule: it never blocks, it asks a person where one can be asked."""


def check_file_guardrails(
    path: Path, rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> GuardrailResult:
    """Whether the file may be edited. A rule that raises an exception blocks: an answer is missing, not positive."""
    violations = tuple(
        GuardrailViolation(
            rule_name=rule.name,
            rule_description=rule.description,
            file_path=str(path),
            message=f"Blocked by rule '{rule.name}': {rule.description}",
        )
        for rule in rules
        if _blocks(rule, path)
    )
    return GuardrailResult(allowed=not violations, violations=violations)


def format_guardrail_violations(result: GuardrailResult) -> str:
    """The violations for a person, four lines for one rule; "" when the file is allowed."""
    if result.allowed:
        return ""
    lines = ["⛔ FILE EDIT BLOCKED - Security Guardrail Triggered:"]
    for violation in result.violations:
        lines.append(f"  Rule: {violation.rule_name}")
        lines.append(f"  Reason: {violation.rule_description}")
        lines.append(f"  Path: {violation.file_path}")
    return "\n".join(lines)


_PROTECTION_NOTE = """

    SECURITY: This tool has guardrails that prevent editing:
    - Environment files (.env)
    - Private keys and certificates (.pem, .key)
    - System directories (/etc, /usr, etc.)
    - Git internal files (.git/)
    - Sensitive configuration files (secrets.yaml, credentials.json)
    """


def create_protected_edit_file_tool(
    base_tool: Callable[[str, str, str], dict[str, Any]],
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
) -> Callable[[str, str, str], dict[str, Any]]:
    """An `edit_file(path, old_str, new_str)` that asks the rules first; `base_tool` itself stays as it is.

    A blocked file gives `{"path", "action": "blocked", "reason": "security_guardrail", "violations"}` and `base_tool`
    is not called. Both the name as given and the file that its links lead to are judged, and a path that leads
    nowhere readable is blocked. This wrapper is for tools of your own; the machine's tools are judged by `policy`.
    """

    def protected_edit_file(path: str, old_str: str, new_str: str) -> dict[str, Any]:
        resolved = _real(Path(path))
        if resolved is None:
            return _blocked(path, {"invalid_path": "Paths that cannot be resolved"})
        violations = (
            *check_file_guardrails(resolved, rules).violations,
            *check_file_guardrails(Path(path), rules).violations,
        )
        if violations:
            return _blocked(str(resolved), {v.rule_name: v.rule_description for v in violations})
        return base_tool(path, old_str, new_str)

    protected_edit_file.__doc__ = (base_tool.__doc__ or "") + _PROTECTION_NOTE
    return protected_edit_file


def _blocked(path: str, rules: dict[str, str]) -> dict[str, Any]:
    violations = [{"rule": name, "description": description} for name, description in rules.items()]
    return {"path": path, "action": "blocked", "reason": "security_guardrail", "violations": violations}


def _blocks(rule: FileGuardrailRule, path: Path) -> bool:
    try:
        return bool(rule.check(path))
    except Exception:  # noqa: BLE001 - a user's rule may fail in any way, and none of them may open the file
        return True


def _is_below_system(path: PurePath, own: tuple[str, ...]) -> bool:
    name = f"/{'/'.join(folded_parts(path))}/"
    return name.startswith(_SYSTEM_PREFIXES) and not name.startswith(own)


def _real(path: Path) -> Path | None:
    """Where the links lead, or None where they lead in a circle, which a lenient resolve tells only before 3.13."""
    try:
        return path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def is_own_settings(path: Path) -> bool:
    """Is this a `.mendgraph.toml`, in any folder: each can be the workspace of a later run?"""
    return folded_parts(path)[-1:] == (".mendgraph.toml",)


OWN_SETTINGS_RULE: Final = FileGuardrailRule("own_settings", "Settings of the agent itself", is_own_settings)
"""Holds for every run beside its other rules, and for changes alone: what the file says is no secret."""
