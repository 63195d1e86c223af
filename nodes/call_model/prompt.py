"""What the model is shown: a short prompt that never changes at the front, then the conversation.

Three ways of talking share the tools and the history. `native` sends the tools as the endpoint's own schemas. `text`
describes them in the system prompt and is answered in `tool:` lines. The block form, for small models, has a prompt of
its own (`nodes.call_model.block_prompt`). Nothing in these texts would do harm if it came back as a call.
"""

import json
from collections.abc import Sequence

from langchain_core.messages import AnyMessage

from nodes.call_model.block_prompt import block_request, retry_temperature
from nodes.call_model.constrained import calls_schema, meant_tools
from nodes.call_model.profiles import SMALL_STOP, TOOL_RESULT_STOP
from nodes.call_model.wire import describe_tool, message_of, native_tool, on_the_wire
from nodes.language.body_blocks import BODY_BLOCK_RULE
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


FREE_RETRIES = 2
"""From this healing attempt on a retry is decoded under the tools' schema, where the endpoint can do that."""


class Prompt(Record):
    """One request as it goes on the wire, without the parts that the endpoint's client adds.

    `response_schema` is a JSON schema under which the reply is decoded, where the endpoint can do that.
    """

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    failed_tries: int = 0
    response_schema: JsonMap | None = None

    def characters(self) -> int:
        """How much text the endpoint is sent, for the estimate of its tokens.

        In UTF-8 bytes: a letter counts as one, a character of Chinese or an emoji as the three or four that it costs.
        """
        size = sum(len((m.get("content") or "").encode("utf-8", "replace")) for m in self.messages)
        calls = [m["tool_calls"] for m in self.messages if m.get("tool_calls")]
        schema = len(json.dumps(self.response_schema)) if self.response_schema is not None else 0
        return size + len(json.dumps(calls)) + len(json.dumps(self.tools)) + schema


def build_prompt(
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    temperature: float,
    asked_again: int = 0,
) -> Prompt:
    """Build the next request from the settled history and the open corrections of this turn.

    `asked_again` counts all corrections of the turn, those that are settled as well.
    """
    native = profile.protocol is Protocol.NATIVE
    if profile.edit_form is EditForm.BLOCKS:
        messages, tools, failures = block_request(specs, history, corrections, native=native, asked=asked_again)
        hotter = retry_temperature(temperature, failures)
        return Prompt(
            messages=tuple(messages), tools=tuple(tools), stop=_stop(profile), temperature=hotter, failed_tries=failures
        )
    system = NATIVE_SYSTEM if native else TEXT_SYSTEM.format(tools="\n".join(map(describe_tool, specs)))
    if profile.small and not native:
        system = f"{system}\n{BODY_BLOCK_RULE}"
    messages = [message_of("system", system), *(on_the_wire(m, native=native) for m in history)]
    for correction in corrections:
        messages += [message_of("assistant", correction.reply or "(empty)"), message_of("user", correction.prompt)]
    malformed = [correction for correction in corrections if not correction.claim]
    constrained = len(malformed) >= FREE_RETRIES and not corrections[-1].claim
    return Prompt(
        messages=tuple(messages),
        response_schema=calls_schema(meant_tools(specs, corrections[-1].reply)) if constrained else None,
        tools=tuple(map(native_tool, specs)) if native else (),
        stop=_stop(profile),
        temperature=temperature,
    )


def _stop(profile: Profile) -> tuple[str, ...]:
    """Where a reply in text is cut; native calls need no such words, and some endpoints refuse them."""
    if profile.protocol is Protocol.NATIVE:
        return ()
    return SMALL_STOP if profile.small else TOOL_RESULT_STOP
