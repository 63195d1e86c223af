"""What the model is shown: a short prompt that never changes at the front, then the conversation.

Three ways of talking share the tools and the history. `native` sends the tools as the endpoint's own schemas. `text`
describes them in the system prompt and is answered in `tool:` lines. `blocks` is for small models: it rebuilds one
clean request from the turn's history (the task, the files as they are, what failed in words), because a small model
that sees its own failed try repeats it, and an example as real chat turns, because a described form is not imitated.
Nothing in these texts would do harm if it came back as a call.
Source: 551 logged replies of a 1.5B model.
"""

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from nodes.call_model.offered_tools import owes_a_value
from nodes.call_model.turn_view import TurnView, view_turn
from nodes.language.blocks import render_file
from nodes.language.history import is_request
from nodes.records import Correction, EditForm, JsonMap, Profile, Protocol, Record, ToolSpec

NATIVE_SYSTEM = """\
You are a coding agent. You work on the files of one workspace through tools.
Read a file before you change it. Make the smallest change that does the task. Paths are relative to the workspace.
When the task is done, answer in plain text without a tool call."""

TEXT_SYSTEM = """\
You are a coding agent. You work on the files of one workspace through tools.
To use a tool, write a line of its own:
tool: NAME({{"argument": "value"}})
The argument is one JSON object in compact form. Several lines make several calls; then stop and wait for the results.
Read a file before you change it. Make the smallest change that does the task. Paths are relative to the workspace.
When the task is done, answer in plain text without a tool line.

Tools:
{tools}"""

BLOCKS_SYSTEM = """\
You are a coding agent. You change the files of one workspace.
To change a file, answer with its path on one line, then a fenced block with the new text of the functions or classes \
that change. Leave the rest out.
To look at a file that is not shown, answer with one line: tool: read_file({"path": "PATH"})
To find something, answer with one line: tool: search_files({"pattern": "TEXT"})
If nothing is to be changed, answer in plain text."""

_WORDS = """\
def whisper(text):
    return text.lower()


def shout(text):
    return text.lower()
"""
_SHOUT = """\
def shout(text):
    return text.upper()
"""
_LIMITS = """\
{
  "depth": 2,
  "width": 8
}
"""
EXAMPLES = (
    (
        "What does words.py do?",
        "words.py",
        _WORDS,
        "It changes the case of a text: whisper lowers it, shout raises it.",
    ),
    (
        "shout in words.py should return upper case, but it returns lower case. Fix it.",
        "words.py",
        _WORDS,
        render_file("words.py", _SHOUT),
    ),
    (
        "Set depth to 3 in limits.json.",
        "limits.json",
        _LIMITS,
        render_file("limits.json", _LIMITS.replace("2", "3")),
    ),
)
"""A question, a repair and a file that is no code: request, file shown, its content, and the reply to imitate.

The paths are those of `nodes.language.blocks.EXAMPLE_PATHS`.
"""

TEXT_STOP = ("\ntool_result(",)
"""A model that goes on to write its tool's result is stopped there."""

UNTOLD_TOOLS = frozenset(
    "read_file list_files glob_files search_files edit_file edit_blocks write_file update_plan final_answer".split()
)
"""What a small model does not have to be told of in the block form: each line of a tool list is one to imitate."""

RETRY_TEMPERATURE = 0.8
"""From the second retry on, a small model is sampled: at temperature 0 it would repeat itself.

Source: measured on a 1.5B model, fresh retries at 0.7 to 0.9.
"""


class Prompt(Record):
    """One request as it goes on the wire, without the parts that the endpoint's client adds."""

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float = 0.0

    def characters(self) -> int:
        """How much text the endpoint is sent, for the estimate of its tokens."""
        size = sum(len(m.get("content") or "") for m in self.messages)
        calls = [m["tool_calls"] for m in self.messages if m.get("tool_calls")]
        return size + len(json.dumps(calls)) + len(json.dumps(self.tools))


def build_prompt(
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    temperature: float,
) -> Prompt:
    """Build the next request from the settled history and the open corrections of this turn."""
    if profile.protocol is Protocol.TEXT and profile.edit_form is EditForm.BLOCKS:
        return _blocks_prompt(specs, history, corrections, temperature)
    native = profile.protocol is Protocol.NATIVE
    system = NATIVE_SYSTEM if native else TEXT_SYSTEM.format(tools="\n".join(map(describe_tool, specs)))
    messages = [_message("system", system), *(_on_the_wire(m, native=native) for m in history)]
    for correction in corrections:
        messages += [_message("assistant", correction.reply or "(empty)"), _message("user", correction.prompt)]
    return Prompt(
        messages=tuple(messages),
        tools=tuple(map(_native_tool, specs)) if native else (),
        stop=() if native else TEXT_STOP,
        temperature=temperature,
    )


