"""One call to a chat model of LangChain, whoever makes it: within its time, as typed values, and nothing lost.

A chat model is read in its caller's event loop, or by a sync call in a thread. Its time does not depend on the chat
model: one that swallows its cancellation is left behind, and so is the thread of a sync call, which keeps no process
from ending.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from time import monotonic
from typing import Any, Final, NamedTuple

import httpx2
import langsmith
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage

from mendgraph.graph.langchain import failures
from mendgraph.graph.langchain.callbacks import (
    UNHEARD,
    PlainText,
    Report,
    atell_callbacks,
    is_listened_to,
    tell_callbacks,
)
from mendgraph.graph.langchain.connections import ForLoops, ForThreads
from mendgraph.graph.langchain.openai_chat import KeepsExtras, PlainPart
from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.graph.langchain.wrapped_models import LIMIT_FIELDS, SAMPLING, with_settings
from mendgraph.nodes.call_model.model import Call, CallDropped, Model
from mendgraph.nodes.call_model.prompts.estimates import MOST_BYTES_PER_TOKEN
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.stop_request import NEARLY_THERE_S, StopRequest
from mendgraph.nodes.execute_tools.files.deadline import Worker
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import is_request, media_of
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, ProviderFailure

MOST_ADAPTATIONS: Final = 8  # what is left out of one call, one thing after the other, before its refusal is final
LAST_WORDS_S: Final = 0.5  # how long a chat model whose time is over may take to hear of it
LEAST_THOUGHT, LEAST_ANSWER = 1_024, 256
"""Tokens that a budget of thoughts has at least, and that are kept of a reply for what it says."""

_CACHED: Final = {"cache_control": {"type": "ephemeral"}}
"""Marks the end of a prefix that Anthropic keeps: tools, system prompt, messages. Source: its "Prompt caching"."""


_BROKEN_OFF: Final = ProviderFailure(
    kind=ProviderErrorKind.INCOMPLETE_STREAM,
    message="The reply broke off before the endpoint said that it was complete.",
)


class Request(NamedTuple):
    """One request to a chat model: its settings are in the copy, `sent` names what may be left out of the next one."""

    chat: BaseChatModel
    messages: list[AnyMessage]
    options: JsonMap
    sent: frozenset[str]
    streamed: bool
    without_tools: bool
    limit: int
    callbacks: Any


@dataclass
class ChatModel(Model):
    """A chat model as the decisions want it. `threads` and `loops` give the one of the caller.

    `profile` is what its package says of the model `name`, `thinks` that it was set up to reason, and
    `in_openai_form` that it is sent messages in OpenAI's form. `settings` are a run's `model_kwargs` that the chat
    model has; `options` are the others, which are handed to it with each request.
    """

    threads: ForThreads[BaseChatModel]
    loops: ForLoops[BaseChatModel]
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
        """The model's window in tokens, None where its package does not say."""
        window = self.profile.get("max_input_tokens")
        if isinstance(window, int) and window > 0:
            return window

        return None

    def takes(self, kind: str) -> bool | None:
        """Whether the model takes content of this kind, such as "image"; None where neither its package nor it says."""
        if kind in self.learned.refused_media:
            return False

        supports = self.profile.get({"file": "pdf_inputs"}.get(kind, f"{kind}_inputs"))
        return supports if isinstance(supports, bool) else None

    def close(self) -> None:
        """Close the connections of sync calls."""
        self.threads.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self.loops.aclose()

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one call. Returns the reply, or the typed failure of this one try.

        What the provider refuses by name is left out, and the call made again in what is left of its time.

        Raises:
            CallDropped: somebody wants the run to stop.
        """
        clock = _Clock(call)
        adapted = _Adaptation(media=self.learned.refused_media)

        while True:
            try:
                request = self._request(self.threads.get(), call, adapted.media)
            except Exception as error:  # noqa: BLE001 - a chat model of the user's own may fail in any way
                return failures.describe_failure(error, self.provider)

            reading = _Reading(request, call, clock, on_text)
            result = reading.result(reading.read())
            if isinstance(result, ModelReply):
                return self._adapted(result, request, clock, adapted)
            if not self._learns(result, request, call, clock, adapted):
                return self._failure(result, clock, call)

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one call in the running event loop. Whoever cancels it drops it."""
        clock = _Clock(call)
        adapted = _Adaptation(media=self.learned.refused_media)

        while True:
            try:
                request = self._request(await self.loops.get(), call, adapted.media)
            except Exception as error:  # noqa: BLE001 - a chat model of the user's own may fail in any way
                return failures.describe_failure(error, self.provider)

            reading = _Reading(request, call, clock, on_text)
            result = reading.result(await reading.aread())
            if isinstance(result, ModelReply):
                return self._adapted(result, request, clock, adapted)
            if not self._learns(result, request, call, clock, adapted):
                return self._failure(result, clock, call)

    def _adapted(self, reply: ModelReply, request: Request, clock: "_Clock", adapted: "_Adaptation") -> ModelReply:
        self.learned.refused_media |= adapted.media
        update: JsonMap = {
            "adapted": tuple(adapted.names),
            "without_tools": request.without_tools,
            "seconds": clock.seconds,
        }

        if reply.finish_reason is FinishReason.LENGTH:
            update["allowed_tokens"] = request.limit

        return reply.model_copy(update=update)

    def _learns(self, error: Exception, request: Request, call: Call, clock: "_Clock", adapted: "_Adaptation") -> bool:
        """Whether the refusal names something that the next request omits."""
        refusal = failures.read_refusal(error)
        name = self.learned.learn(refusal, request.sent, call.max_output_tokens)

        if name:
            kind = ""
        else:
            kind = self._media_to_leave_out(refusal, call, adapted.media)

        name = name or kind
        if not name or len(adapted.names) >= MOST_ADAPTATIONS or clock.left() <= 0:
            return False

        adapted.names.append(name)
        if kind:
            adapted.media |= {kind}

        return True

    def _media_to_leave_out(self, refusal: failures.Refusal, call: Call, without: frozenset[str]) -> str:
        """What results hold that the model may have refused, such as "image"; "" where a person's request holds it."""
        messages = call.prompt.chat_messages
        request = next((message for message in reversed(messages) if is_request(message)), None)
        media = () if request is None else media_of(request)

        for kind in (kind for message in messages for kind in media_of(message)):
            unknown = kind not in without and self.takes(kind) is None
            if unknown and kind not in media and failures.may_be_about(refusal, kind):
                return kind

        return ""

    def _failure(self, error: Exception, clock: "_Clock", call: Call) -> ProviderFailure:
        failure = failures.describe_failure(error, self.provider, begun=clock.begun)
        message = failure.message
        if failure.kind is ProviderErrorKind.BAD_REQUEST and any(map(media_of, call.prompt.chat_messages)):
            message = f"{message} The request holds images or files, which this model may not take."

        return failure.model_copy(update={"received_characters": clock.characters, "message": message})

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
        update: JsonMap = {"callbacks": None}
        limit, known = limit_of(chat, self.profile)
        allowed = 0

        if limit:
            allowed = learned.limited(min(call.max_output_tokens, known or call.max_output_tokens))
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

        if isinstance(chat, KeepsExtras):
            messages = self._handed_over(chat, prompt, update, options, sent)
            timeout = chat.request_timeout
            if isinstance(timeout, httpx2.Timeout) and timeout.read is None:  # a thread that is abandoned ends with it
                read_s = call.timeout_s + LAST_WORDS_S
                options["timeout"] = httpx2.Timeout(None, connect=timeout.connect, read=read_s)
        else:
            messages = self._as_langchain(chat, prompt, options)

        copied = with_settings(chat, update)
        names = frozenset(sent - learned.dropped)
        return Request(copied, messages, options, names, learned.streams, without_tools, allowed, chat.callbacks)

    def _handed_over(
        self,
        chat: KeepsExtras,
        prompt: Prompt,
        update: JsonMap,
        options: JsonMap,
        sent: set[str],
    ) -> list[AnyMessage]:
        """An OpenAI-compatible request, whose messages need no conversion; those of the Responses API do."""
        dropped = self.learned.dropped
        sent.add("stream_options")
        update["stream_usage"] = "stream_options" not in dropped  # which the ledger asks for

        if not chat.takes_prompts(prompt):
            return self._as_langchain(chat, prompt, options)

        body = {name: value for name, value in (chat.extra_body or {}).items() if name not in dropped}
        sent |= set(body)
        update["extra_body"] = body or None
        options |= {"prompt": prompt, "limit_name": self.learned.limit_name}
        sent.add(failures.LIMIT)

        return []

    def _as_langchain(self, chat: BaseChatModel, prompt: Prompt, options: JsonMap) -> list[AnyMessage]:
        if prompt.tools:
            options |= self._bound(chat, prompt)

        if not _caches_by_breakpoints(chat):
            return prompt.chat_messages

        options |= _CACHED  # of the last message
        system, *others = prompt.chat_messages
        return [SystemMessage([{"type": "text", "text": system.text, **_CACHED}]), *others]

    def _bound(self, chat: BaseChatModel, prompt: Prompt) -> JsonMap:
        bound_tools, options = self._tools
        if bound_tools is not prompt.tools:
            tools = list(prompt.tools)
            if _is_googles(chat):  # whose package warns at each call of a keyword that it leaves out by itself
                tools = _closed(tools)

            options = dict(getattr(chat.bind_tools(tools), "kwargs", {}))
            self._tools = (prompt.tools, options)

        return options


