"""The gate of the writing tools: an edit that an example contradicts is refused before anything is written."""

import posixpath

from nodes.execute_tools.environment.checks import Checks
from nodes.execute_tools.registry import ToolContext
from nodes.execute_tools.tools.evidence_gate import gate_verdict, plan_gate
from nodes.execute_tools.tools.example_results import read_run
from nodes.execute_tools.tools.examples import as_request
from nodes.records import ToolError, ToolErrorCode

_SHARE = 3
"""The gate may take one part in so many of the call's time."""


def judged_evidence(context: ToolContext, path: str, before: str | None, after: str) -> ToolError | None:
    """CHECK_FAILED where examples show that this edit is wrong, in words; `before` is None for a new file.

    None where the run is not gated, where there is nothing to run, and where it cannot be run.

    Raises:
        ScopeOverError: the call's time is over.
    """
    name = _relative(context, path)
    if not context.gated or not isinstance(context.checks, Checks) or name is None:
        return None
    if not context.checks.rules.evidence:
        return None
    plan = plan_gate(name, before, after, context.task)
    if plan is None:
        return None
    modules = [as_request(name, after, plan.examples)]
    if before is not None:
        modules.append(as_request(name, before, plan.examples if plan.compare else ()))
    checks = context.checks.in_scope(context.scope)
    answers = checks.run_examples(modules, context.timeout_s / _SHARE, first_decides=True)
    if isinstance(answers, ToolError):
        return None
    runs = [read_run(answer, len(plan.examples)) for answer in answers]
    told = gate_verdict(plan, runs[0], runs[1] if before is not None else None, checks.rules.examples_timeout_s)
    if told is None:
        return None
    return ToolError(code=ToolErrorCode.CHECK_FAILED, message=f"With this edit {told} So nothing was changed.")


def _relative(context: ToolContext, path: str) -> str | None:
    """The path below the workspace, or None where it leads out of it: who writes the file will say so."""
    clean = posixpath.normpath(path.removeprefix(f"{context.workspace.root}/"))
    return None if clean.startswith(("/", "..")) else clean