def describe_tool(spec: ToolSpec) -> str:
    """One line of the text protocol's tool list: `- name({"argument": type, "optional"?: type}): what it does`."""
    required = spec.parameters.get("required", [])
    fields = ", ".join(
        f'"{name}"{"" if name in required else "?"}: {_type_name(schema)}'
        for name, schema in spec.parameters.get("properties", {}).items()
    )
    return f"- {spec.name}({{{fields}}}): {spec.description}"


def _type_name(schema: JsonMap) -> str:
    if "enum" in schema:
        return "|".join(map(_compact, schema["enum"]))
    if "anyOf" in schema:
        return "|".join(map(_type_name, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"[{_type_name(schema.get('items', {}))}]"
    if schema.get("type") == "object" and "properties" in schema:
        fields = (f'"{name}": {_type_name(field)}' for name, field in schema["properties"].items())
        return "{" + ", ".join(fields) + "}"
    return str(schema.get("type", "any"))


def _native_tool(spec: ToolSpec) -> JsonMap:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _message(role: str, content: str) -> JsonMap:
    return {"role": role, "content": content}


def _on_the_wire(message: AnyMessage, *, native: bool) -> JsonMap:
    """One message of the history for the endpoint, in the protocol of this turn."""
    if isinstance(message, AIMessage):
        if not message.tool_calls:
            return _message("assistant", message.text)
        if native:
            calls = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": _compact(c["args"])}}
                for c in message.tool_calls
            ]
            return {**_message("assistant", message.text), "tool_calls": calls}
        lines = [f"tool: {call['name']}({_compact(call['args'])})" for call in message.tool_calls]
        return _message("assistant", "\n".join([message.text, *lines]).strip())
    if isinstance(message, ToolMessage):
        if native:
            return {**_message("tool", message.text), "tool_call_id": message.tool_call_id}
        return _message("user", f"tool_result({message.text})")
    return _message("system" if message.type == "system" else "user", message.text)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _blocks_prompt(
    specs: Sequence[ToolSpec], history: Sequence[AnyMessage], corrections: Sequence[Correction], temperature: float
) -> Prompt:
    view = view_turn(history)
    start = max(index for index, message in enumerate(history) if is_request(message))
    earlier = [_on_the_wire(m, native=False) for m in history[:start] if is_request(m) or _is_answer(m)]
    failures = view.failed_steps + len(corrections)
    examples = [
        message
        for task, path, content, reply in EXAMPLES
        for message in (_message("user", f"{task}\n\n{render_file(path, content)}"), _message("assistant", reply))
    ]
    request = _message("user", _blocks_request(history[start].text, view, corrections))
    return Prompt(
        messages=(_message("system", _blocks_system(specs)), *examples, *earlier, request),
        stop=TEXT_STOP,
        temperature=max(temperature, RETRY_TEMPERATURE) if failures > 1 else temperature,
    )


def _blocks_system(specs: Sequence[ToolSpec]) -> str:
    """The block form's short prompt, and a line for each tool of the user's own and for an answer that has a shape."""
    told = [spec for spec in specs if spec.name not in UNTOLD_TOOLS or owes_a_value(spec)]
    if not told:
        return BLOCKS_SYSTEM
    return "\n".join([BLOCKS_SYSTEM, "More tools, called in the same way:", *map(describe_tool, told)])


def _is_answer(message: AnyMessage) -> bool:
    return isinstance(message, AIMessage) and not message.tool_calls and not message.text.startswith("tool:")


def _blocks_request(task: str, view: TurnView, corrections: Sequence[Correction]) -> str:
    """The task, the files as they are now, what was found, and what failed: in words, never as failed text."""
    parts = [task.strip(), *(render_file(path, content) for path, content in view.files.items())]
    if view.found:
        parts.append("Found:\n" + "\n".join(view.found))
    if view.changed:
        parts.append("Already changed: " + ", ".join(view.changed))
    failed = [*view.failures[-2:], *(correction.prompt for correction in corrections[-1:])]
    if failed:
        parts.append("\n".join(failed) + "\nIf it is a question, answer it in one sentence.")
    return "\n\n".join(parts)
