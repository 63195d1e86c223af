"""The files of a workspace, as guard's rules let them be used: by their names, and for what they hold."""

from collections.abc import Callable
from functools import partial

from nodes.execute_tools.environment.workspace import Workspace
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from nodes.guard.policy import judge_content, judge_path
from nodes.records import JsonMap


def judged_workspace(
    root: str,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
    observe: Callable[[JsonMap], None] | None = None,
    allowed_extensions: frozenset[str] = frozenset(),
) -> Workspace:
    """The workspace at `root` under these rules; see `Workspace` for the rest."""
    return Workspace(
        root,
        partial(judge_path, rules=rules),
        observe=observe,
        allowed_extensions=allowed_extensions,
        contents=partial(judge_content, rules=rules),
    )
