"""The models of one machine: connections, breakers, prices, the spending book, what was sent.

It gives the node its settings and its services; the node decides with the one and acts with the other.
"""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ensure_config
from langgraph.config import get_stream_writer

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import load_prices
from mendgraph.graph.langchain.wrapped_models import is_configurable, run_models
from mendgraph.graph.machine.small_models import block_form, is_in_blocks
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.graph.telemetry.spans import OBSERVER, RunSpan
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.call_state import CallSettings
from mendgraph.nodes.call_model.endpoint import (
    EMBEDDED_MODEL,
    EMBEDDED_WINDOW,
    Endpoint,
    ModelChoice,
    find_endpoint,
    models_in_order,
    named_model,
)
from mendgraph.nodes.call_model.model import GuardedModel
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.prompts.profiles import find_profile
from mendgraph.nodes.call_model.prompts.prompt import ShownMessages
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.call_model.window import StandIns
from mendgraph.nodes.execute_tools.call_policy import BreakerConfig, breakers_by_name
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.journal.journal import parent_of
from mendgraph.nodes.execute_tools.secrets.redact import RedactedStream
from mendgraph.nodes.language.history import in_openai_form, media_of
from mendgraph.nodes.records import JsonMap, Profile, ProviderFailure, ToolError, ToolSpec

if TYPE_CHECKING:
    from mendgraph.graph.langchain.chat_model import ChatModel
    from mendgraph.graph.langchain.chat_models import ChatModels

MOST_OTHERS: Final = 16
"""How many chat models of hooks and of configs are kept with their connections."""

_OF_LANGGRAPH: Final = ("__", "thread_id", "checkpoint_", "langgraph_", "graph_id", "assistant_id", "run_id")
"""How LangGraph's own entries of a config begin, which choose no model."""

MOST_TURNS: Final = 1_000
"""How many turns' preparations are kept, so that their calls need no new ones."""


class GivenChoice(ModelChoice):
    """One of the chat models that the user gives, by its `place` among them."""

    place: int = 0

    @property
    def breaker_key(self) -> str:
        """Each has its own: two may have the same name."""
        return f"{super().breaker_key} {self.place}"


class Prepared(NamedTuple):
    """What all calls of a turn have in common; the context and the profile tell turns apart."""

    context: AgentContext
    profile: Profile
    settings: CallSettings
    tools: tuple[ToolSpec, ...]


