"""One call to a chat model of LangChain: within its time limit, with a typed result, and without losing any content.

A chat model is read in its caller's event loop, or by a sync call in a thread. Its time does not depend on the chat
model: one that swallows its cancellation is abandoned, and so is the thread of a sync call, which does not keep the
process from ending.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx2
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, SystemMessage

from mendgraph.graph.langchain import failures
from mendgraph.graph.langchain.connections import ChatConnections, is_anthropic_chat, is_openai_chat
from mendgraph.graph.langchain.reply_reader import CANCEL_GRACE_S, CallClock, ReplyReader, Request
from mendgraph.graph.langchain.wrapped_models import LIMIT_FIELDS, SAMPLING, with_settings
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.language.media import media_of
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, ProviderFailure

if TYPE_CHECKING:
    from langchain_openai.chat_models.base import BaseChatOpenAI

MOST_ADAPTATIONS: Final = 8
"""Parameters that are omitted from one call, one after the other, before its refusal is final."""
LEAST_THOUGHT: Final = 1_024  # tokens of the smallest budget for reasoning
LEAST_ANSWER: Final = 256  # tokens of a reply that are reserved for its answer

_CACHED: Final = {"cache_control": {"type": "ephemeral"}}
"""Marks the end of a prefix that Anthropic keeps: tools, system prompt, messages. Source: its "Prompt caching"."""


@dataclass
class ChatModel(Model):
    """A chat model behind the interface of `Model`. `connections` return the copy that the caller uses.

    `profile` is its package's profile of the model `name`; `thinks`: it is configured to reason; `in_openai_form`: it
    takes messages in OpenAI's form. `settings` are a run's `model_kwargs` that are fields of the chat model; `options`
    are the others, which each request passes on.
    """

    connections: ChatConnections
    provider: failures.Provider
    learned: failures.Learned
    name: str = ""
    profile: Mapping[str, Any] = field(default_factory=dict)
    thinks: bool = False
    in_openai_form: bool = False
    settings: JsonMap = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    _tools: tuple[object, JsonMap] = field(default=((), {}), init=False)

    @property
    def window_tokens(self) -> int | None:
        """The model's context window in tokens, None if its package does not say."""
        window = self.profile.get("max_input_tokens")
        if isinstance(window, int) and window > 0:
            return window

        return None

    def takes(self, kind: str) -> bool | None:
        """Return whether the model takes content of this kind, such as "image", None if that is unknown."""
        if kind in self.learned.refused_media:
            return False

        field = f"{kind}_inputs"
        if kind == "file":
            field = "pdf_inputs"

        supports = self.profile.get(field)
        if isinstance(supports, bool):
            return supports

        return None

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one call; return the reply, or the typed failure of this one try.

        A parameter that the provider refuses by name is omitted, and the call is made again in the remaining time.

        Raises:
            CallDropped: the run is to stop.
        """
        clock = CallClock(call)
        adapted = _Adaptation(media=self.learned.refused_media)

        while True:
            try:
                request = self._request(self.connections.get(), call, adapted.media)
            except Exception as error:  # noqa: BLE001 - a chat model of the user's own may fail in any way
                return failures.describe_failure(error, self.provider)

            reader = ReplyReader(request, call, clock, on_text)
            result = self._result(reader, reader.read(), call, adapted)
            if result is not None:
                return result

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one call in the running event loop; see `complete`. A caller who cancels it drops the call."""
        clock = CallClock(call)
        adapted = _Adaptation(media=self.learned.refused_media)

        while True:
            try:
                request = self._request(await self.connections.aget(), call, adapted.media)
            except Exception as error:  # noqa: BLE001 - a chat model of the user's own may fail in any way
                return failures.describe_failure(error, self.provider)

            reader = ReplyReader(request, call, clock, on_text)
            result = self._result(reader, await reader.aread(), call, adapted)
            if result is not None:
                return result

    def _result(
        self, reader: ReplyReader, error: Exception | None, call: Call, adapted: "_Adaptation"
    ) -> ModelReply | ProviderFailure | None:
        """Return the result of a request, None if the next one omits something that this one was refused for."""
        request = reader.request
        result = reader.result(error)
        if not isinstance(result, ModelReply):
            if self._learns(result, request, call, reader.clock, adapted):
                return None

            return self._failure(result, reader, call)

        self.learned.refused_media |= adapted.media
        update: JsonMap = {
            "adapted": tuple(adapted.names),
            "without_tools": request.without_tools,
            "seconds": reader.clock.seconds,
        }

        if result.finish_reason is FinishReason.LENGTH:
            update["allowed_tokens"] = request.limit

        return result.model_copy(update=update)

    def _learns(self, error: Exception, request: Request, call: Call, clock: CallClock, adapted: "_Adaptation") -> bool:
        """Return whether the refusal names something that the next request omits."""
        refusal = failures.read_refusal(error)
        name = self.learned.learn(refusal, request.sent, call.max_output_tokens)

        kind = ""
        if not name:
            kind = name = self._refused_media(refusal, call, adapted.media)

        if not name or len(adapted.names) >= MOST_ADAPTATIONS or clock.remaining_s() <= 0:
            return False

        adapted.names.append(name)
        if kind:
            adapted.media |= {kind}

        return True

    def _refused_media(self, refusal: failures.Refusal, call: Call, omitted: frozenset[str]) -> str:
        """Return the kind of media in results that the model may have refused, "" if the request holds it too."""
        messages = call.prompt.chat_messages
        kinds: list[str] = []
        media_of_request: Collection[str] = ()

        for message in messages:
            kinds += media_of(message)
            if is_request(message):
                media_of_request = media_of(message)

        for kind in kinds:
            unknown = kind not in omitted and self.takes(kind) is None
            if unknown and kind not in media_of_request and failures.may_be_about(refusal, kind):
                return kind

        return ""

    def _failure(self, error: Exception, reader: ReplyReader, call: Call) -> ProviderFailure:
        failure = failures.describe_failure(error, self.provider, reply_started=reader.clock.started)
        message = failure.message
        if failure.kind is ProviderErrorKind.BAD_REQUEST and any(map(media_of, call.prompt.chat_messages)):
            message = f"{message} The request contains images or files, which this model may not accept."

        return failure.model_copy(update={"received_characters": reader.assembly.characters, "message": message})

    def _request(self, chat: BaseChatModel, call: Call, media: frozenset[str] = frozenset()) -> Request:
        chat = with_settings(chat, self.settings)
        prompt = call.prompt
        learned = self.learned
        without_tools = bool(prompt.tools) and not learned.tools and prompt.without_tools is not None

        if without_tools and prompt.without_tools is not None:
            prompt = prompt.without_tools()

        if media:
            prompt = prompt.without_media(media)

        fields = type(chat).model_fields
        sent = {failures.STREAM}
        update: JsonMap = {"callbacks": None, "disable_streaming": chat.disable_streaming or not learned.streams}
        limit, model_limit = limit_of(chat, self.profile)
        allowed = 0

        if limit:
            allowed = learned.limited(min(call.max_output_tokens, model_limit or call.max_output_tokens))
            update |= {limit: allowed, **less_thought(chat, allowed)}

        for name, value in (("temperature", prompt.temperature), ("seed", call.seed)):
            if value is not None and name in fields and self.profile.get(name) is not False:
                update[name] = value

        for name in SAMPLING:
            if update.get(name, getattr(chat, name, None)) is not None:
                sent.add(name)

        update |= {name: None for name in learned.dropped if name in fields}
        options = {name: value for name, value in self.options.items() if name not in learned.dropped}
        sent |= set(options)

        if prompt.stop and "stop" not in learned.dropped and not getattr(chat, "stop", None):
            options["stop"] = list(prompt.stop)
            sent.add("stop")

        if prompt.tools:
            sent.add(failures.TOOLS)

        if is_openai_chat(chat):
            sent.add("stream_options")
            update["stream_usage"] = "stream_options" not in learned.dropped  # the ledger needs it
            update["stream_chunk_timeout"] = None  # a call has time limits of its own
            options |= _timeout_options(chat, call)

        if is_openai_chat(chat) and not _uses_responses_api(chat, prompt):
            body = _take_fields_of_body(chat, options, update, learned.dropped)
            sent |= {*body, failures.LIMIT}
            update |= {limit: None, "extra_body": None}
            options["extra_body"] = {**body, **_body(prompt), learned.limit_name: allowed}
            messages = []
        else:
            messages = self._as_langchain(chat, prompt, options)

        copied = with_settings(chat, update)
        names = frozenset(sent - learned.dropped)
        return Request(copied, messages, options, names, without_tools, allowed, chat.callbacks)

    def _as_langchain(self, chat: BaseChatModel, prompt: Prompt, options: JsonMap) -> list[AnyMessage]:
        if prompt.tools:
            options |= self._tool_options(chat, prompt)

        if not is_anthropic_chat(chat):
            return prompt.chat_messages

        options |= _CACHED  # of the last message
        system, *others = prompt.chat_messages
        return [SystemMessage([{"type": "text", "text": system.text, **_CACHED}]), *others]

    def _tool_options(self, chat: BaseChatModel, prompt: Prompt) -> JsonMap:
        bound_tools, options = self._tools
        if bound_tools is not prompt.tools:
            tools = list(prompt.tools)
            if _is_of_google(chat):  # whose package warns of a keyword that it ignores
                tools = _without_additional_properties(tools)

            options = dict(getattr(chat.bind_tools(tools), "kwargs", {}))
            self._tools = (prompt.tools, options)

        return options


