"""The code of document 1, unchanged but without docstrings, to compare ours with."""

import json
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

# --- Section 1


class ExtractionErrorType(Enum):
    MISSING_TOOL_PREFIX = auto()
    MISSING_OPENING_PAREN = auto()
    MISSING_CLOSING_PAREN = auto()
    INVALID_JSON_SYNTAX = auto()
    EMPTY_TOOL_NAME = auto()
    UNKNOWN_TOOL_NAME = auto()


class ExtractionError(NamedTuple):
    error_type: ExtractionErrorType
    line_number: int
    line_content: str
    details: str


class ToolInvocation(NamedTuple):
    tool_name: str
    args: dict[str, Any]
    line_number: int


ExtractionResult = ToolInvocation | ExtractionError


def parse_tool_line(line: str, line_number: int, known_tools: frozenset[str]) -> ExtractionResult:
    stripped = line.strip()
    if not stripped.startswith("tool:"):
        return ExtractionError(
            error_type=ExtractionErrorType.MISSING_TOOL_PREFIX,
            line_number=line_number,
            line_content=line,
            details="Line does not start with 'tool:' prefix",
        )
    after_prefix = stripped[len("tool:") :].strip()
    if "(" not in after_prefix:
        return ExtractionError(
            error_type=ExtractionErrorType.MISSING_OPENING_PAREN,
            line_number=line_number,
            line_content=line,
            details=f"Missing '(' in tool invocation: '{after_prefix}'",
        )
    name, after_parenthesis = after_prefix.split("(", 1)
    name = name.strip()
    if not name:
        return ExtractionError(
            error_type=ExtractionErrorType.EMPTY_TOOL_NAME,
            line_number=line_number,
            line_content=line,
            details="Tool name is empty",
        )
    if name not in known_tools:
        return ExtractionError(
            error_type=ExtractionErrorType.UNKNOWN_TOOL_NAME,
            line_number=line_number,
            line_content=line,
            details=f"Unknown tool '{name}'. Available: {sorted(known_tools)}",
        )
    if not after_parenthesis.endswith(")"):
        return ExtractionError(
            error_type=ExtractionErrorType.MISSING_CLOSING_PAREN,
            line_number=line_number,
            line_content=line,
            details=f"Missing closing ')' in: '{after_parenthesis}'",
        )
    json_str = after_parenthesis[:-1].strip()
    try:
        args = json.loads(json_str)
        return ToolInvocation(tool_name=name, args=args, line_number=line_number)
    except json.JSONDecodeError as e:
        return ExtractionError(
            error_type=ExtractionErrorType.INVALID_JSON_SYNTAX,
            line_number=line_number,
            line_content=line,
            details=f"JSON parse error: {e.msg} at position {e.pos}. JSON: '{json_str}'",
        )


def extract_tool_invocations_with_errors(
    text: str, known_tools: frozenset[str]
) -> tuple[list[ToolInvocation], list[ExtractionError]]:
    results = [
        parse_tool_line(line, idx + 1, known_tools)
        for idx, line in enumerate(text.splitlines())
        if line.strip().startswith("tool:")
    ]
    successes = [r for r in results if isinstance(r, ToolInvocation)]
    errors = [r for r in results if isinstance(r, ExtractionError)]
    return (successes, errors)


def format_extraction_errors(errors: list[ExtractionError]) -> str:
    if not errors:
        return ""
    lines = ["Tool Extraction Errors:"]
    for err in errors:
        lines.append(f"  Line {err.line_number}: [{err.error_type.name}]")
        lines.append(f"    Content: {err.line_content[:80]}...")
        lines.append(f"    Details: {err.details}")
    return "\n".join(lines)


# --- Section 2


class SelfHealingConfig(NamedTuple):
    max_retries: int = 3
    include_error_details: bool = True
    include_format_reminder: bool = True


DEFAULT_SELF_HEALING_CONFIG = SelfHealingConfig()


def generate_corrective_prompt(
    errors: list[ExtractionError],
    original_response: str,  # noqa: ARG001 - the document's parameter, which it does not use
    config: SelfHealingConfig,
) -> str:
    prompt_parts = ["I could not parse your tool invocation. Please fix the following issues:"]
    if config.include_error_details:
        for err in errors:
            prompt_parts.append(f"- {err.error_type.name}: {err.details}")
    if config.include_format_reminder:
        prompt_parts.append("")
        prompt_parts.append("Reminder of correct format:")
        prompt_parts.append('  tool: TOOL_NAME({"param": "value"})')
        prompt_parts.append("")
        prompt_parts.append("Requirements:")
        prompt_parts.append("  - Use compact single-line JSON")
        prompt_parts.append("  - Use double quotes for strings")
        prompt_parts.append("  - Ensure parentheses are balanced")
    prompt_parts.append("")
    prompt_parts.append("Please retry your response with the correct format.")
    return "\n".join(prompt_parts)


class HealingAttempt(NamedTuple):
    attempt_number: int
    original_response: str
    errors: list[ExtractionError]
    corrective_prompt: str


