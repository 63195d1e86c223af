"""The verdict on each call: allowed, denied or to be approved. Pure; whatever is unknown is denied.

The checks in order: the tool is known and in the run's role; the loop override; every path lies in the workspace; the
file rules, for reading and writing; deletions, with `strict`; the mode. The `Workspace` checks each path again by its
real name on the disk, through `judge_path`.
"""

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Final, Literal

from mendgraph.nodes.guard import file_rules, scope as scopes
from mendgraph.nodes.guard.approval_formats import hunk_texts
from mendgraph.nodes.language.names import is_reference, names_elsewhere
from mendgraph.nodes.records import (
    CHANGING,
    CallError,
    CallResult,
    Effect,
    ExtractionErrorType,
    OverrideConstraint,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
)

Item = ToolCall | CallError
"""A call of a reply that fits its schema, or a malformed one."""

_LONGEST_ARGUMENT = 2_000
"""Characters of an argument that are repeated to the model."""

_CODES = {
    ExtractionErrorType.UNKNOWN_TOOL_NAME: ToolErrorCode.UNKNOWN_TOOL,
    ExtractionErrorType.TOO_MANY_CALLS: ToolErrorCode.RATE_LIMITED,
}

_NOT_JUDGED = ToolError(
    code=ToolErrorCode.PERMISSION_DENIED,
    message="This call was not approved, so it did not run. Do something else, or ask for it again.",
)


def workspace_relative(path: str, root: str) -> str | None:
    """Return the path relative to `root`, in POSIX form without `.` and `..`; "." is the workspace itself.

    `root` is the absolute real name of the workspace. The result is None for a path outside of it, for one like `~/a`,
    and for every path if `root` is not absolute.
    """
    if not root.startswith("/") or names_elsewhere(path):
        return None

    base = _absolute(root)
    target = _absolute(posixpath.join(base, path))
    if target == base:
        return "."

    prefix = base.rstrip("/") + "/"
    if target.startswith(prefix):
        return target.removeprefix(prefix)

    return None


def _absolute(path: str) -> str:
    # normpath keeps two leading slashes, which mean the same as one.
    return "/" + posixpath.normpath(path).lstrip("/")