@dataclass
class _Adaptation:
    """What the requests of one call omit: names of parameters, and kinds of media."""

    media: frozenset[str]
    names: list[str] = field(default_factory=list)


def _take_fields_of_body(
    chat: "BaseChatOpenAI", options: JsonMap, update: JsonMap, dropped: Collection[str]
) -> JsonMap:
    """Return the fields that a user adds to the body of a request, without those that the endpoint has refused.

    A `response_format` moves there from `options` and, by `update`, from the chat model: LangChain would ask for it by
    another interface of the SDK, whose stream repeats parts of the reply.
    """
    body: JsonMap = {**(chat.extra_body or {})}
    arguments = {**chat.model_kwargs}

    for source in (arguments, options):
        if isinstance(source.get("response_format"), dict):
            body["response_format"] = source.pop("response_format")

    update["model_kwargs"] = arguments
    return {name: value for name, value in body.items() if name not in dropped}


def _timeout_options(chat: "BaseChatOpenAI", call: Call) -> JsonMap:
    """Limit how long an endpoint may be silent, where nothing else does: it ends a thread that is abandoned."""
    timeout = chat.request_timeout
    if not isinstance(timeout, httpx2.Timeout) or timeout.read is not None:
        return {}

    return {"timeout": httpx2.Timeout(None, connect=timeout.connect, read=call.timeout_s + CANCEL_GRACE_S)}