class HealingResult(NamedTuple):
    success: bool
    invocations: list[ToolInvocation]
    final_response: str
    attempts: tuple[HealingAttempt, ...]


def attempt_extraction_with_healing(
    get_llm_response: Callable[[list[dict[str, Any]]], str],
    conversation: list[dict[str, Any]],
    known_tools: frozenset[str],
    config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG,
) -> HealingResult:
    def heal_recursive(
        current_conversation: list[dict[str, Any]], attempt: int, history: tuple[HealingAttempt, ...]
    ) -> HealingResult:
        response = get_llm_response(current_conversation)
        invocations, errors = extract_tool_invocations_with_errors(response, known_tools)
        if invocations or not any(line.strip().startswith("tool:") for line in response.splitlines()):
            return HealingResult(success=True, invocations=invocations, final_response=response, attempts=history)
        if attempt >= config.max_retries:
            return HealingResult(success=False, invocations=[], final_response=response, attempts=history)
        corrective_prompt = generate_corrective_prompt(errors, response, config)
        new_attempt = HealingAttempt(
            attempt_number=attempt, original_response=response, errors=errors, corrective_prompt=corrective_prompt
        )
        updated_conversation = [
            *current_conversation,
            {"role": "assistant", "content": [{"type": "text", "text": response}]},
            {"role": "user", "content": [{"type": "text", "text": corrective_prompt}]},
        ]
        return heal_recursive(updated_conversation, attempt + 1, (*history, new_attempt))

    return heal_recursive(conversation, 0, ())


# --- Section 3


class FileGuardrailRule(NamedTuple):
    name: str
    description: str
    check: Callable[[Path], bool]


def is_env_file(path: Path) -> bool:
    return path.name == ".env" or path.suffix == ".env" or ".env." in path.name


def is_private_key(path: Path) -> bool:
    blocked_extensions = frozenset({".pem", ".key", ".p12", ".pfx", ".crt", ".cer"})
    return path.suffix.lower() in blocked_extensions


def is_system_path(path: Path) -> bool:
    system_prefixes = ("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library")
    resolved = str(path.resolve())
    return any(resolved.startswith(prefix) for prefix in system_prefixes)


def is_git_internal(path: Path) -> bool:
    return ".git" in path.parts


SENSITIVE_NAMES = (
    *("secrets.yaml", "secrets.yml", "secrets.json", "credentials.json", "credentials.yaml"),
    *(".npmrc", ".pypirc", ".netrc", "id_rsa", "id_ed25519", "id_ecdsa"),
)


def is_sensitive_config(path: Path) -> bool:
    sensitive_names = frozenset(SENSITIVE_NAMES)
    return path.name in sensitive_names


DEFAULT_GUARDRAIL_RULES: tuple[FileGuardrailRule, ...] = (
    FileGuardrailRule("env_file", "Environment variable files", is_env_file),
    FileGuardrailRule("private_key", "Private keys and certificates", is_private_key),
    FileGuardrailRule("system_path", "System directories", is_system_path),
    FileGuardrailRule("git_internal", "Git internal files", is_git_internal),
    FileGuardrailRule("sensitive_config", "Sensitive configuration files", is_sensitive_config),
)


class GuardrailViolation(NamedTuple):
    rule_name: str
    rule_description: str
    file_path: str
    message: str


class GuardrailResult(NamedTuple):
    allowed: bool
    violations: tuple[GuardrailViolation, ...]


