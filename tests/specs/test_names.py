"""All names of the documents stand in one module and on one page."""

import re

from mendgraph import documents
from tests.architecture.product import text_of

SPEC_NAMES = """
ExtractionErrorType ExtractionError ToolInvocation parse_tool_line extract_tool_invocations_with_errors
format_extraction_errors SelfHealingConfig HealingAttempt HealingResult generate_corrective_prompt
attempt_extraction_with_healing FileGuardrailRule GuardrailViolation GuardrailResult DEFAULT_GUARDRAIL_RULES is_env_file
is_private_key is_system_path is_git_internal is_sensitive_config check_file_guardrails format_guardrail_violations
create_protected_edit_file_tool APIUsageStats APILimits LimitExceeded LimitCheckResult check_api_limits
update_usage_after_call reset_turn_usage format_usage_stats create_rate_limited_llm_caller PathSandbox PathAccess
ToolResult ToolError OverrideConstraint Environment ExecResult Action ActionRegistry Memory Invocation Engine
EngineConfig TraceSink RetryableToolError GuardrailError
"""


def test_every_name_of_the_documents_is_importable_from_one_module_and_explained() -> None:
    """And the page explains no other name."""
    assert {*SPEC_NAMES.split()} <= {name for name in documents.__all__ if getattr(documents, name) is not None}
    rows = [line.split("|") for line in text_of("docs/documents.md").splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row[1])) == sorted(documents.__all__)
    assert all(len(row[2].split()) >= 3 for row in rows)