def shown(path: str, limit: int = 200) -> str:
    """Return the path for a message: printable characters on one line, at most `limit` and an ellipsis."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."


def denied(
    rule: str, code: ToolErrorCode, message: str, suggestions: tuple[str, ...] = (), *, path: str = ""
) -> Verdict:
    """Return a denial by `rule`; the message for the model names the thing and the remedy."""
    error = ToolError(code=code, message=message, suggestions=suggestions)
    return Verdict(kind=VerdictKind.DENY, rule=rule, error=error, path=path)


def results_of_denied(items: Sequence[Item], verdicts: Sequence[Verdict]) -> list[CallResult | None]:
    """Return for each item the result of its denial, or None if the call may run.

    Everything that is not allowed counts as denied, also an unanswered request and an item without a verdict.
    """
    results: list[CallResult | None] = []

    for item, verdict in zip_longest(items, verdicts[: len(items)]):
        if verdict is not None and verdict.kind is VerdictKind.ALLOW:
            results.append(None)
            continue

        error = _NOT_JUDGED
        if verdict is not None and verdict.error is not None:
            error = verdict.error

        results.append(CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult(ok=False, error=error)))

    return results


def edited_result(item: Item, verdict: Verdict, result: CallResult) -> CallResult:
    """Return the result of a call that a person changed or allowed in part, with a note on that."""
    if verdict.hunks and result.changes:
        chosen = ", ".join(map(str, verdict.hunks))
        total = len(verdict.hunks) + len(hunk_texts(verdict.declined))
        notice = f"Of the hunks of this diff a person approved only {chosen}: the declined ones are not written."
        note = {"notice": notice, "hunks": f"{chosen} of {total}", "declined": _short(verdict.declined)}
        data = {**result.result.data, "approved_in_part": note}
        return result.model_copy(update={"result": ToolResult(ok=True, data=data)})

    if not verdict.edited or not isinstance(item, ToolCall):
        return result

    arguments = {name: _short(item.arguments.get(name)) for name in verdict.edited}
    notice = f"A person changed {', '.join(map(shown, verdict.edited))} of this call before it ran."
    error = result.result.error

    if error is None:
        data = {**result.result.data, "changed_by_person": {"notice": notice, "ran_with": arguments}}
        return result.model_copy(update={"result": ToolResult(ok=True, data=data)})

    arguments_text = json.dumps(arguments, ensure_ascii=False)
    error_told = error.model_copy(update={"message": f"{notice} It ran with {arguments_text}. {error.message}"})
    return result.model_copy(update={"result": ToolResult(ok=False, error=error_told)})


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > _LONGEST_ARGUMENT:
        return f"{value[:_LONGEST_ARGUMENT]}... {len(value) - _LONGEST_ARGUMENT} more characters"

    return value


Mode = Literal["read-only", "plan", "ask", "auto"]
Rules = tuple[file_rules.FileGuardrailRule, ...]
SignatureOf = Callable[[ToolCall, ToolSpec], str]
PathsOf = Callable[[ToolCall], Sequence[str]]
LeadsTo = Callable[[str, bool], str | ToolError]
"""Takes a path and whether it is for writing; returns its workspace-relative target, or the refusal."""


ASKED: Final = {
    Effect.WRITE: "ask_before_write",
    Effect.EXECUTE: "ask_before_run",
    Effect.NETWORK: "ask_before_network",
}
"""The rules by which mode `ask` requests approval."""

QUESTION_TOOL: Final = "ask_user"
QUESTION_RULE: Final = "question"
"""The rule of a call that asks a person a question: the decision about it is the answer."""

_NOT_NAMED: Final = "; not named by the user"
_SENSITIVE: Final = "sensitive_config"


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """The permissions of a run. `root` is the absolute real name of the workspace; without one, no path is allowed.

    `allowed` are the tools of the run's role, None means all. `paths_of` returns the paths of a call beside its path
    fields, as inside of a patch. `leads_to` resolves names that are not plainly below `root`. In mode "auto", `scope`
    restricts deletions; the `rules` restrict other changes, and the tools of `need_approval` are refused. Those that
    the user has `granted` run without a question in mode "ask". `questions`: a person may be asked by `ask_user`.
    """

    mode: Mode
    root: str
    leads_to: LeadsTo
    rules: Rules = file_rules.DEFAULT_GUARDRAIL_RULES
    allowed: frozenset[str] | None = None
    paths_of: PathsOf = lambda _: ()
    scope: scopes.Scope = field(default_factory=scopes.Scope)
    need_approval: frozenset[str] = frozenset()
    granted: frozenset[str] = frozenset()
    questions: bool = False


def judge_reply(
    items: Sequence[Item],
    config: GuardConfig,
    specs: Mapping[str, ToolSpec],
    overrides: Sequence[OverrideConstraint],
    signature_of: SignatureOf,
) -> list[Verdict]:
    """Return one verdict for each item, in order; malformed calls are denied with their error."""

    def judge(item: Item) -> Verdict:
        if isinstance(item, CallError):
            code = _CODES.get(item.error.error_type, ToolErrorCode.INVALID_ARGUMENT)
            place = ""
            if item.error.line_number:
                place = f" in line {item.error.line_number}"

            return denied("malformed", code, f"{item.error.error_type.name}{place}: {item.error.details}")

        spec = specs.get(item.tool)
        signature = signature_of(item, spec) if spec else ""
        return judge_call(item, spec, config, overrides, signature)

    return [judge(item) for item in items]


def judge_call(
    call: ToolCall, spec: ToolSpec | None, config: GuardConfig, overrides: Sequence[OverrideConstraint], signature: str
) -> Verdict:
    """Return the verdict on one call, with its first workspace-relative path, or an error for the model."""
    if spec is None:
        message = f"There is no tool '{shown(call.tool)}'. Call one of the tools that you were given."
        return denied("unknown_tool", ToolErrorCode.UNKNOWN_TOOL, message)

    if config.allowed is not None and spec.name not in config.allowed:
        message = f"The role of this run does not include {spec.name}. Use another tool, or answer without it."
        return denied("role", ToolErrorCode.PERMISSION_DENIED, message)

    for override in overrides:
        if override.signature == signature:
            return refuse_repeat(override)

    if config.questions and spec.name == QUESTION_TOOL:
        return Verdict(kind=VerdictKind.ASK, rule=QUESTION_RULE)

    targets: list[str] = []

    for named in paths_of_call(call, spec, config.paths_of):
        if isinstance(named, str) and is_reference(named):
            # A stored result of this run is no file of the workspace, so no file rule applies.
            if spec.effect is Effect.READ:
                continue

            message = f"{named} is a kept result, which can only be read. Write to a file of the workspace instead."
            return denied("kept_result", ToolErrorCode.INVALID_ARGUMENT, message)

        target = _locate(named, config, for_write=spec.effect is Effect.WRITE)
        if isinstance(target, Verdict):
            return target

        targets.append(target)

    # Implied checks read through the workspace, which denies them single files.
    refused = None if call.implied else _judge_files(targets, spec, config)
    if refused is None and spec.effect is Effect.WRITE and config.mode == "auto":
        refused = _judge_deletions(call, targets, config.scope)

    return refused or _judge_mode(targets, spec, config)


def judge_path(relative_path: str, for_write: bool, rules: Rules, root: str = "") -> ToolError | None:
    """Return PERMISSION_DENIED if a file rule blocks this name below the folder `root`, or None.

    Templates like `.env.example` may be read although `is_env_file` matches; `.npmrc` and `.pypirc` may be read if
    `judge_content` allows it.
    """
    violations = _violations(relative_path, rules, root, for_write=for_write)
    if violations:
        return _error_of(violations, relative_path)

    return None


def is_hidden(relative_path: str, rules: Rules, root: str = "") -> bool:
    """Return whether a file below the folder `root` is hidden from programs; certifi's certificates are not."""
    certificates = relative_path.endswith("site-packages/certifi/cacert.pem")
    return not certificates and judge_path(relative_path, False, rules, root) is not None


