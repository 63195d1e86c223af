"""The models of a machine with their connections, and the model of one turn with its price and its limits."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.config import get_stream_writer

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.prices import load_prices
from mendgraph.graph.langchain.wrapped_models import is_configurable, run_models
from mendgraph.graph.machine.small_models import block_form, is_in_blocks
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.graph.telemetry.spans import OBSERVER, RunSpan
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.call_state import CallSettings
from mendgraph.nodes.call_model.endpoint import (
    EMBEDDED_MODEL,
    EMBEDDED_WINDOW,
    Endpoint,
    ModelChoice,
    ModelOptions,
    find_endpoint,
    models_in_order,
    named_model,
)
from mendgraph.nodes.call_model.model import GuardedModel
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.prices import FREE, Price, PriceList, find_price
from mendgraph.nodes.call_model.prompts.profiles import find_profile
from mendgraph.nodes.call_model.prompts.prompt import ShownMessages
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.call_model.turn_prompt import PLAN
from mendgraph.nodes.call_model.window import StandIns
from mendgraph.nodes.execute_tools.call_policy import BreakerConfig, breakers_by_name
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.secrets.text_parts import RedactedStream
from mendgraph.nodes.language.media import in_openai_form, media_of
from mendgraph.nodes.records import JsonMap, Profile, ProviderFailure, ToolError
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.journal.journal import parent_of

if TYPE_CHECKING:
    from mendgraph.graph.langchain.chat_model import ChatModel
    from mendgraph.graph.langchain.chat_models import ChatModels

MOST_OPEN: Final = 16
"""Chat models of a user, of hooks and of configs whose connections stay open."""

_LANGGRAPH_KEYS: Final = ("__", "thread_id", "checkpoint_", "langgraph_", "graph_id", "assistant_id", "run_id")
"""Prefixes of LangGraph's own keys in `configurable`; the other keys may configure a model."""


class MachineModels:
    """The models of one machine. Nothing is connected, opened or read before it is needed."""

    def __init__(
        self, model: Runnable[Any, Any] | str | None, redactor: Callable[[], Redactor], stop: StopRequest | None
    ) -> None:
        """`model` is a chat model that answers all calls, or the name of a model."""
        self.chat_model = None if isinstance(model, str) else model
        self.model_name = model if isinstance(model, str) else None
        self.stop = stop or StopRequest()
        self.book = SpendingStore()
        self.messages = ShownMessages()
        self.stand_ins: StandIns = {}

        self._redactor = redactor
        self._breaker_of = breakers_by_name(BreakerConfig(), monotonic_s)
        self._opened: list[tuple[object, object, ChatModels]] = []
        self._lock = Lock()

    @property
    def run_chat_model(self) -> Any:
        """The user's chat model as the run's config configures it; None if the user gave none."""
        if self.chat_model is None:
            return None
        return run_models(self.chat_model, _config_of(self.chat_model))[0].chat

    def connections(self, other: Runnable[Any, Any] | None = None) -> "ChatModels":
        """Return the connections of this run's models, or of another chat model, as the run's config configures them.

        They stay open. The first turn creates them: importing langchain-openai takes half a second.

        Raises TypeError: it is no chat model, and nothing that a run can honour.
        """
        from mendgraph.graph.langchain.chat_models import ChatModels

        chat = self.chat_model if other is None else other
        config = _config_of(chat)
        with self._lock:
            for opened_chat, opened_config, models in self._opened:
                if opened_chat is chat and opened_config == config:
                    return models

            models = ChatModels(os.environ, () if chat is None else run_models(chat, config))
            self._opened.append((chat, config, models))
            del self._opened[:-MOST_OPEN]
            return models

    @cached_property
    def prices(self) -> PriceList | ToolError:
        """The price list, or why it cannot be read."""
        return load_prices()

    def listed_price(self, name: str) -> Price | None:
        """Return the price of a model by the price list; None if that does not know the model or cannot be read."""
        if isinstance(self.prices, ToolError):
            return None
        return find_price(self.prices, name)

    def services(
        self, limits: ledger.RunLimits, tell: Callable[[str, JsonMap], None], models: "ChatModels | None" = None
    ) -> CallServices:
        """Return how calls are made to these models, by default the run's own.

        Text and waits go to readers of the run's "custom" stream.
        """
        write = get_stream_writer()

        def on_text(text: str) -> None:
            write({"type": "text", "text": text})

        def on_wait(seconds: float, reason: str) -> None:
            write({"type": "waiting", "seconds": seconds, "reason": reason})

        connect = partial(self._connect, OBSERVER.get(), models)
        ready = partial(connect, waiting=False)
        return CallServices(connect, on_text, on_wait, tell, self.book, limits, self.stop, ready)

    def _connect(
        self, observer: RunSpan | None, models: "ChatModels | None", choice: ModelChoice, *, waiting: bool = True
    ) -> Any:
        is_users = models is not None or self.chat_model is not None
        connection = (models or self.connections()).connect(choice, waiting=waiting)
        if connection is None or isinstance(connection, ProviderFailure):
            return connection

        redactor = self._redactor()
        # A literal that the model itself calls a password is no secret of the user; it may be the fixture of a test.
        # The call runs with it; `WrittenLiterals` keeps it out of what is stored.
        breaker = self._breaker_of(choice.breaker_key)
        model = GuardedModel(connection, breaker, redactor.unnamed, partial(RedactedStream, redactor))
        if observer is None:
            return model
        return observer.model(model, choice, is_users=is_users)

    def close(self) -> None:
        """Close the connections of sync calls, and the spending book."""
        for *_, models in self._opened:
            models.close()

        self.book.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop and of sync calls, and the spending book."""
        for *_, models in self._opened:
            await models.aclose()

        self.book.close()


def _config_of(chat: object) -> RunnableConfig:
    """Return the part of the run's config that configures a configurable model."""
    if not is_configurable(chat):
        return {}

    configurable = ensure_config().get("configurable") or {}
    return {"configurable": {name: configurable[name] for name in configurable if not name.startswith(_LANGGRAPH_KEYS)}}


