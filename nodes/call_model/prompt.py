"""What the model is shown: a short prompt that never changes at the front, then the conversation.

Three ways of talking share the tools and the history. `native` sends the tools as the endpoint's own schemas. `text`
describes them in the system prompt and is answered in `tool:` lines. The block form, for small models, has a prompt of
its own (`nodes.call_model.block_prompt`). Nothing in these texts would do harm if it came back as a call.
"""

import json
from collections.abc import Sequence

from langchain_core.messages import AnyMessage

from nodes.call_model.block_prompt import block_request, retry_temperature
from nodes.call_model.wire import describe_tool, message_of, native_tool, on_the_wire
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

TEXT_STOP = ("\ntool_result(",)
"""A model that goes on to write its tool's result is stopped there."""


class Prompt(Record):
    """One request as it goes on the wire, without the parts that the endpoint's client adds."""

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float = 0.0

    def characters(self) -> int:
        """How much text the endpoint is sent, for the estimate of its tokens.

        In UTF-8 bytes: a letter counts as one, a character of Chinese or an emoji as the three or four that it costs.
        """
        size = sum(len((m.get("content") or "").encode("utf-8", "replace")) for m in self.messages)
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
        messages, failures = block_request(specs, history, corrections)
        hotter = retry_temperature(temperature, failures)
        return Prompt(messages=tuple(messages), stop=TEXT_STOP, temperature=hotter)
    native = profile.protocol is Protocol.NATIVE
    system = NATIVE_SYSTEM if native else TEXT_SYSTEM.format(tools="\n".join(map(describe_tool, specs)))
    messages = [message_of("system", system), *(on_the_wire(m, native=native) for m in history)]
    for correction in corrections:
        messages += [message_of("assistant", correction.reply or "(empty)"), message_of("user", correction.prompt)]
    return Prompt(
        messages=tuple(messages),
        tools=tuple(map(native_tool, specs)) if native else (),
        stop=() if native else TEXT_STOP,
        temperature=temperature,
    )