def is_refused(path: str, rules: Rules) -> bool:
    """Return whether a rule of the user blocks the file with this absolute path, also outside of the workspace."""
    return bool(file_rules.violations_of(Path(path), file_rules.rules_of_user(rules)))


def judge_content(relative_path: str, rules: Rules) -> Callable[[bytes], ToolError | None] | None:
    """Return a check of the first bytes of a file with this name, or None if only its name matters.

    The check applies if one of the rules, even a user's own, is called "sensitive_config".
    """
    rule = next((rule for rule in rules if rule.name == _SENSITIVE), None)
    if rule is None or not file_rules.judged_by_content(relative_path):
        return None

    path = PurePath(relative_path)

    def judge(data: bytes) -> ToolError | None:
        denial = file_rules.secret_content(path, data)
        if denial is None:
            return None

        blocked = f"Blocked by rule '{rule.name}': {rule.description} ({shown(relative_path)} holds {denial})"
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"{blocked}. Go on without this file.")

    return judge


def judge_workspace(root: str, rules: Rules) -> str | None:
    """Return why no run may use this folder as its workspace, or None."""
    denial = file_rules.SENSITIVE_FILES.reason_for(PurePath(root))
    if denial is None or all(rule.name != _SENSITIVE for rule in rules):
        return None

    return f"The workspace '{shown(root)}' holds {denial}: choose a project folder."


def paths_of_call(call: ToolCall, spec: ToolSpec, paths_of: PathsOf) -> list[object]:
    """Return the path arguments of a call as they were given."""
    paths: list[object] = []

    for field_name in spec.path_fields:
        value = call.arguments.get(field_name)
        if isinstance(value, list):
            paths += value
        elif value is not None:
            paths.append(value)

    return [*paths, *paths_of(call)]


def _locate(named: object, config: GuardConfig, *, for_write: bool) -> str | Verdict:
    if not isinstance(named, str):
        return denied("invalid_path", ToolErrorCode.INVALID_ARGUMENT, "A path must be text, such as '.' or 'src/a.py'.")

    target = plain_target(named, config.root)
    if target is not None:
        return target

    resolved = config.leads_to(named, for_write)
    if isinstance(resolved, ToolError):
        return Verdict(kind=VerdictKind.DENY, rule="workspace_boundary", error=resolved)

    return workspace_relative(named, config.root) or resolved


def plain_target(named: object, root: str) -> str | None:
    """Return the workspace file for a plain name, or None if the disk has to be read to resolve it."""
    if not isinstance(named, str) or not named.strip() or not named.isprintable() or "\\" in named:
        return None
    return workspace_relative(named, root)


def _judge_files(targets: Sequence[str], spec: ToolSpec, config: GuardConfig) -> Verdict | None:
    """Return the denial of the first file that a rule blocks, or None."""
    for_write = spec.effect is Effect.WRITE

    for target in targets:
        violations = _violations(target, config.rules, config.root, for_write=for_write)
        if not violations:
            continue

        first = violations[0]
        blocked = ""
        refused = ""

        if for_write:
            shown_violations = tuple(violation._replace(file_path=shown(target)) for violation in violations)
            result = file_rules.GuardrailResult(False, shown_violations)
            blocked = file_rules.format_guardrail_violations(result)
            description = first.rule_description
            reason = _reason(violations, target) or f"{description[:1].lower()}{description[1:]}"
            if first.rule_name == scopes.PROTECTED_RULE:
                reason += _NOT_NAMED

            refused = refused_words(reason)

        return Verdict(
            kind=VerdictKind.DENY,
            rule=first.rule_name,
            error=_error_of(violations, target),
            path=target,
            blocked=blocked,
            refused=refused,
        )

    return None


def _judge_deletions(call: ToolCall, targets: Sequence[str], scope: scopes.Scope) -> Verdict | None:
    for target in targets:
        reason = scope.deletion(call, target)
        if reason:
            message = f"{shown(target)} may be deleted only where the request names it. Go on without that, and say so."
            verdict = denied("strict", ToolErrorCode.PERMISSION_DENIED, message, path=target)
            return verdict.model_copy(update={"refused": refused_words(reason + _NOT_NAMED)})

    return None