# --- The model of a turn


class ChatModelChoice(ModelChoice):
    """One of the chat models that the user gave, by its `place` among them."""

    place: int = 0

    @property
    def breaker_key(self) -> str:
        """The key of its circuit breaker; two models may have the same name."""
        return f"{super().breaker_key} {self.place}"


class TurnModel:
    """The model of one turn, and those that may replace it.

    What follows from the context is computed once. What a model has shown of itself, such as that it takes no images,
    may change while the turn runs.
    """

    def __init__(self, machine: MachineModels, context: AgentContext) -> None:
        self.machine = machine
        self.context = context

    @cached_property
    def requested_name(self) -> str | None:
        """The name from `build_graph`, the context or the environment, in this order."""
        return self.machine.model_name or self.context.model or named_model(self.context.base_url, os.environ)

    @cached_property
    def _options(self) -> ModelOptions:
        return self.context.model_options()

    @cached_property
    def _connections(self) -> "ChatModels":
        return self.machine.connections()

    @cached_property
    def _endpoint(self) -> Endpoint | None:
        """The endpoint of a model by name."""
        if self.machine.chat_model is not None:
            return None

        endpoint = find_endpoint(self.requested_name, self.context.base_url, os.environ)
        if isinstance(endpoint, ProviderFailure):
            return None
        return endpoint

    def _connected(self) -> "ChatModel | None":
        """Return the connected model; None before the first connection."""
        return self._connections.without_request(self.requested_name, self.context.base_url, self._options)

    @property
    def _is_embedded(self) -> bool:
        return self._endpoint is not None and self._endpoint.embedded

    @property
    def name(self) -> str:
        """The model's name; "" if only its endpoint knows it. Sends no request."""
        if self.machine.chat_model is not None:
            connected = self._connected()
            return (connected.name if connected else "") or self.context.model or ""

        endpoint = self._endpoint
        if endpoint is None:
            return ""
        if not endpoint.embedded:
            return endpoint.model

        from mendgraph.nodes.call_model.weights import embedded_weights

        return embedded_weights().model

    def display_name(self) -> str:
        """Return the model's name for people: the provider's own one for a chat model of the user."""
        connected = None
        if self.machine.chat_model is not None:
            connected = self._connected()

        return connected.provider.name if connected else self.name

    def profile(self) -> Profile:
        """Return how the turn talks to its model, by its name and by what it has shown so far."""
        connected = self._connected()
        return self.context.profile(
            self._is_embedded,
            self.name,
            tools=connected is None or connected.learned.tools,
            thinks=connected is not None and connected.thinks,
        )

    def refused_media(self, message: AnyMessage) -> list[str]:
        """Return the kinds of content of a message, such as "image", that the model is known not to take.

        The block form shows a model nothing but text.
        """
        kinds = media_of(message)
        if not kinds or is_in_blocks(self.profile()):
            return sorted(kinds)

        connected = self._connected()
        if connected is None:
            return []
        if connected.in_openai_form and in_openai_form(message) is None:
            return sorted(kinds)

        return sorted(kind for kind in kinds if connected.takes(kind) is False)

    def window_tokens(self, profile: Profile) -> int | None:
        """Return the model's window; None if it is not known."""
        if profile.embedded:
            return self.context.window_tokens or EMBEDDED_WINDOW
        return self._window_of(self._connected(), self.name)

    def _window_of(self, connected: "ChatModel | None", name: str) -> int | None:
        window = self.context.window_tokens
        if connected is not None:
            window = window or connected.window_tokens

        return window or find_profile(name).window_tokens

    # --- What calls cost

    @cached_property
    def _choices(self) -> tuple[ModelChoice, ...]:
        """The run's models in order. The user's own chat models answer instead of all others."""
        context = self.context
        options = self._options
        if self.machine.chat_model is None:
            models = models_in_order(self.requested_name, context.base_url, context.fallback_models, options)
            if isinstance(models, str):
                return (ModelChoice(model=self.requested_name, base_url=context.base_url, options=options),)
            return models

        choices = []
        for place, name in enumerate(self._connections.user_names):
            model = name or context.model
            choices.append(ChatModelChoice(model=model, base_url=context.base_url, options=options, place=place))

        return tuple(choices)

    def price(self, name: str) -> Price | None:
        """Return the context's price, or that of the embedded model, which is free, or that of the price list."""
        price = self.context.price()
        if price is not None:
            return price

        if self.machine.chat_model is None and (name == EMBEDDED_MODEL or (not name and self._is_embedded)):
            return FREE

        return self.machine.listed_price(name)

    def problem(self) -> str:
        """Return why no call can be made: an unreadable price list, fallbacks that are not used, an unknown price."""
        context = self.context
        prices = self.machine.prices
        if context.price() is None and isinstance(prices, ToolError):
            return prices.message

        if self.machine.chat_model is None:
            models = models_in_order(self.requested_name, context.base_url, context.fallback_models)
            if isinstance(models, str):
                return models
        elif context.fallback_models:
            return (
                "fallback_models do not apply to your own chat model: use model.with_fallbacks([...]), or"
                ' name the first one as well, such as "anthropic:claude-sonnet-4-6".'
            )

        limits = context.limits()
        for choice in self._choices:
            name = choice.model or ""
            cause = ledger.unknown_price(limits, self.price(name), name)
            if cause is not None:
                return cause.message

        return ""

    def spent_before(self, spending: ledger.Spending | None, run_id: str, *, marked: bool) -> ledger.Spending:
        """Return the counters with which the turn begins.

        Calls that were paid but are in no checkpoint (the process was killed, or the thread goes on from an older
        checkpoint) are added from the spending book. `marked`: the id of the request is the store's own, so the book
        knows where thread and turn began. Other ids may repeat: earlier entries of a new thread are then ignored.
        """
        book = self.machine.book
        thread = book_thread(self.context, run_id)
        if spending is None and parent_of(run_id)[0] != run_id:  # a child, whose id is unique
            spending = ledger.Spending()

        if spending is None:
            started = book.begin_number(thread) if marked else None
            spending = ledger.Spending(booked=book.newest() if started is None else started)

        until = book.begin_number(thread, turn=True) if marked else None
        return ledger.charge_lost(spending, *book.lost(thread, spending.booked, until))

    # --- How calls are made

    def settings(self, profile: Profile, run_id: str) -> CallSettings:
        """Return how the calls of the turn are made and paid."""
        context = self.context
        budget = CallBudget(
            limits=context.limits(profile),
            models=self._choices,
            timeout_s=context.request_timeout_s,
            idle_timeout_s=context.idle_timeout_s,
            retries=context.provider_retries,
            thread=book_thread(context, run_id),
            price_of=self.price,
            jitter=random.random,
        )
        return CallSettings(
            budget=budget,
            temperature=context.temperature,
            seed=context.seed,
            window_tokens=self.window_tokens(profile),
            cache=self.machine.messages,
            stand_ins=self.machine.stand_ins,
            blocks=block_form(profile),
            mode_prompt=PLAN if context.mode == "plan" else "",
        )

    def settings_of_other(self, models: "ChatModels", settings: CallSettings) -> CallSettings:
        """Return the settings of a call to another model: at its own price, inside the same limits.

        Raises ValueError: a limit on cost cannot be held, as nobody knows its price.
        """
        context = self.context

        def price_of(name: str) -> Price | None:
            return context.price() or self.machine.listed_price(name)

        choices = []
        for place, name in enumerate(models.user_names):
            cause = ledger.unknown_price(settings.budget.limits, price_of(name), name)
            if cause is not None:
                raise ValueError(cause.message)
            choices.append(ChatModelChoice(model=name or None, place=place))

        window = self._window_of(models.without_request(None, None, self._options), models.user_names[0])
        budget = replace(settings.budget, models=tuple(choices), price_of=price_of)
        return replace(settings, budget=budget, window_tokens=window)


def book_thread(context: AgentContext, run_id: str) -> str:
    """Return the name of a thread in the spending book, which all workspaces share."""
    return f"{run_id} {sha256(context.workspace.encode('utf-8', 'replace')).hexdigest()[:16]}"
