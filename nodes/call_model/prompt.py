"""What the model is shown: a short prompt that never changes at the front, then the conversation.

Three ways of talking share the tools and the history. `native` sends the tools as the endpoint's own schemas. `text`
describes them in the system prompt and is answered in `tool:` lines. The block form, for small models, has a prompt of
its own (`nodes.call_model.block_prompt`). Nothing in these texts would do harm if it came back as a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from langchain_core.messages import AnyMessage

from nodes.call_model.block_prompt import block_request, retry_temperature
from nodes.call_model.constrained import calls_schema, meant_tools
from nodes.call_model.profiles import SMALL_STOP, TOOL_RESULT_STOP
from nodes.call_model.wire import message_of
from nodes.call_model.wire_cache import WireCache, encoded, size_of
from nodes.language.body_blocks import BODY_BLOCK_RULE
from nodes.records import Correction, EditForm, JsonMap, Profile, Protocol, ToolSpec

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


NO_TOOLS: Final = b"[]"


class Encoded(NamedTuple):
    """What is sent of a prompt, as bytes that are kept from call to call; `size` is that of the messages."""

    messages: tuple[bytes, ...]
    tools: bytes
    size: int


@dataclass(frozen=True)
class Prompt:
    """One request as it goes on the wire, without the parts that the endpoint's client adds.

    `response_schema` is a JSON schema under which the reply is decoded, where the endpoint can do that. `known` are the
    same messages and tools as bytes, where they are known already.
    """

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    failed_tries: int = 0
    response_schema: JsonMap | None = None
    known: Encoded | None = field(default=None, compare=False, repr=False)

    @cached_property
    def encoded(self) -> Encoded:
        """The messages, each by itself, and the list of tools, in compact JSON."""
        if self.known is not None:
            return self.known
        return Encoded(tuple(map(encoded, self.messages)), encoded(self.tools), sum(map(size_of, self.messages)))

    @cached_property
    def size(self) -> int:
        """What the endpoint is told, in bytes of UTF-8, for the estimate of its tokens.

        A letter counts as one, a character of Chinese or an emoji as the three or four that it costs. What JSON adds to
        the messages does not count.
        """
        schema = len(encoded(self.response_schema)) if self.response_schema is not None else 0
        return self.encoded.size + len(self.encoded.tools) + schema


def build_prompt(
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    temperature: float,
    asked_again: int = 0,
    wire: WireCache | None = None,
    most_tokens: int | None = None,
) -> Prompt:
    """Build the next request from what is shown of the history and the open corrections of this turn.

    `asked_again` counts all corrections of the turn, those that are settled as well. `wire` knows what was sent before.
    The block form leaves out what passes `most_tokens`; others are made to fit before (`nodes.call_model.fitting`).
    """
    wire = wire or WireCache()
    native = profile.protocol is Protocol.NATIVE
    if profile.edit_form is EditForm.BLOCKS:
        messages, tools, failures = block_request(
            specs, history, corrections, native=native, asked=asked_again, most_tokens=most_tokens
        )
        hotter = retry_temperature(temperature, failures)
        return Prompt(
            messages=tuple(messages), tools=tuple(tools), stop=_stop(profile), temperature=hotter, failed_tries=failures
        )
    offered = wire.tools(specs)
    system = NATIVE_SYSTEM if native else TEXT_SYSTEM.format(tools=offered.lines)
    if profile.small and not native:
        system = f"{system}\n{BODY_BLOCK_RULE}"
    front = message_of("system", system)
    sent = wire.messages(history, native=native)
    asked = [
        message
        for each in corrections
        for message in (message_of("assistant", each.reply or "(empty)"), message_of("user", each.prompt))
    ]
    malformed = [correction for correction in corrections if not correction.claim]
    constrained = len(malformed) >= FREE_RETRIES and not corrections[-1].claim
    return Prompt(
        messages=(front, *(message.map for message in sent), *asked),
        response_schema=calls_schema(meant_tools(specs, corrections[-1].reply)) if constrained else None,
        tools=offered.maps if native else (),
        stop=_stop(profile),
        temperature=temperature,
        known=Encoded(
            (encoded(front), *(message.bytes for message in sent), *map(encoded, asked)),
            offered.bytes if native else NO_TOOLS,
            size_of(front) + sum(message.size for message in sent) + sum(map(size_of, asked)),
        ),
    )


def _stop(profile: Profile) -> tuple[str, ...]:
    """Where a reply in text is cut; native calls need no such words, and some endpoints refuse them."""
    if profile.protocol is Protocol.NATIVE:
        return ()
    return SMALL_STOP if profile.small else TOOL_RESULT_STOP
