"""Profiles of models by name, and the tools that a model is offered.

Names differ between endpoints ("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder:1.5b"), so case and separators
are ignored. The first matching row of `FAMILIES` is used; the size comes from the name, else from the family. An
unknown model counts as capable. A profile is the default for `auto`; settings of the user take precedence.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from mendgraph.nodes.records import CHANGING, EditForm, JsonMap, Protocol, Record, ToolSpec

SMALL_BELOW_BILLIONS: Final = 8.0
"""Parameters, in billions, below which a model gets the block form.

Source: a 1.5B model solved 1 of 12 repairs with old and new string and 7 of 11 with fenced blocks; a 7B model of its
family also writes its calls as JSON in the text (vllm-project/vllm#32926).
"""

SMALL_STOP: Final = ("\ntool_result(", "\ntool_result:", "\nuser: tool_result")
"""In text form a small model may invent its tool's result and the whole next turn. Runs of empty lines are no stop:
code has them.

Source: 63 of 551 logged replies of a 1.5B model.
"""


SMALL_TEMPERATURE: Final = 0.0
"""The default temperature of a small model's first attempt: sampling causes more mistakes of form."""


class ModelProfile(Record):
    """The profile of a model.

    `small` is below about 8 billion parameters, `reasoning` reasons before it answers. `window_tokens` is the smallest
    window of the family, input and output together, None if it is unknown.
    """

    small: bool = False
    window_tokens: int | None = None
    protocol: Protocol = Protocol.NATIVE
    reasoning: bool = False


class Family(NamedTuple):
    """A row of the table.

    `words` is a regular expression for the folded name, matched where no letter precedes. `native` says whether models
    of at least 8 billion parameters make native calls on common servers. `billions` is the size of models whose name
    has none; `reasoning` means that they reason by default.
    """

    words: str
    window_tokens: int | None
    native: bool = True
    billions: float | None = None
    reasoning: bool = False


FAMILIES: Final = (
    # Source: the providers' model pages; where members differ, the smallest window.
    Family("claude", 200_000),
    Family("gpt-?oss|grok|kimi|moonshot|glm|chatglm", 131_072, reasoning=True),
    Family("gpt-?5|codex", 400_000, reasoning=True),
    Family(r"gpt-?4\.1", 1_047_576),
    Family("gpt-?4o|gpt-?4-turbo", 128_000),
    Family("gpt-?4", 8_192),
    Family(r"o[134](?![a-z0-9.])", 200_000, reasoning=True),
    Family("gemini", 1_048_576, reasoning=True),
    Family("minimax", 196_608, reasoning=True),
    Family("nova-(?:micro|lite|pro|premier)|command-?[ar]|c4ai", 128_000),
    # Coders without a call format of their own.
    # Source: 72 of 72 first replies of the 1.5B model; vllm-project/vllm#32926 says the same of the 7B model.
    Family(r"qwen-?2\.5-coder|codeqwen", 32_768, native=False, billions=7.0),
    Family("qwen-?3-coder", 262_144),
    # Source: llama.cpp, docs/function-calling.md: "seems reluctant to call any tools".
    Family("deepseek-r1", 131_072, native=False, reasoning=True),
    Family("deepseek-coder", 16_384, native=False, billions=6.7),
    Family("deepseek", 131_072),
    # Source: model cards; tools since Qwen 2.5 (llama.cpp, docs/function-calling.md).
    Family("qwen-?3|qwq", 32_768, reasoning=True),
    Family("qwen", 32_768),
    # Source: model cards; tools since Llama 3.1, the one before refuses them (ollama/ollama#5793).
    Family("hermes-?[34]", 131_072),
    Family(r"llama-?v?3[.p]2", 131_072, billions=3.0),
    Family(r"llama-?v?3(?![.p\d])", 8_192, native=False, billions=8.0),
    Family(r"llama(?!\.cpp|-cpp)", 131_072),
    # Source: model cards and docs.mistral.ai; without tag or size, "mistral" is the 7B model.
    Family("codestral|mistral-small", 32_768),
    Family("mistral(?:-(?:latest|instruct|7b)|$)", 32_768, billions=7.2),
    Family("magistral", 40_960, reasoning=True),
    Family("mistral|ministral|devstral|pixtral", 131_072),
    # Source: model cards (native calls and 128K since Gemma 4); ollama/ollama#9680 for Gemma 3.
    Family("gemma-?4", 131_072),
    Family("gemma-?3", 32_768, native=False, billions=4.0),
    Family("(?:code|function)?gemma", 8_192, native=False),
    # Source: model cards; Phi's chat template has no tools.
    Family("phi-?4-mini", 131_072, native=False, billions=3.8),
    Family("phi-?4", 16_384, native=False),
    Family("phi-?3", 4_096, native=False, billions=3.8),
    # Source: model cards; of Granite 4, micro, tiny and nano are the models below 8 billion parameters.
    Family(r"granite-?[\d.]*-?(?:h-)?(?:micro|tiny|nano)", 131_072, billions=3.0),
    Family("granite", 131_072),
)
"""In order of use: narrower words first."""

_ROWS: Final = tuple((re.compile(rf"(?<![a-z])(?:{family.words})"), family) for family in FAMILIES)
_UNKNOWN: Final = Family("", None)
_SEPARATORS: Final = re.compile(r"[\s/\\:_@+-]+")
_SIZE: Final = re.compile(
    r"(?<![a-z0-9.])(?:(?P<experts>\d{1,3})x)?[ae]?(?P<billions>\d{1,4}(?:\.\d{1,3})?)b(?![a-z0-9])"
    r"|(?<![a-z0-9.])(?P<millions>\d{3})m(?![a-z0-9])",
    re.ASCII,
)


def find_profile(model: str) -> ModelProfile:
    """Return the profile of the model with this name; an unknown one counts as capable."""
    name = _SEPARATORS.sub("-", model.casefold()).strip("-")
    family = next((family for pattern, family in _ROWS if pattern.search(name)), _UNKNOWN)
    size = _size_in(name) or family.billions
    small = size is not None and size < SMALL_BELOW_BILLIONS
    native = family.native and not small

    return ModelProfile(
        small=small,
        window_tokens=family.window_tokens,
        protocol=Protocol.NATIVE if native else Protocol.TEXT,
        reasoning=family.reasoning,
    )


def _size_in(name: str) -> float | None:
    """Return the largest number of parameters in a folded name, in billions; of a mixture, all experts."""
    sizes = [
        int(match["millions"]) / 1_000 if match["millions"] else float(match["billions"]) * int(match["experts"] or 1)
        for match in _SIZE.finditer(name)
    ]

    return max(sizes, default=None)


def offered_tools(
    specs: Iterable[ToolSpec],
    edit_form: EditForm,
    *,
    read_only: bool,
    response_format: JsonMap | None,
    usable: Collection[str] | None = None,
    few: bool = True,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> list[ToolSpec]:
    """Return the tools to offer, in order; a call of another tool is still judged like any other.

    Models do worst with several ways to edit, and small ones take each tool for a hint: with `few`, tools that are not
    worth their tokens are omitted. `usable` are the names that the run may use, None means all. `notes` are added to
    descriptions by name. With a `response_format`, the terminal tool shows that schema and requires the value.
    """
    offered = [
        spec.model_copy(update={"description": f"{spec.description} {notes[spec.name]}"})
        if spec.name in notes
        else spec
        for spec in specs
        if spec.offered
        and (not spec.edit_forms or edit_form in spec.edit_forms)
        and not (few and edit_form in spec.seldom_in)
        and (usable is None or spec.name in usable)
        and not (read_only and spec.effect in CHANGING)
    ]

    if response_format is None:
        return offered

    return [_with_value(spec, response_format) if spec.terminal else spec for spec in offered]


def _with_value(spec: ToolSpec, schema: JsonMap) -> ToolSpec:
    parameters = spec.parameters
    definitions: JsonMap = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    value = {name: keyword for name, keyword in schema.items() if name not in definitions}
    properties = {**parameters.get("properties", {}), "value": value}
    required = [*(name for name in parameters.get("required", []) if name != "value"), "value"]
    schema_map = {**parameters, **definitions, "properties": properties, "required": required}

    return spec.model_copy(update={"parameters": schema_map})


def with_agents(spec: ToolSpec, names: Sequence[str]) -> ToolSpec:
    """Return the description of `delegate` with the argument that names an agent."""
    properties = {**spec.parameters["properties"], "agent": {"type": "string", "enum": [*names]}}
    return spec.model_copy(update={"parameters": {**spec.parameters, "properties": properties}})


def allowed_note(what: str, allowed: Sequence[str], *, asks: bool) -> str:
    """Return the note of a tool's description on the programs or hosts that a run allows."""
    if not asks:
        return f"Allowed{what}: {', '.join(allowed)}."
    return f"Allowed{what}: {', '.join(allowed) or 'none'}; for others a person is asked."


def in_foreground(spec: ToolSpec) -> ToolSpec:
    """Return a tool that runs commands without its argument `background`."""
    properties = {name: value for name, value in spec.parameters["properties"].items() if name != "background"}
    return spec.model_copy(update={"parameters": {**spec.parameters, "properties": properties}})
