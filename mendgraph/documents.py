"""The names of the five documents that mendgraph implements, from one module; `docs/documents.md` says what each does.

Each is the very object that the running agent uses, or a thin form of it for programs of your own.
"""

from mendgraph.nodes.call_model.budget import (
    DEFAULT_API_LIMITS,
    INITIAL_API_USAGE,
    APILimits,
    APIUsageStats,
    LimitCheckResult,
    LimitExceeded,
    check_api_limits,
    format_usage_stats,
    reset_turn_usage,
    update_usage_after_call,
)
from mendgraph.nodes.documents.agent_language import AgentLanguage, Invocation
from mendgraph.nodes.documents.environment import Environment, ExecResult
from mendgraph.nodes.documents.healing import attempt_extraction_with_healing
from mendgraph.nodes.documents.memory import Memory
from mendgraph.nodes.documents.protected_edit_tool import create_protected_edit_file_tool
from mendgraph.nodes.documents.rate_limited_caller import create_rate_limited_llm_caller
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig
from mendgraph.nodes.execute_tools.registry import Action, ActionError, ActionRegistry
from mendgraph.nodes.execute_tools.tool_outcome import GuardrailError, RetryableToolError, ToolOutcome as ToolRun
from mendgraph.nodes.execute_tools.trace import TraceEvent, TraceSink
from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    FileGuardrailRule,
    GuardrailResult,
    GuardrailViolation,
    check_file_guardrails,
    format_guardrail_violations,
    is_env_file,
    is_git_internal,
    is_private_key,
    is_sensitive_config,
    is_system_path,
)
from mendgraph.nodes.heal.corrective_prompt import (
    DEFAULT_SELF_HEALING_CONFIG,
    HealingAttempt,
    HealingResult,
    SelfHealingConfig,
    generate_corrective_prompt,
)
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.text_protocol import (
    ExtractionResult,
    extract_tool_invocations_with_errors,
    format_extraction_errors,
    parse_tool_line,
)
from mendgraph.nodes.loop_check.repetition import (
    LOOP_OVERRIDE_MAX_RETRIES,
    LOOP_REPEAT_THRESHOLD,
    REPEAT_WINDOW,
    LoopConfig,
    action_signature,
)
from mendgraph.nodes.records import (
    ExtractionError,
    ExtractionErrorType,
    OverrideConstraint,
    RawCall,
    ToolError,
    ToolErrorCode,
    ToolInvocation,
    ToolResult,
)
from mendgraph.nodes.workspace.files.sandbox import PathAccess, PathSandbox
from mendgraph.nodes.workspace.files.tree_walk import NO_MATCHES

__all__ = [
    "DEFAULT_API_LIMITS",
    "DEFAULT_GUARDRAIL_RULES",
    "DEFAULT_SELF_HEALING_CONFIG",
    "INITIAL_API_USAGE",
    "LOOP_OVERRIDE_MAX_RETRIES",
    "LOOP_REPEAT_THRESHOLD",
    "NO_MATCHES",
    "REPEAT_WINDOW",
    "APILimits",
    "APIUsageStats",
    "Action",
    "ActionError",
    "ActionRegistry",
    "AgentLanguage",
    "Engine",
    "EngineConfig",
    "Environment",
    "ExecResult",
    "ExtractionError",
    "ExtractionErrorType",
    "ExtractionResult",
    "FileGuardrailRule",
    "GuardrailError",
    "GuardrailResult",
    "GuardrailViolation",
    "HealingAttempt",
    "HealingResult",
    "Invocation",
    "LimitCheckResult",
    "LimitExceeded",
    "LoopConfig",
    "Memory",
    "OverrideConstraint",
    "PathAccess",
    "PathSandbox",
    "RawCall",
    "RetryableToolError",
    "SelfHealingConfig",
    "ToolError",
    "ToolErrorCode",
    "ToolInvocation",
    "ToolResult",
    "ToolRun",
    "TraceEvent",
    "TraceSink",
    "action_signature",
    "attempt_extraction_with_healing",
    "check_api_limits",
    "check_file_guardrails",
    "closest_names",
    "create_protected_edit_file_tool",
    "create_rate_limited_llm_caller",
    "extract_tool_invocations_with_errors",
    "format_extraction_errors",
    "format_guardrail_violations",
    "format_usage_stats",
    "generate_corrective_prompt",
    "is_env_file",
    "is_git_internal",
    "is_private_key",
    "is_sensitive_config",
    "is_system_path",
    "parse_tool_line",
    "reset_turn_usage",
    "update_usage_after_call",
]