def refused_words(reason: str) -> str:
    """Return the prefix of a refused call in reports."""
    return f"refused ({reason}):"


def _judge_mode(targets: Sequence[str], spec: ToolSpec, config: GuardConfig) -> Verdict:
    mode = config.mode
    path = targets[0] if targets else ""
    if mode == "auto" and spec.name in config.need_approval:
        message = f"{spec.name} runs only if a person approves it, and nobody is asked here. Do without it."
        verdict = denied("not_allowed", ToolErrorCode.APPROVAL_REQUIRED, message, path=path)
        return verdict.model_copy(update={"refused": refused_words("not allowed without approval")})

    granted = mode == "ask" and spec.name in config.granted
    only_looks = mode in {"read-only", "plan"} and spec.effect not in CHANGING
    if spec.effect not in ASKED or mode == "auto" or granted or only_looks:
        return Verdict(kind=VerdictKind.ALLOW, path=path)

    if mode == "ask":
        rule = ASKED[spec.effect]
        if spec.effect is Effect.WRITE and any(scopes.why_asked(PurePath(target)) for target in targets):
            rule = scopes.PROJECT_CONFIG_RULE.name

        return Verdict(kind=VerdictKind.ASK, rule=rule, path=path)

    remedy = "Answer without changes."
    if mode == "plan":
        remedy = "Answer with the plan."

    message = f"This run may look at files but not change them, so {spec.name} is refused. {remedy}"
    return denied("read_only", ToolErrorCode.PERMISSION_DENIED, message, path=path)


def refuse_repeat(override: OverrideConstraint) -> Verdict:
    """Return the denial of a repeated call."""
    target = f" on '{shown(override.target)}'" if override.target else ""
    message = (
        f"{override.tool}{target} was called {override.repeats} times with the same arguments and is now refused. "
        "Do something else: use what you have seen, change the arguments, or give your final answer."
    )

    return denied("loop_override", ToolErrorCode.LOOP_OVERRIDE, message, path=override.target)


def _violations(target: str, rules: Rules, root: str, *, for_write: bool) -> tuple[file_rules.GuardrailViolation, ...]:
    rule_count = len(file_rules.DEFAULT_GUARDRAIL_RULES)
    if target.startswith("/") or rules[:rule_count] != file_rules.DEFAULT_GUARDRAIL_RULES:
        return _violated(target, rules, root, for_write=for_write)

    of_user = _violated(target, rules[rule_count:], root, for_write=for_write)
    if file_rules.is_unsuspicious(target):
        return of_user

    return _violated_by_default(target, for_write) + of_user


@lru_cache(maxsize=1_024)
def _violated_by_default(target: str, for_write: bool) -> tuple[file_rules.GuardrailViolation, ...]:
    """Cached, as each name is checked several times; for relative names these rules use the text only."""
    return _violated(target, file_rules.DEFAULT_GUARDRAIL_RULES, "", for_write=for_write)


def _violated(target: str, rules: Rules, root: str, *, for_write: bool) -> tuple[file_rules.GuardrailViolation, ...]:
    if not for_write:
        rules = tuple(rule for rule in rules if not file_rules.is_for_changes(rule))
    if not rules:
        return ()

    path = file_rules.WorkspacePath(target)
    violations = file_rules.violations_of(path, rules, root)
    if for_write or not violations:
        return violations

    waived = []
    if file_rules.is_readable_template(path):
        waived.append(file_rules.is_env_file)

    if file_rules.is_readable_login(path):
        waived.append(file_rules.is_sensitive_config)

    rules_for_reading = tuple(rule for rule in rules if rule.check not in waived)
    return file_rules.violations_of(path, rules_for_reading, root)


def _error_of(violations: Sequence[file_rules.GuardrailViolation], target: str) -> ToolError:
    reasons = "; ".join(violation.message for violation in violations)
    reason = _reason(violations, target)
    place = f"{shown(target)}: {reason}" if reason else shown(target)
    remedy = "Go on without this file"
    if violations[0].rule_name == scopes.PROTECTED_RULE:
        remedy += ", and say so"

    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"{reasons} ({place}). {remedy}.")


def _reason(violations: Sequence[file_rules.GuardrailViolation], target: str) -> str:
    """Return the reason from the tables for a denied file, or ""."""
    path = PurePath(target)
    for table in (file_rules.KEY_FILES, file_rules.SENSITIVE_FILES, file_rules.PACKAGE_LOGINS):
        reason = table.reason_for(path)
        if reason:
            return reason

    if violations[0].rule_name == scopes.PROTECTED_RULE:
        return scopes.Scope(strict=True).protection(target)

    return ""
