"""The ledger and the spending book as middleware, for any agent of `create_agent` or deepagents."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from time import monotonic
from typing import Annotated, Any, Final, Never, NotRequired
from uuid import uuid4

from langchain.agents.middleware.types import AgentState, PrivateStateAttr, ToolCallRequest
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command

from mendgraph.graph.configuration.context import REPLY_TOKENS, AgentContext
from mendgraph.graph.configuration.loading import load_prices
from mendgraph.graph.langchain.chat_model import less_thought, limit_of, with_settings
from mendgraph.graph.langchain.chat_models import name_of
from mendgraph.graph.langchain.failures import Provider, describe_failure
from mendgraph.graph.langchain.run_middleware import (
    Apart,
    Asked,
    Exit,
    Given,
    Heard,
    ModelCallMiddleware,
    Send,
    StoppingMiddleware,
    ToolAnswer,
)
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import Call, Lost, Sent, Stopped
from mendgraph.nodes.call_model.paid_call import CallBudget, PaidCall, Request
from mendgraph.nodes.call_model.prompts.estimates import MOST_TOKENS
from mendgraph.nodes.call_model.prompts.prompt import Prompt, as_map
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.records import ToolError

_OWN: Final = frozenset(ledger.RunLimits.model_fields) - {"api", "max_steps", "max_steps_soft", "max_seconds"}
_PRICES: Final = frozenset(name for name in AgentContext.model_fields if name.startswith("usd_per_million_"))
_NAMES: Final = {*APILimits._fields, *_OWN, *_PRICES}

Scope = tuple[str, ledger.Spending]
"""A thread's name in the spending book, and what it has used up to an entry of that."""


class _BudgetState(AgentState[Any]):
    """What a thread has used, as JSON: `thread` is its name in the spending book, `spending` its counters."""

    mendgraph_budget: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]