def _uses_responses_api(chat: "BaseChatOpenAI", prompt: Prompt) -> bool:
    payload = {**chat._default_params, "tools": list(prompt.tools)}  # noqa: SLF001 - LangChain decides by the payload
    return chat._use_responses_api(payload)  # noqa: SLF001


def _body(prompt: Prompt) -> JsonMap:
    """Return messages and tools as fields of a request's body, which the SDK does not check against its types.

    The check walks every message at every call: it is nine tenths of a step's CPU at 200 steps. Source: measured on
    openai 3.51, 23 of 30 ms.
    """
    body: JsonMap = {"messages": _media_after_results(prompt.messages)}
    if prompt.tools:
        body["tools"] = list(prompt.tools)

    return body


def _media_after_results(messages: Iterable[JsonMap]) -> list[JsonMap]:
    """Move images and files of tool results into a user message behind them: this API takes these from no tool.

    Source: OpenAI's API reference, "Create chat completion", content of tool messages.
    """
    sent: list[JsonMap] = []
    media: list[JsonMap] = []

    for message in messages:
        if media and message["role"] != "tool":
            sent.append({"role": "user", "content": media})
            media = []

        if message["role"] == "tool" and isinstance(message["content"], list):
            text = ""
            for block in message["content"]:
                if block["type"] == "text":
                    text += block["text"]
                else:
                    media.append(block)

            sent.append({**message, "content": text or "It follows the results."})
        else:
            sent.append(message)

    if media:
        sent.append({"role": "user", "content": media})

    return sent


def _is_of_google(chat: BaseChatModel) -> bool:
    return type(chat).__module__.startswith("langchain_google")


def limit_of(chat: BaseChatModel, profile: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the chat model's field for the most tokens of a reply ("" if it has none), and the limit itself.

    The limit is the lower one of its settings and its package's `profile`, None if neither has one.
    """
    fields = type(chat).model_fields
    name = next((field for field in LIMIT_FIELDS if field in fields), "")
    limits = [profile.get("max_output_tokens")]
    if name:
        limits.append(getattr(chat, name, None))

    return name, min((tokens for tokens in limits if isinstance(tokens, int) and tokens > 0), default=None)


def less_thought(chat: BaseChatModel, limit: int) -> JsonMap:
    """Return the setting `thinking` with a budget of tokens that leaves room for an answer, or {} if it fits already.

    Its value is None if there is no room.

    Source: Anthropic, "Extended thinking": at least 1,024 tokens, and fewer than the reply may have.
    """
    thinking = getattr(chat, "thinking", None)
    if not isinstance(thinking, dict):
        return {}

    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget + LEAST_ANSWER <= limit:
        return {}

    room = limit - LEAST_ANSWER
    if room < LEAST_THOUGHT:
        return {"thinking": None}

    return {"thinking": {**thinking, "budget_tokens": room}}


def _without_additional_properties(schema: Any) -> Any:
    """Return a JSON schema without `additionalProperties`, at any depth."""
    if isinstance(schema, list):
        return [_without_additional_properties(item) for item in schema]
    if not isinstance(schema, dict):
        return schema

    return {
        name: _without_additional_properties(item) for name, item in schema.items() if name != "additionalProperties"
    }