def check_file_guardrails(
    path: Path, rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> GuardrailResult:
    violations = tuple(
        GuardrailViolation(
            rule_name=rule.name,
            rule_description=rule.description,
            file_path=str(path),
            message=f"Blocked by rule '{rule.name}': {rule.description}",
        )
        for rule in rules
        if rule.check(path)
    )
    return GuardrailResult(allowed=len(violations) == 0, violations=violations)


def format_guardrail_violations(result: GuardrailResult) -> str:
    if result.allowed:
        return ""
    lines = ["⛔ FILE EDIT BLOCKED - Security Guardrail Triggered:"]
    for v in result.violations:
        lines.append(f"  Rule: {v.rule_name}")
        lines.append(f"  Reason: {v.rule_description}")
        lines.append(f"  Path: {v.file_path}")
    return "\n".join(lines)


def create_protected_edit_file_tool(
    base_tool: Callable[[str, str, str], dict[str, Any]], rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> Callable[[str, str, str], dict[str, Any]]:
    def protected_edit_file(path: str, old_str: str, new_str: str) -> dict[str, Any]:
        resolved_path = Path(path).expanduser().resolve()  # `resolve_abs_path`, which the document does not show
        guardrail_result = check_file_guardrails(resolved_path, rules)
        if not guardrail_result.allowed:
            return {
                "path": str(resolved_path),
                "action": "blocked",
                "reason": "security_guardrail",
                "violations": [
                    {"rule": v.rule_name, "description": v.rule_description} for v in guardrail_result.violations
                ],
            }
        return base_tool(path, old_str, new_str)

    protected_edit_file.__doc__ = (
        str(base_tool.__doc__)
        + """
    
    SECURITY: This tool has guardrails that prevent editing:
    - Environment files (.env)
    - Private keys and certificates (.pem, .key)
    - System directories (/etc, /usr, etc.)
    - Git internal files (.git/)
    - Sensitive configuration files (secrets.yaml, credentials.json)
    """  # noqa: W293
    )
    return protected_edit_file


# --- Section 4


class APIUsageStats(NamedTuple):
    total_calls: int
    total_input_tokens: int
    total_output_tokens: int
    calls_in_current_turn: int


class APILimits(NamedTuple):
    max_calls_per_session: int = 100
    max_calls_per_turn: int = 10
    max_input_tokens_per_session: int = 100_000
    max_output_tokens_per_session: int = 50_000


DEFAULT_API_LIMITS = APILimits()
INITIAL_API_USAGE = APIUsageStats(total_calls=0, total_input_tokens=0, total_output_tokens=0, calls_in_current_turn=0)


class LimitExceeded(NamedTuple):
    limit_name: str
    current_value: int
    max_value: int
    message: str


class LimitCheckResult(NamedTuple):
    allowed: bool
    exceeded: LimitExceeded | None


def check_api_limits(usage: APIUsageStats, limits: APILimits = DEFAULT_API_LIMITS) -> LimitCheckResult:
    checks = [
        ("max_calls_per_session", usage.total_calls, limits.max_calls_per_session),
        ("max_calls_per_turn", usage.calls_in_current_turn, limits.max_calls_per_turn),
        ("max_input_tokens_per_session", usage.total_input_tokens, limits.max_input_tokens_per_session),
        ("max_output_tokens_per_session", usage.total_output_tokens, limits.max_output_tokens_per_session),
    ]
    for limit_name, current, maximum in checks:
        if current >= maximum:
            return LimitCheckResult(
                allowed=False,
                exceeded=LimitExceeded(
                    limit_name=limit_name,
                    current_value=current,
                    max_value=maximum,
                    message=f"Limit '{limit_name}' exceeded: {current}/{maximum}",
                ),
            )
    return LimitCheckResult(allowed=True, exceeded=None)


def update_usage_after_call(usage: APIUsageStats, input_tokens: int, output_tokens: int) -> APIUsageStats:
    return APIUsageStats(
        total_calls=usage.total_calls + 1,
        total_input_tokens=usage.total_input_tokens + input_tokens,
        total_output_tokens=usage.total_output_tokens + output_tokens,
        calls_in_current_turn=usage.calls_in_current_turn + 1,
    )


def reset_turn_usage(usage: APIUsageStats) -> APIUsageStats:
    return APIUsageStats(
        total_calls=usage.total_calls,
        total_input_tokens=usage.total_input_tokens,
        total_output_tokens=usage.total_output_tokens,
        calls_in_current_turn=0,
    )


def format_usage_stats(usage: APIUsageStats, limits: APILimits) -> str:
    return f"""
API Usage Stats:
  Calls: {usage.total_calls}/{limits.max_calls_per_session}
  Turn Calls: {usage.calls_in_current_turn}/{limits.max_calls_per_turn}
  Input Tokens: {usage.total_input_tokens}/{limits.max_input_tokens_per_session}
  Output Tokens: {usage.total_output_tokens}/{limits.max_output_tokens_per_session}
""".strip()


def create_rate_limited_llm_caller(
    base_caller: Callable[[list[dict[str, Any]]], Any], limits: APILimits = DEFAULT_API_LIMITS
) -> Any:
    state = {"usage": INITIAL_API_USAGE}

    def rate_limited_call(conversation: list[dict[str, Any]]) -> dict[str, Any]:
        limit_result = check_api_limits(state["usage"], limits)
        if not limit_result.allowed:
            return {
                "success": False,
                "error": "rate_limit_exceeded",
                "content": None,
                "details": limit_result.exceeded._asdict() if limit_result.exceeded else {},
            }
        try:
            response = base_caller(conversation)
            input_tokens = getattr(response.usage, "prompt_tokens", 0)
            output_tokens = getattr(response.usage, "completion_tokens", 0)
            content = response.choices[0].message.content
            state["usage"] = update_usage_after_call(state["usage"], input_tokens, output_tokens)
            return {"success": True, "error": None, "content": content, "usage": state["usage"]._asdict()}
        except Exception as e:  # noqa: BLE001 - as it stands there
            return {"success": False, "error": "api_error", "content": None, "details": str(e)}

    def reset_turn() -> None:
        state["usage"] = reset_turn_usage(state["usage"])

    def get_usage() -> APIUsageStats:
        return state["usage"]

    caller: Any = rate_limited_call
    caller.reset_turn = reset_turn
    caller.get_usage = get_usage
    return caller


# --- To compare the document's values with ours


def plain(value: Any) -> Any:
    """A record as the name of its class and its fields, an enum's member as its name; lists and tuples stay apart."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return type(value).__name__, {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return value
