"""Spec 1's protected edit tool (section 3.3): the rules of `guard` around an edit function of the caller's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    FileGuardrailRule,
    real_path,
    rules_by_name,
    violations_of,
)

_PROTECTION_NOTE: Final = """

    SECURITY: This tool has guardrails that prevent editing:
    - Environment files (.env)
    - Private keys and certificates (.pem, .key)
    - System directories (/etc, /usr, etc.)
    - Git internal files (.git/)
    - Sensitive configuration files (secrets.yaml, credentials.json)
    """


def create_protected_edit_file_tool(
    base_tool: Callable[[str, str, str], dict[str, Any]], rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> Callable[[str, str, str], dict[str, Any]]:
    """Return an `edit_file(path, old_str, new_str)` that checks the rules before it calls `base_tool`.

    A blocked file gives `{"path", "action": "blocked", "reason": "security_guardrail", "violations"}`. The path is
    resolved once, with `~` and links, and `base_tool` receives the resolved path. The name before its links are
    followed is checked as well; a path that cannot be resolved is blocked.
    """

    def protected_edit_file(path: str, old_str: str, new_str: str) -> dict[str, Any]:
        try:
            name = Path(path).expanduser()
            resolved = real_path(name)
        except RuntimeError:  # nobody has the name behind `~`
            resolved = None

        if resolved is None:
            return _blocked(path, {"invalid_path": "Paths that cannot be resolved"})

        violations = (*violations_of(resolved, rules), *violations_of(name, rules_by_name(rules)))
        if violations:
            described = {violation.rule_name: violation.rule_description for violation in violations}
            return _blocked(str(resolved), described)

        return base_tool(str(resolved), old_str, new_str)

    protected_edit_file.__doc__ = (base_tool.__doc__ or "") + _PROTECTION_NOTE
    return protected_edit_file


def _blocked(path: str, rules: dict[str, str]) -> dict[str, Any]:
    violations = [{"rule": name, "description": description} for name, description in rules.items()]
    return {"path": path, "action": "blocked", "reason": "security_guardrail", "violations": violations}
