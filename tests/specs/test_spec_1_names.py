"""The names of document 1: fields, parameters, order and defaults; and its section 7, to the letter."""

import inspect
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from mendgraph import documents
from mendgraph.documents import (
    APILimits,
    APIUsageStats,
    ExtractionError,
    ExtractionErrorType,
    ToolInvocation,
    check_api_limits,
    check_file_guardrails,
    parse_tool_line,
)
from tests.architecture.product import text_of
from tests.specs import document_1

OURS: dict[str, Any] = {name: getattr(documents, name) for name in documents.__all__}
RECORDS = sorted(name for name, value in vars(document_1).items() if hasattr(value, "_fields") and callable(value))
FUNCTIONS = sorted(name for name, _ in inspect.getmembers(document_1, inspect.isfunction) if name in OURS)
OUR_OWN_FIELDS = {"SelfHealingConfig": ("max_schema_repairs", "max_claims")}
"""Fields that ours has beyond the document's: behind them, each with a default."""


def test_name_of_the_document_is_importable() -> None:
    imported = {"NamedTuple", "Enum", "Any", "Callable", "Path", "auto", "json", "SENSITIVE_NAMES", "plain"}
    defined = {name for name in vars(document_1) if not name.startswith("__")} - imported
    assert defined - set(OURS) == set()


@pytest.mark.parametrize("name", RECORDS)
def test_record_is_an_immutable_named_tuple_with_the_documents_fields(name: str) -> None:
    ours, documents = OURS[name], getattr(document_1, name)
    additional = OUR_OWN_FIELDS.get(name, ())
    assert ours._fields == (*documents._fields, *additional)
    defaults = dict(ours._field_defaults)
    assert {field: defaults.pop(field, None) for field in additional}.keys() == set(additional)
    assert defaults == documents._field_defaults
    assert issubclass(ours, tuple)
    record = ours._make(range(len(ours._fields)))
    for field in record._fields:
        with pytest.raises(AttributeError):
            setattr(record, field, None)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_the_documents_parameters_and_defaults_in_order(name: str) -> None:
    """A default is the constant that the document names; what ours takes beyond comes after, with a default."""
    ours = list(inspect.signature(OURS[name]).parameters.values())
    theirs = list(inspect.signature(getattr(document_1, name)).parameters.values())
    constants = {id(value): constant for constant, value in vars(document_1).items() if constant.isupper()}
    for mine, their in zip(ours, theirs, strict=False):
        assert (mine.name, mine.kind) == (their.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = constants.get(id(their.default))
        assert mine.default is (OURS[named] if named else their.default)
    assert not [parameter for parameter in ours[len(theirs) :] if parameter.default is parameter.empty]


def test_six_error_kinds_come_first_and_a_result_is_a_call_or_an_error() -> None:
    ours = [(kind.name, kind.value) for kind in ExtractionErrorType]
    theirs = [(kind.name, kind.value) for kind in document_1.ExtractionErrorType]
    assert ours[: len(theirs)] == theirs
    assert get_args(OURS["ExtractionResult"]) == (ToolInvocation, ExtractionError)


def test_constants_match_the_document() -> None:
    for name in ("DEFAULT_API_LIMITS", "INITIAL_API_USAGE", "DEFAULT_SELF_HEALING_CONFIG"):
        theirs = tuple(getattr(document_1, name))
        assert tuple(OURS[name])[: len(theirs)] == theirs
    ours, theirs = OURS["DEFAULT_GUARDRAIL_RULES"], document_1.DEFAULT_GUARDRAIL_RULES
    assert isinstance(ours, tuple)
    rows = [[(rule.name, rule.description, rule.check.__name__) for rule in rules] for rules in (ours, theirs)]
    assert rows[0] == rows[1]


def test_more_than_ninety_percent_of_the_pure_functions_are_covered() -> None:
    """The gate of the coverage report, and that it leaves none of their modules out."""
    report = tomllib.loads(text_of("pyproject.toml"))["tool"]["coverage"]["report"]
    assert report["fail_under"] > 90
    modules = {f"{OURS[name].__module__.removeprefix('mendgraph.').replace('.', '/')}.py" for name in FUNCTIONS}
    assert modules & {*report["omit"]} == set()


# --- 7, to the letter


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