class BudgetMiddleware(ModelCallMiddleware, StoppingMiddleware):
    """Limits on the calls, tokens and money of an agent; no call is sent that does not fit into them.

    Before a call is sent, its estimated input and the most that it may answer are reserved; afterwards it counts as the
    model's `usage_metadata` says. What a reply may have is cut to what is left. A session is a thread of the agent's
    checkpointer, without one a single run; a turn is one `invoke`. Give the same instance to the agent's subagents, and
    they spend from the session and turn of the agent that calls them, also side by side. Limits of a day and of an
    account hold over all runs and processes, mendgraph's own included. Calls that other middleware makes by itself,
    such as summaries, do not pass through here.
    """

    state_schema = _BudgetState

    def __init__(self, *, exit_behavior: Exit = "end", **limits: Any) -> None:
        """`limits` are those of `AgentContext` that are named here; what is not named has no limit.

        `max_calls_per_session`, `max_input_tokens_per_session`, `max_output_tokens_per_session` and the same
        `_per_turn`; `max_output_tokens_per_call`; `max_cost_usd` of a session; `max_tokens_per_day`,
        `max_cost_usd_per_day`; `account`, `account_days`, `max_tokens_per_account`, `max_cost_usd_per_account`. Prices
        are those of the price list, or `usd_per_million_input`, `usd_per_million_output` and so on. With
        `exit_behavior` "end" a limit ends the run with a message that names it, with "error" it raises
        `AgentStoppedError`.

        Raises:
            ValueError: a limit is not known or out of its bounds, none is given, or the price list cannot be read.
        """
        super().__init__(exit_behavior)
        if unknown := sorted(limits.keys() - _NAMES):
            raise ValueError(f"{unknown[0]!r} is no limit of BudgetMiddleware. It takes: {', '.join(sorted(_NAMES))}.")
        if not any(name.startswith("max_") for name in limits):
            raise ValueError("BudgetMiddleware needs at least one limit, such as max_cost_usd=0.5.")
        context, prices = AgentContext(**limits), load_prices()
        if isinstance(prices, ToolError):
            raise ValueError(prices.message)  # noqa: TRY004 - what is wrong is the list
        self._said_price, self._prices = context.price(), prices
        self._limits = ledger.RunLimits(
            api=APILimits(*(limits.get(name, MOST_TOKENS) for name in APILimits._fields)),
            **{name: getattr(context, name) for name in _OWN},
        )
        self._cuts = any("tokens" in name or "cost" in name for name in limits)
        self._book, self._lock = SpendingStore(), Lock()
        self._services = CallServices(_no_model, book=self._book, limits=self._limits)
        self._scope: ContextVar[Scope | None] = ContextVar("mendgraph_budget", default=None)

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        """Begin a turn; what earlier ones have lost, with a process that was killed, is theirs."""
        thread, spending = _opened(state)
        spending = ledger.charge_lost(spending, *self._book.lost(thread, spending.booked))
        return _kept(thread, ledger.begin_turn(spending))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolAnswer]) -> ToolAnswer:
        """Let subagents that this call starts spend from this agent's session."""
        with self._sharing(request):
            return handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolAnswer]]
    ) -> ToolAnswer:
        """Let subagents that this call starts spend from this agent's session."""
        with self._sharing(request):
            return await handler(request)

    @contextmanager
    def _sharing(self, request: ToolCallRequest) -> Iterator[None]:
        token = self._scope.set(self._scope.get() or _opened(request.state))
        try:
            yield
        finally:
            self._scope.reset(token)

    async def answer(self, request: Asked, send: Send, heard: Heard, apart: Apart) -> Given:
        """Reserve, send, settle: as mendgraph's own calls do."""
        shared, chat = self._scope.get(), request.model
        thread, spending = shared or _opened(request.state)  # of a parent, the book knows what came since
        name, (field, own) = name_of(chat), limit_of(chat, chat.profile or {})
        models = (ModelChoice(model=name or None),)
        budget = CallBudget(self._limits, models, retries=0, thread=thread, price_of=self._price)
        wanted = self._limits.max_output_tokens_per_call or own or REPLY_TOKENS
        paid_request = Request(_prompt(request), most_output=min(wanted, own or wanted))
        call = PaidCall(paid_request, spending, budget, self._services)
        reservation = await apart(self._reserve, call)
        if reservation is None:
            assert call.stop is not None  # noqa: S101 - which keeps a call from being sent
            return self.stopped(call.stop, **({} if shared else _kept(thread, call.spending)))
        most, started = reservation.max_output_tokens, monotonic()
        if field and (most < own if own else self._cuts):
            request = request.override(model=with_settings(chat, {field: most, **less_thought(chat, most)}))
        sent: Sent | Stopped = Stopped(reason="", sent=True)
        try:
            response = await send(request)
            sent = Sent(result=heard.reply(response), seconds=monotonic() - started)
        except Exception as error:
            sent = Sent(result=describe_failure(error, Provider(name)), seconds=monotonic() - started)
            raise
        finally:  # also of a call that was cancelled
            await apart(self._settle, call, sent)
        return Given(response, None if shared else Command(update=_kept(thread, call.spending)))

    def _price(self, model: str) -> ledger.Price | None:
        return self._said_price or ledger.find_price(self._prices, model)

    def _reserve(self, call: PaidCall) -> Call | None:
        """The call for which there is room, None where there is none; no other call reserves in between."""
        with self._lock:
            if not call.fits():
                return None
            booked = self._services.reserve(call.entry, call.spending.booked)
            while isinstance(booked, Lost) and call.add_lost(booked):
                booked = self._services.reserve(call.entry, call.spending.booked)
            return call.call if call.enter(booked) else None

    def _settle(self, call: PaidCall, sent: Sent | Stopped) -> None:
        with self._lock:
            call.settle(sent)
            self._book.flush()


def _no_model(_: object) -> Never:
    raise NotImplementedError("the agent itself calls its model")


def _opened(state: Any) -> Scope:
    kept = state.get("mendgraph_budget")
    if not kept:
        return uuid4().hex, ledger.Spending()
    return kept["thread"], ledger.Spending.model_validate(kept["spending"])


def _kept(thread: str, spending: ledger.Spending) -> dict[str, Any]:
    return {"mendgraph_budget": {"thread": thread, "spending": spending.model_dump(mode="json")}}


def _prompt(request: Asked) -> Prompt:
    """The request as it is measured."""
    messages = [*([request.system_message] if request.system_message else []), *request.messages]
    return Prompt(
        tuple(as_map(message, native=True) for message in messages),
        tuple(each if isinstance(each, dict) else convert_to_openai_tool(each) for each in request.tools),
    )
