"""Builders of histories, and of the prompts for them."""

import json
from collections.abc import Sequence

from langchain_core.messages import AnyMessage, HumanMessage

from mendgraph.nodes.call_model.prompts.profiles import offered_tools
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.turn_prompt import build_block_prompt, build_prompt
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.records import (
    CallResult,
    Correction,
    EditForm,
    Effect,
    JsonMap,
    ModelReply,
    Profile,
    Protocol,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)
from mendgraph.nodes.small_model.block_form import BlockForm

TEXT, NATIVE = Profile(protocol=Protocol.TEXT), Profile(protocol=Protocol.NATIVE)
BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS, embedded=True, small=True)
NATIVE_BLOCKS = BLOCKS.model_copy(update={"protocol": Protocol.NATIVE})
TASK = HumanMessage("Fix calc.py")
CALC = "def add(a, b):\n    return a - b\n"
READ = ToolSpec(
    name="read_file",
    description="Read a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    },
    effect=Effect.READ,
)


def step(
    result: ToolResult, protocol: Protocol = Protocol.TEXT, *, text: str = "", path: str = "calc.py", at: int = 0
) -> list[AnyMessage]:
    """One exchange: a call of read_file and its result."""
    raw = json.dumps({"path": path}, separators=(",", ":"))
    call = ToolCall(call_id=f"c{at}", tool="read_file", arguments={"path": path}, raw_arguments=raw)
    reply_text = "\n".join(filter(None, [text, f"tool: read_file({raw})"])) if protocol is Protocol.TEXT else text
    done = CallResult(call_id=call.call_id, tool=call.tool, result=result)
    return settle_exchange(ModelReply(text=reply_text), [call], [done], protocol)


def prompt_of(
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction] = (),
    temperature: float | None = 0.0,
) -> Prompt:
    """The prompt in the form of the profile."""
    if profile.edit_form is EditForm.BLOCKS:
        return build_block_prompt(BlockForm(profile), profile, specs, history, corrections, temperature)

    return build_prompt(profile, specs, history, corrections, temperature)


def built(
    profile: Profile, history: list[AnyMessage], *corrections: Correction, temperature: float | None = None
) -> Prompt:
    return prompt_of(profile, [READ], history, corrections, temperature)


def user(content: str) -> JsonMap:
    return {"role": "user", "content": content}


def assistant(content: str) -> JsonMap:
    return {"role": "assistant", "content": content}


def read(content: str, path: str = "calc.py") -> ToolResult:
    return ToolResult.success(path=path, content=content)


def edited(path: str) -> ToolResult:
    return ToolResult.success(path=path, action="merged")


def failed(message: str, code: ToolErrorCode = ToolErrorCode.INVALID_ARGUMENT) -> ToolResult:
    return ToolResult.failure(code, message)


def offered(edit_form: EditForm, schema: JsonMap | None = None) -> list[ToolSpec]:
    specs = [tool.spec for tool in default_tools()]
    programs = {"run_command", "run_shell", "job_output", "job_kill"}
    usable = frozenset(spec.name for spec in specs) - programs - {"http_get"}
    return offered_tools(specs, edit_form, read_only=False, response_format=schema, usable=usable)
