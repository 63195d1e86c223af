"""The services of one turn: its tools, its model, and how its calls are made, for the turn's context.

A turn keeps one context, so what follows from it alone is computed once. What a model has shown of itself, such as that
it takes no images, may change while the turn runs.
"""

import os
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.machine_services import MachineModels, MachineTools
from mendgraph.graph.machine.small_models import block_form, is_in_blocks
from mendgraph.graph.machine.turn_tools import TurnTools
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
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.prompts.profiles import find_profile
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.execute_tools.journal.journal import parent_of
from mendgraph.nodes.language.media import in_openai_form, media_of
from mendgraph.nodes.records import Profile, ProviderFailure, ToolError, ToolSpec

if TYPE_CHECKING:
    from mendgraph.graph.langchain.chat_model import ChatModel


class ChatModelChoice(ModelChoice):
    """One of the chat models that the user gives, by its `place` among them."""

    place: int = 0

    @property
    def breaker_key(self) -> str:
        """Each has its own: two may have the same name."""
        return f"{super().breaker_key} {self.place}"


class TurnModel:
    """The model of one turn, and those that may replace it."""

    def __init__(self, machine: MachineModels, context: AgentContext) -> None:
        self.machine = machine
        self.context = context

    @cached_property
    def requested_name(self) -> str | None:
        """The name that `build_graph`, the context or the environment gives; None where none does."""
        context = self.context
        return self.machine.model_name or context.model or named_model(context.base_url, os.environ)

    @cached_property
    def _endpoint(self) -> Endpoint | None:
        endpoint = find_endpoint(self.requested_name, self.context.base_url, os.environ)
        if isinstance(endpoint, ProviderFailure):
            return None
        return endpoint

    def _connected(self) -> "ChatModel | None":
        """The connected model, None where nothing was connected yet."""
        context = self.context
        return self.machine.connections.without_request(self.requested_name, context.base_url, context.model_options())

    @cached_property
    def _is_embedded(self) -> bool:
        if self.machine.chat_model is not None:
            return False
        return self._endpoint is not None and self._endpoint.embedded

    @property
    def name(self) -> str:
        """The model's name; "" where only its endpoint can tell. Asks nobody."""
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
        """The model's name for people: the provider's own where the user gives a chat model."""
        connected = None
        if self.machine.chat_model is not None:
            connected = self._connected()

        return connected.provider.name if connected else self.name

    def profile(self) -> Profile:
        """How the turn talks to its model, by its name and by what it has shown so far."""
        connected = self._connected()
        return self.context.profile(
            self._is_embedded,
            self.name,
            tools=connected is None or connected.learned.tools,
            thinks=connected is not None and connected.thinks,
        )

    def refused_media(self, message: AnyMessage) -> list[str]:
        """What a message holds beside text, such as "image", that the model is known not to take.

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
        """The model's window, None where nobody knows it."""
        if self.context.window_tokens is not None:
            return self.context.window_tokens
        if profile.embedded:
            return EMBEDDED_WINDOW

        connected = self._connected()
        window = connected.window_tokens if connected else None
        return window or find_profile(self.name).window_tokens

    # --- What calls cost

    @cached_property
    def _choices(self) -> tuple[ModelChoice, ...]:
        """The run's models in order. Chat models of the user's own answer for all of them."""
        context = self.context
        options = context.model_options()

        if self.machine.chat_model is not None:
            choices = []
            for place, name in enumerate(self.machine.connections.user_names):
                model = name or context.model
                choices.append(ChatModelChoice(model=model, base_url=context.base_url, options=options, place=place))

            return tuple(choices)

        models = models_in_order(self.requested_name, context.base_url, context.fallback_models, options)
        if isinstance(models, str):
            return (ModelChoice(model=self.requested_name, base_url=context.base_url, options=options),)

        return models

    def price(self, name: str) -> ledger.Price | None:
        """The context's price for every model; else the embedded model is free, and others cost what the list says."""
        price = self.context.price()
        if price is not None:
            return price

        if self.machine.chat_model is None and (name == EMBEDDED_MODEL or (not name and self._is_embedded)):
            return ledger.FREE

        return self.machine.listed_price(name)

    def problem(self) -> str | None:
        """What no call can be made with: an unreadable price list, a limit on cost without a price, a bad header."""
        context = self.context
        machine = self.machine
        if context.price() is None and isinstance(machine.prices, ToolError):
            return machine.prices.message

        if machine.chat_model is not None and context.fallback_models:
            return (
                "fallback_models are not asked beside a chat model of your own: give model.with_fallbacks([...]), or"
                ' name the first one as well, such as "anthropic:claude-sonnet-4-6".'
            )

        if machine.chat_model is None:
            models = models_in_order(self.requested_name, context.base_url, context.fallback_models)
            if isinstance(models, str):
                return models

        limits = context.limits()
        for choice in self._choices:
            name = choice.model or ""
            cause = ledger.unknown_price(limits, self.price(name), name)
            if cause is not None:
                return cause.message

        return None

    def spent_before(self, spending: ledger.Spending | None, run_id: str, *, marked: bool) -> ledger.Spending:
        """The counters with which the turn begins.

        Calls that were paid but are in no checkpoint (the process was killed, or the thread goes on from an older
        checkpoint) are added from the spending book. `marked`: the thread's id is the store's own, so the book knows
        where thread and turn began. Ids given by others may repeat: earlier entries of a new thread are ignored then.
        """
        book = self.machine.book
        thread = book_thread(self.context, run_id)
        is_child = parent_of(run_id)[0] != run_id
        if spending is None and is_child:  # its id is derived from its parent's, and unique
            spending = ledger.Spending()

        if spending is None:
            started = book.begin_number(thread) if marked else None
            spending = ledger.Spending(booked=book.newest() if started is None else started)

        until = book.begin_number(thread, turn=True) if marked else None
        return ledger.charge_lost(spending, *book.lost(thread, spending.booked, until))

    # --- How calls are made

    def settings(self, profile: Profile, run_id: str) -> CallSettings:
        """How the calls of the turn are made and paid."""
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
        )

    def of_other(
        self, chat: Runnable[Any, Any], settings: CallSettings, services: CallServices
    ) -> tuple[CallSettings, CallServices]:
        """A call as it is made to another model: at its own price, inside the same limits.

        Raises:
            TypeError: it is no chat model, and nothing that a run can honour.
            ValueError: a limit on cost cannot be held, as nobody knows its price.
        """
        context = self.context
        machine = self.machine
        models = machine.connections_of(chat)

        def price_of(name: str) -> ledger.Price | None:
            return context.price() or machine.listed_price(name)

        names = models.user_names
        for name in names:
            cause = ledger.unknown_price(settings.budget.limits, price_of(name), name)
            if cause is not None:
                raise ValueError(cause.message)

        choices = tuple(ChatModelChoice(model=name or None, place=place) for place, name in enumerate(names))
        budget = replace(settings.budget, models=choices, price_of=price_of)
        connected = models.without_request(None, None, context.model_options())
        window = (
            context.window_tokens or (connected and connected.window_tokens) or find_profile(names[0]).window_tokens
        )
        connect = machine.connect_to(models)
        services = replace(services, connect=connect, ready=partial(connect, waiting=False))

        return replace(settings, budget=budget, window_tokens=window), services


