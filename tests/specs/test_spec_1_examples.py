"""Spec 1, section 7, to the letter; only the import paths are ours."""

from pathlib import Path

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats, check_api_limits
from mendgraph.nodes.guard.file_rules import check_file_guardrails
from mendgraph.nodes.language.text_protocol import parse_tool_line
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolInvocation


def test_parse_tool_line_valid() -> None:
    result = parse_tool_line('tool: read_file({"filename": "test.py"})', 1, frozenset({"read_file"}))
    assert isinstance(result, ToolInvocation)
    assert result.tool_name == "read_file"
    assert result.args == {"filename": "test.py"}


def test_parse_tool_line_invalid_json() -> None:
    result = parse_tool_line(
        'tool: read_file({filename: "test.py"})',  # Missing quotes
        1,
        frozenset({"read_file"}),
    )
    assert isinstance(result, ExtractionError)
    assert result.error_type == ExtractionErrorType.INVALID_JSON_SYNTAX


def test_guardrail_blocks_env_file() -> None:
    result = check_file_guardrails(Path("/project/.env"))
    assert not result.allowed
    assert any(v.rule_name == "env_file" for v in result.violations)


def test_api_limits_exceeded() -> None:
    usage = APIUsageStats(100, 0, 0, 0)  # At max calls
    result = check_api_limits(usage, APILimits(max_calls_per_session=100))
    assert not result.allowed
