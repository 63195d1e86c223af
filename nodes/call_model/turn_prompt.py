"""The next request of a turn in one of three forms.

`native` sends the tools as JSON schemas, `text` describes them in the system prompt for replies with `tool:` lines, and
the block form for small models has its own prompt. The beginning of a prompt never changes, so that it can be cached.
Nothing in these texts would do harm if a model repeated it as a call.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.prompts.profiles import SMALL_STOP, SMALL_TEMPERATURE
from mendgraph.nodes.call_model.prompts.prompt import Measured, Prompt, ShownMessages
from mendgraph.nodes.call_model.window import notes_before, with_notes
from mendgraph.nodes.language.chat_messages import describe_tool, from_map, message_of, size_of, text_size
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.records import Correction, Profile, Protocol, ToolSpec

if TYPE_CHECKING:
    from mendgraph.nodes.language.block_form import BlockRequests

NATIVE_SYSTEM: Final = """\
You are a coding agent. You work on the files of one workspace through tools.
Read a file before you change it. Make the smallest change that does the task. Paths are relative to the workspace.
When the task is done, answer in plain text without a tool call."""

TEXT_SYSTEM: Final = """\
You are a coding agent. You work on the files of one workspace through tools.
To use a tool, write a line of its own:
tool: NAME({{"argument": "value"}})
The argument is one JSON object in compact form. Several lines make several calls; then stop and wait for the results.
Read a file before you change it. Make the smallest change that does the task. Paths are relative to the workspace.
When the task is done, answer in plain text without a tool line.

Tools:
{tools}"""

PLAN: Final = """\
You plan the task, and change nothing. Read what you need, then answer with the plan: the files to change, what
changes in each, and the commands that check it. A person decides whether you carry it out."""
"""The instructions of mode "plan"."""


def turn_prompt(
    state: CallModelState,
    settings: CallSettings,
    specs: Sequence[ToolSpec],
    view: Sequence[AnyMessage],
    most_tokens: int | None = None,
) -> Prompt:
    """Return the next request with the messages in `view`, the project's notes and the user's system prompt.

    The block form omits what exceeds `most_tokens`; other forms are shortened through their view.
    """
    profile = state["profile"]
    notes = state.get("notes") or ()
    corrections = state.get("corrections") or ()
    user_system = _user_system(state, settings)

    if settings.blocks is None:
        history = with_notes(view, notes, settings.stand_ins)
        prompt = build_prompt(profile, specs, history, corrections, settings.temperature, settings.cache)
    else:
        notes_text = notes_before(notes, "") if notes else ""
        prompt = build_block_prompt(
            settings.blocks,
            profile,
            specs,
            view,
            corrections,
            settings.temperature,
            state["spending"].mending.asked_again,
            _tokens_beside(most_tokens, notes_text, user_system),
        )
        if notes:
            *others, request = prompt.messages
            request = {**request, "content": notes_before(notes, str(request["content"]))}
            prompt = replace(prompt, messages=(*others, request))

    if user_system:
        prompt = _with_user_system(prompt, user_system)

    if profile.protocol is Protocol.TEXT:
        return prompt

    text_profile = profile.model_copy(update={"protocol": Protocol.TEXT})
    text_state: CallModelState = {**state, "profile": text_profile}
    return replace(prompt, without_tools=partial(turn_prompt, text_state, settings, specs, view, most_tokens))


def build_prompt(
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    temperature: float | None,
    shown: ShownMessages | None = None,
) -> Prompt:
    """Return a request in the text or native protocol: system prompt, history and open corrections.

    `shown` holds the messages of earlier requests.
    """
    shown = shown or ShownMessages()
    native = profile.protocol is Protocol.NATIVE
    tools = shown.tools(specs)

    if native:
        system = message_of("system", NATIVE_SYSTEM)
    else:
        lines = "\n".join(map(describe_tool, specs))
        system = message_of("system", TEXT_SYSTEM.format(tools=lines))

    added = []
    for correction in corrections:
        added.append(message_of("assistant", correction.reply or "(empty)"))
        added.append(message_of("user", correction.prompt))

    messages = shown.messages(history, native=native)
    size = size_of(system) + sum(message.size for message in messages) + sum(map(size_of, added))
    chat_messages = (from_map(system), *(message.message for message in messages), *map(from_map, added))

    return Prompt(
        messages=(system, *(message.map for message in messages), *added),
        tools=tools.maps if native else (),
        stop=_stop_texts(profile),
        temperature=_temperature(profile, temperature),
        measured=Measured(chat_messages, size, tools.size if native else 0),
    )


def build_block_prompt(
    blocks: "BlockRequests",
    profile: Profile,
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    temperature: float | None,
    corrections_sent: int = 0,
    most_tokens: int | None = None,
) -> Prompt:
    """Return a request in the block form, which omits what exceeds `most_tokens`.

    `corrections_sent` counts all corrections of the turn, including settled ones.
    """
    request = blocks.request(
        specs,
        history,
        corrections,
        native=profile.protocol is Protocol.NATIVE,
        corrections_sent=corrections_sent,
        most_tokens=most_tokens,
    )
    temperature = _temperature(profile, temperature)
    if request.temperature is not None:
        temperature = max(temperature or 0.0, request.temperature)

    return Prompt(request.messages, request.tools, _stop_texts(profile), temperature, request.failed_tries)


def _stop_texts(profile: Profile) -> tuple[str, ...]:
    """Return the texts that end a reply: a small model may invent its tool's result. Some endpoints refuse `stop`."""
    if profile.small and profile.protocol is Protocol.TEXT:
        return SMALL_STOP

    return ()


def _temperature(profile: Profile, temperature: float | None) -> float | None:
    """Return the temperature, or None to leave it to the endpoint."""
    if temperature is None and profile.small:
        return SMALL_TEMPERATURE

    return temperature


def _tokens_beside(most_tokens: int | None, *texts: str) -> int | None:
    """Return the tokens that `texts` leave of `most_tokens`, at least one."""
    if most_tokens is None or not any(texts):
        return most_tokens

    return max(1, most_tokens - estimate_tokens(sum(map(text_size, texts)), 1))


def _user_system(state: CallModelState, settings: CallSettings) -> str:
    """Return the system prompts of the user, of hooks and of the run's mode."""
    texts = ["".join(state.get("system_prompt") or ()), settings.system, settings.mode_prompt]
    return "\n\n".join(text for text in texts if text)


def _with_user_system(prompt: Prompt, user_system: str) -> Prompt:
    """Return the prompt with the user's system prompt after ours."""
    system, *others = prompt.messages
    joined = {**system, "content": f"{system['content']}\n\n{user_system}"}
    messages = (joined, *others)

    if prompt.measured is None:
        return replace(prompt, messages=messages)

    size = prompt.measured.size - size_of(system) + size_of(joined)
    chat_messages = (from_map(joined), *prompt.measured.messages[1:])
    return replace(prompt, messages=messages, measured=prompt.measured._replace(messages=chat_messages, size=size))