def book_thread(context: AgentContext, run_id: str) -> str:
    """A thread's name in the spending book, which all workspaces share."""
    return f"{run_id} {sha256(context.workspace.encode('utf-8', 'replace')).hexdigest()[:16]}"


# --- The tools and the model of a turn, for all of its steps

MOST_TURNS: Final = 1_000
"""Turns whose services are reused by their next steps."""


class CallPlan(NamedTuple):
    """What all model calls of a turn with this profile have in common."""

    profile: Profile
    settings: CallSettings
    tools: tuple[ToolSpec, ...]


@dataclass
class TurnServices:
    """The tools and the model of one turn. `call_plan` is None until the first model call is prepared."""

    context: AgentContext
    tools: TurnTools
    model: TurnModel
    call_plan: CallPlan | None = None

    def planned(self, profile: Profile) -> CallPlan | None:
        """The plan of an earlier call of this turn with this profile. It asks no disk, so an event loop may call it."""
        plan = self.call_plan
        if plan is None or plan.profile is not profile:
            return None
        return plan

    def plan_calls(self, profile: Profile, run_id: str) -> CallPlan:
        """How the calls of the turn are made and paid, and the tools that the model is told of."""
        plan = self.planned(profile)
        if plan is None:
            plan = CallPlan(profile, self.model.settings(profile, run_id), self.tools.offered(profile))
            self.call_plan = plan

        return plan


class Turns:
    """The services of the turns of one machine, by their contexts: each turn has a context object of its own."""

    def __init__(self, tools: MachineTools, models: MachineModels) -> None:
        self._tools = tools
        self._models = models
        self._services: dict[int, TurnServices] = {}

    def services(self, context: AgentContext) -> TurnServices:
        """The services of the turn with this context."""
        services = self._services.get(id(context))
        if services is not None and services.context is context:
            return services

        while len(self._services) >= MOST_TURNS:
            with suppress(KeyError, RuntimeError):  # another thread may have removed it
                del self._services[next(iter(self._services))]

        services = TurnServices(context, TurnTools(self._tools, context), TurnModel(self._models, context))
        self._services[id(context)] = services
        return services
