"""The names of document 1: where each is importable, with its fields, parameters, order and defaults."""

import inspect
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from mendgraph import documents
from mendgraph.nodes.call_model.budget import INITIAL_API_USAGE, APILimits
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.heal.corrective_prompt import SelfHealingConfig
from mendgraph.nodes.records import ExtractionErrorType
from tests.specs import document_1

EXTRACTION = ("parse_tool_line", "extract_tool_invocations_with_errors", "format_extraction_errors")
HEALING = ("SelfHealingConfig", "DEFAULT_SELF_HEALING_CONFIG", "HealingAttempt", "HealingResult")
RULES = ("is_env_file", "is_private_key", "is_system_path", "is_git_internal", "is_sensitive_config")
COUNTING = ("check_api_limits", "update_usage_after_call", "reset_turn_usage", "format_usage_stats")
MODULES = {
    "mendgraph.nodes.records": ("ExtractionErrorType", "ExtractionError", "ToolInvocation"),
    "mendgraph.nodes.language.text_protocol": ("ExtractionResult", *EXTRACTION),
    "mendgraph.nodes.heal.corrective_prompt": (*HEALING, "generate_corrective_prompt"),
    "mendgraph.nodes.heal.healing": (*HEALING, "generate_corrective_prompt", "attempt_extraction_with_healing"),
    "mendgraph.nodes.guard.file_rules": (
        *("FileGuardrailRule", "GuardrailViolation", "GuardrailResult", "DEFAULT_GUARDRAIL_RULES", *RULES),
        *("check_file_guardrails", "format_guardrail_violations", "create_protected_edit_file_tool"),
    ),
    "mendgraph.nodes.call_model.budget": (
        *("APIUsageStats", "APILimits", "DEFAULT_API_LIMITS", "INITIAL_API_USAGE", "LimitExceeded"),
        *("LimitCheckResult", *COUNTING, "create_rate_limited_llm_caller"),
    ),
}
OURS: dict[str, Any] = {
    name: getattr(import_module(module), name) for module, names in MODULES.items() for name in names
}
RECORDS = sorted(name for name, value in vars(document_1).items() if hasattr(value, "_fields") and callable(value))
FUNCTIONS = sorted(name for name, _ in inspect.getmembers(document_1, inspect.isfunction) if name in OURS)
OUR_OWN_FIELDS = {"SelfHealingConfig": ("max_schema_repairs", "max_claims")}
"""Fields that ours has beyond the document's: behind them, each with a default."""


def test_every_name_of_the_document_is_importable() -> None:
    imported = ("NamedTuple", "Enum", "Any", "Callable", "Path", "auto", "json", "SENSITIVE_NAMES")
    defined = {name for name in vars(document_1) if not name.startswith("__")} - {*imported}
    assert defined - set(OURS) == set()


def test_name_is_the_same_from_each_of_its_modules() -> None:
    for module, names in MODULES.items():
        for name in names:
            assert getattr(import_module(module), name) is OURS[name]
            assert getattr(documents, name) is OURS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_record_has_the_documents_fields_in_order_with_their_defaults(name: str) -> None:
    ours, documents = OURS[name], getattr(document_1, name)
    own = OUR_OWN_FIELDS.get(name, ())
    assert ours._fields == (*documents._fields, *own)
    defaults = {field: value for field, value in ours._field_defaults.items() if field not in own}
    assert defaults == documents._field_defaults
    assert set(own) <= set(ours._field_defaults)


@pytest.mark.parametrize("name", RECORDS)
def test_record_is_an_immutable_named_tuple(name: str) -> None:
    assert issubclass(OURS[name], tuple)
    record: Any = OURS[name]._make(range(len(OURS[name]._fields)))
    for field in record._fields:
        with pytest.raises(AttributeError):
            setattr(record, field, None)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_the_documents_parameters_in_order_with_their_defaults(name: str) -> None:
    """What ours takes beyond them comes after them, and has a default."""
    ours = list(inspect.signature(OURS[name]).parameters.values())
    theirs = list(inspect.signature(getattr(document_1, name)).parameters.values())
    assert [each.name for each in ours[: len(theirs)]] == [each.name for each in theirs]
    assert [has_default(each) for each in ours[: len(theirs)]] == [has_default(each) for each in theirs]
    assert {each.kind for each in ours[: len(theirs)]} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert all(has_default(each) for each in ours[len(theirs) :])


@pytest.mark.parametrize(
    ("name", "parameter", "default"),
    [
        ("attempt_extraction_with_healing", "config", "DEFAULT_SELF_HEALING_CONFIG"),
        ("check_file_guardrails", "rules", "DEFAULT_GUARDRAIL_RULES"),
        ("create_protected_edit_file_tool", "rules", "DEFAULT_GUARDRAIL_RULES"),
        ("check_api_limits", "limits", "DEFAULT_API_LIMITS"),
        ("create_rate_limited_llm_caller", "limits", "DEFAULT_API_LIMITS"),
    ],
)
def test_defaults_are_the_named_constants(name: str, parameter: str, default: str) -> None:
    assert inspect.signature(OURS[name]).parameters[parameter].default is OURS[default]


def has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty


def test_six_kinds_of_errors_come_first_and_in_order() -> None:
    ours = [(kind.name, kind.value) for kind in ExtractionErrorType]
    theirs = [(kind.name, kind.value) for kind in document_1.ExtractionErrorType]
    assert ours[: len(theirs)] == theirs


def test_result_is_a_call_or_an_error() -> None:
    assert get_args(OURS["ExtractionResult"]) == (OURS["ToolInvocation"], OURS["ExtractionError"])


def test_constants_are_the_documents() -> None:
    assert tuple(SelfHealingConfig())[:3] == tuple(document_1.DEFAULT_SELF_HEALING_CONFIG)
    assert tuple(APILimits()) == tuple(document_1.DEFAULT_API_LIMITS)
    assert tuple(OURS["DEFAULT_API_LIMITS"]) == tuple(document_1.DEFAULT_API_LIMITS)
    assert tuple(OURS["DEFAULT_SELF_HEALING_CONFIG"])[:3] == tuple(document_1.DEFAULT_SELF_HEALING_CONFIG)
    assert tuple(INITIAL_API_USAGE) == tuple(document_1.INITIAL_API_USAGE)


def test_rules_are_the_documents_five_in_order() -> None:
    assert isinstance(DEFAULT_GUARDRAIL_RULES, tuple)
    theirs = [(rule.name, rule.description, rule.check.__name__) for rule in document_1.DEFAULT_GUARDRAIL_RULES]
    assert [(rule.name, rule.description, rule.check.__name__) for rule in DEFAULT_GUARDRAIL_RULES] == theirs


def test_more_than_ninety_per_cent_of_the_pure_functions_are_covered() -> None:
    """The gate of the coverage report, and that it leaves none of their modules out."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    report = settings["tool"]["coverage"]["report"]
    assert report["fail_under"] > 90
    left_out = set(report["omit"])
    assert [module for module in MODULES if f"{module.replace('.', '/')}.py" in left_out] == []
