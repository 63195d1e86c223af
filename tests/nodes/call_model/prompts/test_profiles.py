import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.prompts.profiles import FAMILIES, ModelProfile, find_profile
from mendgraph.nodes.records import EditForm, Protocol

SMALL, TEXT, NATIVE = "small", "text", "native"

NAMES = {
    "claude-sonnet-4-5": ("claude", NATIVE),
    "anthropic.claude-3-5-sonnet-20241022-v2:0": ("claude", NATIVE),
    "gpt-5-mini": ("gpt-5", NATIVE),
    "openai/gpt-4.1-nano": ("gpt-4.1", NATIVE),
    "gpt-4o-mini": ("gpt-4o", NATIVE),
    "gpt-4-0613": ("gpt-4", NATIVE),
    "o4-mini": ("o-series", NATIVE),
    "gpt-oss-20b": ("gpt-oss", NATIVE),
    "gemini-2.5-flash": ("gemini", NATIVE),
    "x-ai/grok-4": ("grok", NATIVE),
    "kimi-k2": ("kimi", NATIVE),
    "glm-4.6": ("glm", NATIVE),
    "minimax-m2": ("minimax", NATIVE),
    "amazon.nova-lite-v1:0": ("nova", NATIVE),
    "command-r-plus": ("command", NATIVE),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF": ("qwen2.5-coder", SMALL),
    "qwen2.5-coder:7b": ("qwen2.5-coder", SMALL),
    "qwen2.5-coder:32b": ("qwen2.5-coder", TEXT),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": ("qwen3-coder", NATIVE),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3", NATIVE),
    "qwen3:4b": ("qwen3", SMALL),
    "QwQ-32B": ("qwq", NATIVE),
    "Qwen/Qwen2.5-72B-Instruct": ("qwen", NATIVE),
    "deepseek-chat": ("deepseek", NATIVE),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ("deepseek-r1", SMALL),
    "deepseek-r1:32b": ("deepseek-r1", TEXT),
    "deepseek-coder": ("deepseek-coder", SMALL),
    "NousResearch/Hermes-3-Llama-3.1-8B": ("hermes-3", NATIVE),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama-3.2", SMALL),
    "accounts/fireworks/models/llama-v3p2-3b-instruct": ("llama-3.2", SMALL),
    "llama3:70b": ("llama-3", TEXT),
    "ollama/llama3.1:8b": ("llama", NATIVE),
    "codestral": ("codestral", NATIVE),
    "mistral:latest": ("mistral-7b", SMALL),
    "mistral-small": ("mistral-small", NATIVE),
    "magistral-medium-latest": ("magistral", NATIVE),
    "mistralai/Devstral-Small-2507": ("mistral", NATIVE),
    "ministral-3b-latest": ("mistral", SMALL),
    "google/gemma-4-31B-it": ("gemma-4", NATIVE),
    "google/gemma-4-E4B-it": ("gemma-4", SMALL),
    "gemma3:4b": ("gemma-3", SMALL),
    "google/gemma-3-27b-it": ("gemma-3", TEXT),
    "codegemma:7b": ("gemma", SMALL),
    "phi-4-mini": ("phi-4-mini", SMALL),
    "phi4": ("phi-4", TEXT),
    "phi3": ("phi-3-mini", SMALL),
    "granite4:tiny-h": ("granite-mini", SMALL),
    "ibm-granite/granite-3.3-8b-instruct": ("granite", NATIVE),
    # Unknown families: the size alone counts, and where nothing is known the model is taken for a capable one.
    "LiquidAI/LFM2-1.2B": ("", SMALL),
    "acme-mixture-8x7b": ("", NATIVE),
    "acme-400m": ("", SMALL),
    "ollama/mystery": ("", NATIVE),
    "llama.cpp": ("", NATIVE),
    "local": ("", NATIVE),
    "": ("", NATIVE),
}


def kind_of(profile: ModelProfile) -> str:
    return SMALL if profile.small else profile.protocol.value


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_its_family_and_its_way_of_talking(name: str) -> None:
    profile = find_profile(name)
    assert (profile.family, kind_of(profile)) == NAMES[name]


def test_each_family_has_a_name_in_the_table() -> None:
    families = [family.name for family in FAMILIES]
    assert len(set(families)) == len(families)
    assert set(families) == {family for family, _ in NAMES.values() if family}


def test_three_ways_of_talking() -> None:
    assert find_profile("qwen2.5-coder:1.5b") == ModelProfile(
        family="qwen2.5-coder",
        small=True,
        window_tokens=32_768,
        protocol=Protocol.TEXT,
        edit_form=EditForm.BLOCKS,
    )
    assert find_profile("phi-4") == ModelProfile(
        family="phi-4",
        window_tokens=16_384,
        protocol=Protocol.TEXT,
    )
    assert find_profile("gpt-5-mini") == ModelProfile(family="gpt-5", window_tokens=400_000, reasoning=True)
    assert find_profile("mystery") == ModelProfile()


@pytest.mark.parametrize("name", ["acme-7.9b", "acme-7b"])
def test_below_eight_billion_parameters_is_small(name: str) -> None:
    assert (find_profile(name).small, find_profile("acme-8b").small) == (True, False)


@given(st.sampled_from(sorted(NAMES)), st.sampled_from("-_ "), st.booleans())
def test_case_and_separators_do_not_matter(name: str, separator: str, upper: bool) -> None:
    other = "".join(separator if letter in "-_:/ " else letter for letter in name)
    assert find_profile(other.upper() if upper else other) == find_profile(name)
