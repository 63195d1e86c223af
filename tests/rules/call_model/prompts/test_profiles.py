from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.prompts.profiles import find_profile, offered_tools
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.language.chat_messages import requires_value
from mendgraph.nodes.records import EditForm
from tests.row_tables import rows

SMALL, TEXT, NATIVE = "small", "text", "native"

# Protocol (or small), window, and whether the model reasons. An unknown model counts as a capable one.
KINDS = {
    (NATIVE, 200_000, False): ["claude-sonnet-4-5", "anthropic.claude-3-5-sonnet-20241022-v2:0"],
    (NATIVE, 400_000, True): ["gpt-5-mini"],
    (NATIVE, 1_047_576, False): ["openai/gpt-4.1-nano"],
    (NATIVE, 128_000, False): ["gpt-4o-mini", "amazon.nova-lite-v1:0", "command-r-plus"],
    (NATIVE, 8_192, False): ["gpt-4-0613"],
    (NATIVE, 200_000, True): ["o4-mini"],
    (NATIVE, 131_072, True): ["gpt-oss-20b", "x-ai/grok-4", "kimi-k2", "glm-4.6"],
    (NATIVE, 1_048_576, True): ["gemini-2.5-flash"],
    (NATIVE, 196_608, True): ["minimax-m2"],
    (SMALL, 32_768, False): [
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "qwen2.5-coder:7b",
        "mistral:latest",
        "gemma3:4b",
    ],
    (TEXT, 32_768, False): ["qwen2.5-coder:32b", "google/gemma-3-27b-it"],
    (NATIVE, 262_144, False): ["Qwen/Qwen3-Coder-480B-A35B-Instruct"],
    (NATIVE, 32_768, True): ["Qwen/Qwen3-30B-A3B-Instruct-2507", "QwQ-32B"],
    (SMALL, 32_768, True): ["qwen3:4b"],
    (NATIVE, 32_768, False): ["Qwen/Qwen2.5-72B-Instruct", "codestral", "mistral-small"],
    (NATIVE, 131_072, False): [
        "deepseek-chat",
        "NousResearch/Hermes-3-Llama-3.1-8B",
        "ollama/llama3.1:8b",
        "mistralai/Devstral-Small-2507",
        "google/gemma-4-31B-it",
        "ibm-granite/granite-3.3-8b-instruct",
    ],
    (SMALL, 131_072, True): ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"],
    (TEXT, 131_072, True): ["deepseek-r1:32b"],
    (SMALL, 16_384, False): ["deepseek-coder"],
    (SMALL, 131_072, False): [
        "meta-llama/Llama-3.2-3B-Instruct",
        "accounts/fireworks/models/llama-v3p2-3b-instruct",
        "ministral-3b-latest",
        "google/gemma-4-E4B-it",
        "phi-4-mini",
        "granite4:tiny-h",
    ],
    (TEXT, 8_192, False): ["llama3:70b"],
    (NATIVE, 40_960, True): ["magistral-medium-latest"],
    (SMALL, 8_192, False): ["codegemma:7b"],
    (TEXT, 16_384, False): ["phi4"],
    (SMALL, 4_096, False): ["phi3"],
    (SMALL, None, False): ["LiquidAI/LFM2-1.2B", "acme-400m"],
    (NATIVE, None, False): ["acme-mixture-8x7b", "ollama/mystery", "llama.cpp", "local", ""],
}
NAMES = {name: kind for kind, names in KINDS.items() for name in names}


@rows(*NAMES)
def test_model_name_determines_window_and_protocol(name: str) -> None:
    profile = find_profile(name)
    kind = SMALL if profile.small else profile.protocol.value
    assert (kind, profile.window_tokens, profile.reasoning) == NAMES[name]


@rows("acme-7.9b", "acme-7b")
def test_below_eight_billion_parameters_is_small(name: str) -> None:
    assert (find_profile(name).small, find_profile("acme-8b").small) == (True, False)


@given(st.sampled_from(sorted(NAMES)), st.sampled_from("-_ "), st.booleans())
def test_case_and_separators_do_not_matter(name: str, separator: str, upper: bool) -> None:
    other = "".join(separator if letter in "-_:/ " else letter for letter in name)
    assert find_profile(other.upper() if upper else other) == find_profile(name)


SPECS = [tool.spec for tool in default_tools()]
READING = ["read_file", "list_files", "glob_files", "search_files"]
MOVING = ["move_file", "delete_file"]
JOBS = ["job_output", "job_kill"]
OUTSIDE = ["run_command", "run_shell", *JOBS, "http_get"]
ENDING = ["update_plan", "final_answer"]
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


@rows(
    (EditForm.REPLACE, False, [*READING, "edit_file", "write_file", *MOVING, *OUTSIDE, *ENDING]),
    (EditForm.BLOCKS, False, [*READING, "write_file", "edit_blocks", *OUTSIDE, *ENDING]),
    (EditForm.PATCH, False, [*READING, "write_file", "apply_patch", *OUTSIDE, *ENDING]),
    (EditForm.REPLACE, True, [*READING, *JOBS, "http_get", *ENDING]),
    (EditForm.BLOCKS, True, [*READING, *JOBS, "http_get", *ENDING]),
)
def test_model_is_offered_one_edit_tool_and_none_when_read_only(
    edit_form: EditForm, read_only: bool, names: list[str]
) -> None:
    offered = offered_tools(SPECS, edit_form, read_only=read_only, response_format=None)
    assert [spec.name for spec in offered] == names
    assert all(spec in SPECS for spec in offered)
    assert not any(map(requires_value, offered))


def test_terminal_tool_shows_the_schema_of_the_answer() -> None:
    plain, with_schema = (
        offered_tools(SPECS, EditForm.REPLACE, read_only=False, response_format=schema) for schema in (None, SCHEMA)
    )
    assert with_schema[:-1] == plain[:-1]
    parameters = with_schema[-1].parameters
    assert parameters["properties"] == {**plain[-1].parameters["properties"], "value": SCHEMA}
    assert parameters["required"] == ["answer", "value"]
    assert requires_value(with_schema[-1])
    hidden = {"edit_blocks", "apply_patch", "multi_edit", "append_file", "run_checks", "delegate"}
    assert [*plain] == [spec for spec in SPECS if spec.name not in hidden]


@rows(*EditForm)
def test_unusable_tools_and_run_checks_are_never_offered(edit_form: EditForm) -> None:
    assert "run_checks" in {spec.name for spec in SPECS}
    usable = frozenset({"read_file", "final_answer", "run_checks"})
    for few in (False, True):
        complete = offered_tools(SPECS, edit_form, read_only=False, response_format=None, few=few)
        assert "run_checks" not in {spec.name for spec in complete}
        offered = offered_tools(SPECS, edit_form, read_only=False, response_format=None, usable=usable, few=few)
        assert [spec.name for spec in offered] == ["read_file", "final_answer"]


def test_note_of_the_run_is_appended_to_the_description() -> None:
    plain, noted = (
        offered_tools(SPECS, EditForm.REPLACE, read_only=False, response_format=None, notes=notes)
        for notes in ({}, {"run_command": "Allowed: make."})
    )
    [(before, after)] = [(old, new) for old, new in zip(plain, noted, strict=True) if old != new]
    assert (before.name, after.description) == ("run_command", f"{before.description} Allowed: make.")