class ModelRuntime:
    """How one machine calls its models. Nothing is connected, opened or read before it is needed."""

    def __init__(self, model: Runnable[Any, Any] | str | None, tools: ToolRuntime, stop: StopRequest | None) -> None:
        """`model` answers all calls, or is the name of the one that does; `stop` is how a run may be ended early."""
        self._given = None if isinstance(model, str) else model
        self._named = model if isinstance(model, str) else None
        self._is_configurable = is_configurable(model)
        self._tools = tools
        self._stop = stop or StopRequest()
        self._breaker_of = breakers_by_name(BreakerConfig(), monotonic_s)
        self._cache = ShownMessages()
        self._stand_ins: StandIns = {}
        self._prepared: dict[str, Prepared] = {}
        self._others: list[tuple[object, ChatModels]] = []
        self.book = SpendingStore()

    @property
    def given(self) -> Any:
        """The chat model that the user gives, None where there is only a name."""
        if self._given is None:
            return None
        return run_models(self._given, self._config())[0].chat

    @property
    def _models(self) -> "ChatModels":
        """The connections of this run's models."""
        config = self._config()
        if not config:
            return self._default_models

        return self._models_of(self._given, config)

    @cached_property
    def _default_models(self) -> "ChatModels":
        """Made when the first turn begins: langchain-openai takes half a second to import."""
        from mendgraph.graph.langchain.chat_models import ChatModels

        return ChatModels(lambda: os.environ, () if self._given is None else run_models(self._given))

    def _config(self) -> Any:
        """What the run's config chooses of a configurable model."""
        if not self._is_configurable:
            return {}

        configurable = ensure_config().get("configurable") or {}
        chosen = {name: value for name, value in configurable.items() if not name.startswith(_OF_LANGGRAPH)}
        return {"configurable": chosen} if chosen else {}

    @cached_property
    def _prices(self) -> ledger.PriceList | ToolError:
        return load_prices()

    def close(self) -> None:
        """Close the connections that were opened for sync calls, and the spending book."""
        for models in self._all_models():
            models.close()

        self.book.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, those for sync calls, and the spending book."""
        for models in self._all_models():
            await models.aclose()

        self.book.close()

    def _all_models(self) -> "list[ChatModels]":
        models = [models for _, models in self._others]
        if "_default_models" in self.__dict__:
            return [self._default_models, *models]
        return models

    def profile(self, context: AgentContext) -> Profile:
        """How a turn of this context talks to its model, by its name and by what it has shown so far."""
        known = self._known(context)
        return context.profile(
            self._is_embedded(context),
            self._model_name(context),
            tools=known is None or known.learned.tools,
            thinks=known is not None and known.thinks,
        )

    def refused_media(self, context: AgentContext, message: AnyMessage) -> list[str]:
        """What a message holds beside text, such as "image", that the turn's model is known not to take.

        The block form shows a model nothing but text.
        """
        kinds = media_of(message)
        if not kinds or is_in_blocks(self.profile(context)):
            return sorted(kinds)

        known = self._known(context)
        if known is None:
            return []
        if known.in_openai_form and in_openai_form(message) is None:
            return sorted(kinds)

        return sorted(kind for kind in kinds if known.takes(kind) is False)

    def model_name(self, context: AgentContext) -> str:
        """The turn's model, as a person knows it."""
        known = None if self._given is None else self._known(context)
        if known:
            return known.provider.name

        return self._model_name(context)

    def spent_before(
        self, spending: ledger.Spending | None, context: AgentContext, run_id: str, *, marked: bool
    ) -> ledger.Spending:
        """The session's counters where a turn begins, with all that earlier turns have lost.

        They lose calls with a process that is killed, and where a thread goes on from an older checkpoint. Turns of
        threads that the store names are `marked`, so that the turn's own lost calls can be told from those. Names that
        others give may come twice: what is booked before a thread has any counters is then another one's.
        """
        thread = book_thread(context, run_id)
        if spending is None and parent_of(run_id)[0] != run_id:  # whose name nobody else has
            spending = ledger.Spending()

        if spending is None:
            started = self.book.begin_number(thread) if marked else None
            spending = ledger.Spending(booked=self.book.newest() if started is None else started)

        until = self.book.begin_number(thread, turn=True) if marked else None
        return ledger.charge_lost(spending, *self.book.lost(thread, spending.booked, until))

    def problem(self, context: AgentContext) -> str | None:
        """What no call can be made with: an unreadable price list, a limit on cost without a price, a bad header."""
        if context.price() is None and isinstance(self._prices, ToolError):
            return self._prices.message

        limits = context.limits()
        models = models_in_order(self._name(context), context.base_url, context.fallback_models)

        if self._given is not None and context.fallback_models:
            return (
                "fallback_models are not asked beside a chat model of your own: give model.with_fallbacks([...]), or"
                ' name the first one as well, such as "anthropic:claude-sonnet-4-6".'
            )

        if isinstance(models, str) and self._given is None:
            return models

        for choice in self._choices(context):
            name = choice.model or ""
            cause = ledger.unknown_price(limits, self._price(context, name), name)
            if cause is not None:
                return cause.message

        return None

    def prepared(self, state: AgentState) -> Prepared | None:
        """What was prepared for an earlier call of this turn; it asks nobody, so an event loop may ask it."""
        known = self._prepared.get(state.get("run_id", ""))
        same = known is not None and known.context is state["context"] and known.profile is state["profile"]
        return known if same else None

    def prepare(self, state: AgentState) -> Prepared:
        """How the calls of this turn are made and paid, and the tools that the model is told of."""
        context = state["context"]
        profile = state["profile"]
        run_id = state.get("run_id", "")
        made = Prepared(
            context, profile, self._settings(context, profile, run_id), self._tools.offered(context, profile)
        )

        if len(self._prepared) >= MOST_TURNS:
            self._prepared.clear()

        self._prepared[run_id] = made
        return made

    def _settings(self, context: AgentContext, profile: Profile, run_id: str) -> CallSettings:
        budget = CallBudget(
            limits=context.limits(profile),
            models=self._choices(context),
            timeout_s=context.request_timeout_s,
            idle_timeout_s=context.idle_timeout_s,
            retries=context.provider_retries,
            thread=book_thread(context, run_id),
            price_of=partial(self._price, context),
            jitter=random.random,
        )

        return CallSettings(
            budget=budget,
            temperature=context.temperature,
            seed=context.seed,
            window_tokens=self.window_tokens(context, profile),
            cache=self._cache,
            stand_ins=self._stand_ins,
            blocks=block_form(profile),
        )

    def services(self, limits: ledger.RunLimits, tell: Callable[[str, JsonMap], None]) -> CallServices:
        """How this turn's calls are made; text and waits go to whoever streams the run with mode "custom"."""
        write = get_stream_writer()

        def on_text(text: str) -> None:
            write({"type": "text", "text": text})

        def on_wait(seconds: float, reason: str) -> None:
            write({"type": "waiting", "seconds": seconds, "reason": reason})

        connect = partial(self._connect, OBSERVER.get())
        ready = partial(connect, waiting=False)
        return CallServices(connect, on_text, on_wait, tell, self.book, limits, self._stop, ready)

    def of_other(
        self, chat: Runnable[Any, Any], context: AgentContext, settings: CallSettings, services: CallServices
    ) -> tuple[CallSettings, CallServices]:
        """A call as it is made to another model: at its own price, inside the same limits.

        Raises:
            TypeError: it is no chat model, and nothing that a run can honour.
            ValueError: a limit on cost cannot be held, as nobody knows its price.
        """
        models = self._models_of(chat)
        prices = self._prices

        def price_of(name: str) -> ledger.Price | None:
            return context.price() or (None if isinstance(prices, ToolError) else ledger.find_price(prices, name))

        names = models.user_names
        for name in names:
            if cause := ledger.unknown_price(settings.budget.limits, price_of(name), name):
                raise ValueError(cause.message)

        choices = tuple(GivenChoice(model=name or None, place=place) for place, name in enumerate(names))
        budget = replace(settings.budget, models=choices, price_of=price_of)
        known = models.without_request(None, None, context.model_options())
        window = context.window_tokens or (known and known.window_tokens) or find_profile(names[0]).window_tokens
        connect = partial(self._connect, OBSERVER.get(), models=models)
        services = replace(services, connect=connect, ready=partial(connect, waiting=False))

        return replace(settings, budget=budget, window_tokens=window), services

    def _models_of(self, chat: Any, config: Any = None) -> "ChatModels":
        """The connections of another chat model, or of what a config chooses, which are kept."""
        from mendgraph.graph.langchain.chat_models import ChatModels

        for other, models in self._others:
            if other is chat or (config and other == config):
                return models

        models = ChatModels(lambda: os.environ, run_models(chat, config or ensure_config()))
        self._others = [*self._others, (config or chat, models)][-MOST_OTHERS:]
        return models

    def _connect(
        self,
        observer: RunSpan | None,
        wanted: ModelChoice,
        models: "ChatModels | None" = None,
        *,
        waiting: bool = True,
    ) -> Any:
        connected = (models or self._models).connect(wanted, waiting=waiting)
        if connected is None or isinstance(connected, ProviderFailure):
            return connected

        redactor = self._tools.redactor()
        # A literal that the model itself calls a password is no secret of ours; it may be the fixture of a test.
        # It runs as it is written; `WrittenLiterals` keeps it out of what is stored.
        breaker = self._breaker_of(wanted.breaker_key)
        model = GuardedModel(connected, breaker, redactor.unnamed, partial(RedactedStream, redactor))

        if observer:
            return observer.model(model, wanted, is_users=(models or self._given) is not None)

        return model

    def _choices(self, context: AgentContext) -> tuple[ModelChoice, ...]:
        """The run's models in order. Chat models of the user's own answer for all of them."""
        name = self._name(context)
        options = context.model_options()

        if self._given is not None:
            return tuple(
                GivenChoice(model=given or context.model, base_url=context.base_url, options=options, place=place)
                for place, given in enumerate(self._models.user_names)
            )

        models = models_in_order(name, context.base_url, context.fallback_models, options)
        if isinstance(models, str):
            return (ModelChoice(model=name, base_url=context.base_url, options=options),)

        return models

    def _name(self, context: AgentContext) -> str | None:
        return self._named or context.model or named_model(context.base_url, os.environ)

    def _endpoint(self, context: AgentContext) -> Endpoint | None:
        endpoint = find_endpoint(self._name(context), context.base_url, os.environ)
        if isinstance(endpoint, ProviderFailure):
            return None
        return endpoint

    def _known(self, context: AgentContext) -> "ChatModel | None":
        return self._models.without_request(self._name(context), context.base_url, context.model_options())

    def _is_embedded(self, context: AgentContext) -> bool:
        endpoint = None if self._given is not None else self._endpoint(context)
        return endpoint is not None and endpoint.embedded

    def _model_name(self, context: AgentContext) -> str:
        """The name of the turn's model; "" where only its endpoint can tell. Asks nobody."""
        if self._given is not None:
            known = self._known(context)
            return (known.name if known else "") or context.model or ""

        endpoint = self._endpoint(context)
        if endpoint is None:
            return ""
        if not endpoint.embedded:
            return endpoint.model

        from mendgraph.nodes.call_model.weights import embedded_weights

        return embedded_weights().model

    def _price(self, context: AgentContext, name: str) -> ledger.Price | None:
        """What the context says of every model; else the embedded one is free, and others cost what the list says."""
        if (price := context.price()) is not None:
            return price
        if self._given is None and (name == EMBEDDED_MODEL or (not name and self._is_embedded(context))):
            return ledger.FREE
        if isinstance(self._prices, ToolError):
            return None

        return ledger.find_price(self._prices, name)

    def window_tokens(self, context: AgentContext, profile: Profile) -> int | None:
        """The window of the turn's model, None where nobody knows it."""
        if context.window_tokens is not None:
            return context.window_tokens
        if profile.embedded:
            return EMBEDDED_WINDOW

        known = self._known(context)
        window = known.window_tokens if known else None
        return window or find_profile(self._model_name(context)).window_tokens


def book_thread(context: AgentContext, run_id: str) -> str:
    """A thread's name in the spending book, which all workspaces share."""
    return f"{run_id} {sha256(context.workspace.encode('utf-8', 'replace')).hexdigest()[:16]}"
