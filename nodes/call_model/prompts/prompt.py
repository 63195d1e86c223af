"""What the model is shown: a short prompt that never changes at the front, then the conversation.

Three ways of talking share the tools and the history. `native` sends the tools as the endpoint's own schemas. `text`
describes them in the system prompt and is answered in `tool:` lines. The block form, for small models, has a prompt of
its own (`nodes.call_model.prompts.block_prompt`). Nothing in these texts would do harm if it came back as a call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.prompts.block_prompt import block_request, retry_temperature
from mendgraph.nodes.call_model.prompts.profiles import SMALL_STOP
from mendgraph.nodes.call_model.prompts.shown_messages import ShownMessages, from_map, json_size, message_of, size_of
from mendgraph.nodes.records import Correction, EditForm, JsonMap, Profile, Protocol, ToolSpec

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


SMALL_TEMPERATURE: Final = 0.0
"""Of a small model's first try, where nobody asked for another: sampled, it makes more mistakes of form."""


class Known(NamedTuple):
    """What is known of a prompt before it is looked at: LangChain's messages, and the bytes of messages and tools."""

    messages: tuple[AnyMessage, ...]
    size: int
    tools_size: int


@dataclass(frozen=True)
class Prompt:
    """One request, without the parts that a chat model adds: its messages and tools in OpenAI's form.

    `temperature` is None where nobody asked for one. `without_tools` makes the same request in the text protocol, for a
    model that turns out to have no native tools. `known` is what was made of these messages and tools before.
    """

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    failed_tries: int = 0
    without_tools: "Callable[[], Prompt] | None" = field(default=None, compare=False, repr=False)
    known: Known | None = field(default=None, compare=False, repr=False)

    @cached_property
    def chat_messages(self) -> list[AnyMessage]:
        """The messages as LangChain's, with all that the endpoint wants to see again of its own."""
        return list(self.known.messages) if self.known else list(map(from_map, self.messages))

    @cached_property
    def size(self) -> int:
        """What the endpoint is told, in bytes of UTF-8, for the estimate of its tokens.

        A letter counts as one, a character of Chinese or an emoji as the three or four that it costs. What JSON adds to
        the messages does not count.
        """
        if self.known is not None:
            return self.known.size + self.known.tools_size
        return sum(map(size_of, self.messages)) + json_size(self.tools)


def build_prompt(
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    temperature: float | None,
    asked_again: int = 0,
    shown: ShownMessages | None = None,
    most_tokens: int | None = None,
) -> Prompt:
    """Build the next request from what is shown of the history and the open corrections of this turn.

    `asked_again` counts all corrections of the turn, those that are settled as well. `shown` knows what was sent
    before. The block form leaves out what passes `most_tokens`; others are made to fit before, by `exchange`.
    """
    shown = shown or ShownMessages()
    native = profile.protocol is Protocol.NATIVE
    temperature = SMALL_TEMPERATURE if temperature is None and profile.small else temperature
    if profile.edit_form is EditForm.BLOCKS:
        messages, tools, failures = block_request(
            specs, history, corrections, native=native, asked=asked_again, most_tokens=most_tokens
        )
        hotter = retry_temperature(temperature, failures) if profile.small else temperature
        return Prompt(
            messages=tuple(messages), tools=tuple(tools), stop=_stop(profile), temperature=hotter, failed_tries=failures
        )
    offered = shown.tools(specs)
    system = NATIVE_SYSTEM if native else TEXT_SYSTEM.format(tools=offered.lines)
    front = message_of("system", system)
    sent = shown.messages(history, native=native)
    asked = [
        message
        for each in corrections
        for message in (message_of("assistant", each.reply or "(empty)"), message_of("user", each.prompt))
    ]
    return Prompt(
        messages=(front, *(message.map for message in sent), *asked),
        tools=offered.maps if native else (),
        stop=_stop(profile),
        temperature=temperature,
        known=Known(
            (from_map(front), *(each.message for each in sent), *map(from_map, asked)),
            size_of(front) + sum(each.size for each in sent) + sum(map(size_of, asked)),
            offered.size if native else 0,
        ),
    )


def _stop(profile: Profile) -> tuple[str, ...]:
    """Where a reply in text is cut: a small model writes its tool's result itself. Some endpoints refuse such words."""
    return SMALL_STOP if profile.small and profile.protocol is not Protocol.NATIVE else ()