@dataclass
class _Adaptation:
    """What the requests of one call omit: parameters by their names, and kinds of media."""

    media: frozenset[str]
    names: list[str] = field(default_factory=list)


class _Clock:
    """The time of one call; its silence counts from the first part of its reply on."""

    def __init__(self, call: Call) -> None:
        self._started = monotonic()
        self._total_s = call.timeout_s
        self._idle_s = call.idle_timeout_s
        self._silent_end: float | None = None
        self.begun = False
        self.characters = 0

    @property
    def seconds(self) -> float:
        return monotonic() - self._started

    def part(self, *, spoken: bool) -> None:
        self.begun = True
        if spoken and self._idle_s is not None:
            self._silent_end = monotonic() + self._idle_s

    def left(self) -> float:
        end = self._started + self._total_s
        return (end if self._silent_end is None else min(end, self._silent_end)) - monotonic()

    def next_look(self) -> float:
        """When to look at `left` again: before the first part, silence may begin at any time."""
        remaining_s = max(0.0, self.left())
        if self._idle_s is None:
            return remaining_s

        return min(remaining_s, self._idle_s)

    def overdue(self) -> failures.ReplyTimeoutError:
        if self._silent_end is not None and self._silent_end < self._started + self._total_s:
            return failures.ReplyTimeoutError(f"the reply had begun, and nothing more came for {self._idle_s:g} s")
        return failures.ReplyTimeoutError(f"no complete reply within {self._total_s:g} s")


class _Reading:
    """The reading of one reply: what has come is in `assembly`, and its text is passed on as it comes."""

    def __init__(self, request: Request, call: Call, clock: _Clock, on_text: Callable[[str], None]) -> None:
        self.assembly = ReplyAssembly()
        self._request = request
        self._call = call
        self._clock = clock
        self._on_text = on_text
        self._dropped = False

    def read(self) -> Exception | None:
        """Read the reply in a thread, and return why it ended early, None where it came to its own end.

        The thread is abandoned where the time is over, or somebody wants the run to stop.

        Raises:
            CallDropped: somebody wants the run to stop.
        """
        bell: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt its own `get`, as in a signal handler
        ring = partial(bell.put, None)
        stop = self._call.stop or StopRequest()
        reading = Worker(copy_context(), self._read_here).outcome
        reading.add_done_callback(lambda _: ring())

        try:
            with stop.told(ring):
                while not (reading.done() or stop.reason) and self._clock.left() > 0:
                    with suppress(Empty):
                        bell.get(timeout=self._clock.next_look())

            if stop.reason and not reading.done():
                with suppress(TimeoutError):
                    reading.exception(NEARLY_THERE_S)
        finally:
            self._dropped = not reading.done()

        if self._dropped and stop.reason:
            raise CallDropped(self.assembly.characters)
        if self._dropped:
            return self._clock.overdue()
        return _error_of(reading)

    async def aread(self) -> Exception | None:
        """The same in the running event loop. It is over in time, whoever helps."""
        reading: asyncio.Future[None]
        if _is_async(self._request.chat):
            reading = asyncio.ensure_future(self._aread_here())
        else:  # LangChain would read it in a thread that keeps the process from ending
            reading = asyncio.wrap_future(Worker(copy_context(), self._read_here).outcome)
        try:
            while not reading.done() and self._clock.left() > 0:
                await asyncio.wait({reading}, timeout=self._clock.next_look())
        finally:
            self._dropped = not reading.done()
            if self._dropped:
                reading.cancel()
                await asyncio.wait({reading}, timeout=LAST_WORDS_S)
        if self._dropped:
            if reading.done() and not reading.cancelled():
                _ = reading.exception()  # or asyncio would report that nobody has looked
            return self._clock.overdue()
        return _error_of(reading)

    def result(self, error: Exception | None) -> ModelReply | Exception:
        """What the request comes to. A reply that was complete before its connection broke is paid for, and taken."""
        try:
            reply = self.assembly.reply(self._clock.seconds)
        except Exception as broken:  # noqa: BLE001 - a chat model of the user's own may say anything
            return broken
        self._clock.characters = self.assembly.characters
        if reply is not None and (error is None or self.assembly.finish_reason):
            return reply
        word = self.assembly.finish_reason
        unknown = f"The endpoint ended the reply with the unknown word {word[:40]!r}, and it is not complete."
        if word:
            failure = _BROKEN_OFF.model_copy(update={"message": unknown})
        else:
            failure = _BROKEN_OFF
        return error or failures.CallFailedError(failure)

    def _read_here(self) -> None:
        try:
            self._read_sync()
        except NotImplementedError:
            if self.assembly.characters or not _is_async(self._request.chat):
                raise
            asyncio.run(self._aread_here())  # it has only async methods
        except (SystemExit, KeyboardInterrupt) as error:  # which end no process from this thread
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _read_sync(self) -> None:
        with closing(self._texts()) as texts:
            if is_listened_to(self._request.callbacks):
                tell_callbacks(self._report(), texts)
            else:
                for _ in texts:
                    pass

    async def _aread_here(self) -> None:
        try:
            async with aclosing(self._atexts()) as texts:
                if is_listened_to(self._request.callbacks):
                    await atell_callbacks(self._report(), texts)
                else:
                    async for _ in texts:
                        pass
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise  # which is a person's
            raise RuntimeError(f"{type(error).__name__}: {error}") from error  # or it would end the event loop

    def _report(self) -> Report:
        request = self._request
        call = self._call
        messages = call.prompt.chat_messages
        scrub = call.scrub or PlainText
        return Report(request.chat, request.callbacks, messages, self.assembly, scrub, quiet=call.quiet)

    def _texts(self) -> Generator[str]:
        chat = self._request.chat
        messages = self._request.messages
        options = self._request.options
        with langsmith.tracing_context(enabled=False):  # who listens hears the words without secrets: see above
            if not self._request.streamed:
                yield self._take(chat.invoke(messages, {"callbacks": UNHEARD}, **options))
                return

            if isinstance(chat, KeepsExtras) and "prompt" in options and not chat.disable_streaming:
                parts: Any = chat.parts(**options)
            else:
                parts = chat.stream(messages, {"callbacks": UNHEARD}, **options)
            with closing(parts):
                for part in parts:
                    yield self._take(part)
                    if self._dropped or self._exceeds_limit():
                        return

    async def _atexts(self) -> AsyncGenerator[str]:
        chat = self._request.chat
        messages = self._request.messages
        options = self._request.options
        with langsmith.tracing_context(enabled=False):
            if not self._request.streamed:
                yield self._take(await chat.ainvoke(messages, {"callbacks": UNHEARD}, **options))
                return

            if isinstance(chat, KeepsExtras) and "prompt" in options and not chat.disable_streaming:
                parts: Any = chat.aparts(**options)
            else:
                parts = chat.astream(messages, {"callbacks": UNHEARD}, **options)
            async with aclosing(parts):
                async for part in parts:
                    yield self._take(part)
                    if self._exceeds_limit():
                        return

    def _exceeds_limit(self) -> bool:
        """Whether the reply has more than twice the tokens that it may have: its endpoint ignores the limit.

        It is cut off then.
        """
        allowed = self._request.limit or self._call.max_output_tokens
        exceeds = self.assembly.characters > 2 * allowed * MOST_BYTES_PER_TOKEN
        if exceeds:
            self.assembly.finish_reason = "length"
        return exceeds

    def _take(self, part: AIMessage | PlainPart) -> str:
        if self._dropped:
            return ""
        text = self.assembly.take(part)
        self._clock.part(spoken=self.assembly.spoken)
        if text:
            self._on_text(text if text.isascii() else storable(text))
        return text


def _error_of(reading: "asyncio.Future[None] | Future[None]") -> Exception | None:
    if reading.cancelled():
        return RuntimeError("it cancelled itself")
    error = reading.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


def _is_googles(chat: BaseChatModel) -> bool:
    return type(chat).__module__.startswith("langchain_google")


def limit_of(chat: BaseChatModel, profile: Mapping[str, Any]) -> tuple[str, int | None]:
    """What the chat model calls the most tokens of a reply, "" where it has no such setting; and how many that are.

    None where neither its settings nor its package's `profile` say.
    """
    name = next((each for each in LIMIT_FIELDS if each in type(chat).model_fields), "")
    limits = (getattr(chat, name, None) if name else None, profile.get("max_output_tokens"))
    return name, min((tokens for tokens in limits if isinstance(tokens, int) and tokens > 0), default=None)


def less_thought(chat: BaseChatModel, limit: int) -> JsonMap:
    """A budget of thoughts that leaves room for an answer, none where there is no room for both.

    Source: Anthropic, "Extended thinking": at least 1,024 tokens, and fewer than the reply may have.
    """
    thinking = getattr(chat, "thinking", None)
    budget = None
    if isinstance(thinking, dict):
        budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget + LEAST_ANSWER <= limit:
        return {}
    room = limit - LEAST_ANSWER
    return {"thinking": {**thinking, "budget_tokens": room} if thinking and room >= LEAST_THOUGHT else None}


def _is_async(chat: BaseChatModel) -> bool:
    """Whether a chat model can be read in an event loop by itself; LangChain would put it into a thread otherwise."""
    kind = type(chat)
    streams = kind._astream is not BaseChatModel._astream  # noqa: SLF001 - what a chat model overrides
    return streams or (
        kind._stream is BaseChatModel._stream and kind._agenerate is not BaseChatModel._agenerate  # noqa: SLF001
    )


def _caches_by_breakpoints(chat: BaseChatModel) -> bool:
    """Whether this is one of the chat models for Anthropic's API, by its class, as its package need not be here."""
    return any(kind.__name__ == "ChatAnthropic" for kind in type(chat).__mro__)


def _closed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _closed(item) for name, item in value.items() if name != "additionalProperties"}
    if isinstance(value, list):
        return [_closed(item) for item in value]
    return value
