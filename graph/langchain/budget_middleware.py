"""The ledger and the spending book as middleware, for any agent of `create_agent` or deepagents."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from time import monotonic
from typing import Annotated, Any, Final, Never, NotRequired
from uuid import UUID, uuid4

from langchain.agents.middleware.types import AgentState, PrivateStateAttr, ToolCallRequest
from langchain_core.runnables.config import ensure_config
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command

from mendgraph.graph.configuration.context import REPLY_TOKENS, AgentContext
from mendgraph.graph.configuration.prices import load_prices
from mendgraph.graph.langchain.callbacks import traced
from mendgraph.graph.langchain.chat_model import less_thought, limit_of
from mendgraph.graph.langchain.chat_models import name_of
from mendgraph.graph.langchain.failures import Provider, describe_failure
from mendgraph.graph.langchain.run_middleware import (
    LIMITS,
    AsyncToolHandler,
    Exit,
    ExtendedResponse,
    ModelCallMiddleware,
    ModelRequest,
    ModelResponse,
    ReplyRecorder,
    RunBlocking,
    Send,
    StoppingMiddleware,
    ToolAnswer,
    ToolHandler,
    reply_limits,
)
from mendgraph.graph.langchain.wrapped_models import Single, unwrap, with_arguments, with_settings
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import Call, CompletedCall, StoppedCall
from mendgraph.nodes.call_model.paid_call import CallBudget, PaidCall, Request
from mendgraph.nodes.call_model.prices import Price, find_price
from mendgraph.nodes.call_model.prompts.estimates import MOST_TOKENS
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.language.chat_messages import as_map
from mendgraph.nodes.records import (
    JsonMap,
    ModelReply,
    ProviderErrorKind,
    ProviderFailure,
    StopCause,
    StopReason,
    ToolError,
)

_LIMIT_NAMES: Final = frozenset(ledger.RunLimits.model_fields) - {"api", "max_steps", "max_steps_soft", "max_seconds"}
_PRICES: Final = frozenset(name for name in AgentContext.model_fields if name.startswith("usd_per_million_"))
_NAMES: Final = {*APILimits._fields, *_LIMIT_NAMES, *_PRICES}

_IDENTITY: Final = ("ls_provider", "ls_model_name", "ls_max_tokens", LIMITS)
"""Entries of LangChain's trace that identify the calls of one model."""

_UNSENT: Final = CompletedCall(
    result=ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="It was not sent.", sent=False),
    seconds=0.0,
)

Scope = tuple[str, ledger.Spending]
"""A thread's name in the spending book, and what it has used up to an entry of that."""


class _BudgetState(AgentState[Any]):
    """The usage of a thread, as JSON: `thread` is its name in the spending book, `spending` its counters."""

    mendgraph_budget: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]


class BudgetMiddleware(ModelCallMiddleware, StoppingMiddleware):
    """Limits the calls, tokens and cost of an agent. A call that does not fit is not sent.

    Before a call, its estimated input and maximum output are reserved. Afterwards the model's `usage_metadata` replaces
    the reservation. The maximum output is reduced to what is left. A session is a thread of the agent's checkpointer,
    or a single run without one; a turn is one `invoke`. Pass the same instance to subagents to share the session and
    turn budget of the calling agent, also in parallel. Limits per day and account apply to all runs and processes,
    including mendgraph's own. Each attempt of other middleware is a call; `with_retry` and `with_fallbacks` are
    refused. Calls that other middleware makes before the model call, such as summaries, do not pass through here.

    If the limits of a model cannot be enforced, its first call raises TypeError or ValueError before it is sent.
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
            raise ValueError(f"{unknown[0]!r} is not a limit of BudgetMiddleware. Limits: {', '.join(sorted(_NAMES))}.")
        if not any(name.startswith("max_") for name in limits):
            raise ValueError("BudgetMiddleware needs at least one limit, such as max_cost_usd=0.5.")

        context = AgentContext(**limits)
        prices = load_prices()
        if isinstance(prices, ToolError):
            raise ValueError(prices.message)  # noqa: TRY004 - what is wrong is the list

        fixed_price = context.price()
        run_limits = ledger.RunLimits(
            api=APILimits(*(limits.get(name, MOST_TOKENS) for name in APILimits._fields)),
            **{name: getattr(context, name) for name in _LIMIT_NAMES},
        )
        cuts = any("cost" in name or ("tokens" in name and "input" not in name) for name in limits)
        self._calls = _PaidCalls(run_limits, lambda name: fixed_price or find_price(prices, name), cuts=cuts)
        self._scope: ContextVar[Scope | None] = ContextVar("mendgraph_budget", default=None)

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        """Begin a turn; calls that a killed process did not settle are charged to earlier turns."""
        thread, spending = _opened(state)
        spending = ledger.charge_lost(spending, *self._calls.book.lost(thread, spending.booked))
        return _state_update(thread, ledger.begin_turn(spending))

    def wrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolAnswer:
        """Let subagents that this call starts spend from this agent's session."""
        with self._sharing(request):
            return handler(request)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: AsyncToolHandler) -> ToolAnswer:
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

    async def answer(
        self, request: ModelRequest, send: Send, recorder: ReplyRecorder, run_blocking: RunBlocking
    ) -> ExtendedResponse:
        """Reserve, send, settle: as mendgraph's own calls do, for each call that answers the request."""
        shared = self._scope.get()
        scope = shared or _opened(request.state)
        bill = _Bill(self._calls, _prompt(request), scope)
        recorder.listener = bill

        try:
            result: ModelResponse | StopCause = await self._send(request, bill, recorder, send, run_blocking)
        except _RefusedCallError as refusal:
            if isinstance(refusal.reason, ValueError):
                raise refusal.reason from None
            result = refusal.reason
        finally:  # also of a call that was cancelled
            await run_blocking(bill.close)

        update = {} if shared else _state_update(bill.thread, bill.spending)
        if isinstance(result, StopCause):
            return self.stopped(result, **update)

        return ExtendedResponse(result, Command(update=update) if update else None)

    async def _send(
        self,
        request: ModelRequest,
        bill: "_Bill",
        recorder: ReplyRecorder,
        send: Send,
        run_blocking: RunBlocking,
    ) -> ModelResponse:
        model = with_arguments(_single_model(request.model), request.model_settings)
        chat = model.chat
        field, model_limit = limit_of(chat, chat.profile or {})

        if self._calls.cuts and not field:
            raise ValueError(
                f"BudgetMiddleware cannot limit the replies of {type(chat).__name__}: it has no field such as"
                " max_tokens. Use limits on calls or input tokens, or a chat model with such a field."
            )

        reply_tokens = self._calls.limits.max_output_tokens_per_call or model_limit or REPLY_TOKENS
        most = await run_blocking(bill.reserve, name_of(chat), min(reply_tokens, model_limit or reply_tokens))
        is_cut = self._calls.cuts
        if model_limit:
            is_cut = most < model_limit

        if field and is_cut:
            chat = with_settings(chat, {field: most, **less_thought(chat, most)})

        arguments = chat._get_invocation_params(**model.settings)  # noqa: SLF001 - as LangChain does
        bill.expect({**traced(chat, model.settings), LIMITS: reply_limits(arguments)})
        if chat is not request.model or model.settings != request.model_settings:
            request = request.override(model=chat, model_settings=model.settings)

        response = await send(request)
        bill.answered(response, recorder)
        return response


def _single_model(model: Any) -> Single:
    """Return the chat model that a request asks.

    Raises TypeError: it is none, or one that asks again by itself.
    """
    first, *others = unwrap(model, ensure_config())
    if others or first.is_retried:
        raise TypeError(
            "BudgetMiddleware does not see the attempts of with_retry and with_fallbacks: use ModelRetryMiddleware and"
            " ModelFallbackMiddleware"
        )

    return first


class _PaidCalls:
    """Reserves and settles calls inside of limits, at prices, in a spending book."""

    def __init__(self, limits: ledger.RunLimits, price_of: Callable[[str], Price | None], *, cuts: bool) -> None:
        """`cuts` says whether replies are cut to what is left."""
        self.limits = limits
        self.cuts = cuts
        self._price_of = price_of
        self.book = SpendingStore(side_by_side=True)
        self._lock = Lock()
        self._services = CallServices(_no_model, book=self.book, limits=limits)

    def reserve(self, scope: Scope, request: Request, model: str) -> tuple[PaidCall, Call | None]:
        """Open a call to the model of this name, and reserve it; return None as well if it does not fit."""
        thread, spending = scope
        models = (ModelChoice(model=model or None),)
        budget = CallBudget(self.limits, models, retries=0, thread=thread, price_of=self._price_of)
        call = PaidCall(request, spending, budget, self._services)
        with self._lock:  # no other call reserves in between
            if call.fits() and call.reserve():
                return call, call.call

        return call, None

    def settle(self, call: PaidCall, sent: CompletedCall | StoppedCall) -> None:
        """Charge the usage of a call."""
        with self._lock:
            call.settle(sent)
            self.book.flush()


class _RefusedCallError(BaseException):
    """Keeps a call from being sent. Middleware that asks again does not catch it."""

    def __init__(self, reason: StopCause | ValueError) -> None:
        super().__init__(reason)
        self.reason = reason


class _Bill:
    """The calls that answer one request: each is reserved before it is sent, and settled after it.

    The request's own call is reserved first, as its reply is cut to what is left. What middleware between this one and
    the model sends beside it, such as another attempt, is noted as it begins.
    """

    def __init__(self, calls: _PaidCalls, prompt: Prompt, scope: Scope) -> None:
        self.thread, self.spending = scope
        self._calls = calls
        self._prompt = prompt
        self._name = ""
        self._most = 0
        self._about = JsonMap()
        self._reserved: PaidCall | None = None
        self._sent: dict[UUID, tuple[PaidCall, float]] = {}
        self._ended: list[tuple[PaidCall, CompletedCall | StoppedCall]] = []

    def reserve(self, name: str, most_output: int) -> int:
        """Reserve the next call, to the model of this name; gives the most that it may answer, in tokens.

        Raises:
            _RefusedCallError: it does not fit into what is left.
        """
        self.close()
        self._reserved, reservation = self._open(name, most_output)
        self._name = name
        self._most = reservation.max_output_tokens

        return self._most

    def expect(self, about: JsonMap) -> None:
        """Set LangChain's trace of the reserved call."""
        self._about = about

    def begin(self, call_id: UUID, about: Mapping[str, Any]) -> None:
        """Take the reserved call, or reserve another one.

        Raises:
            _RefusedCallError: it does not fit into what is left, or its reply cannot be limited.
        """
        call = self._reserved
        self._reserved = None
        is_expected = all(about.get(name) == self._about.get(name) for name in _IDENTITY)

        if call is None or not is_expected:
            if call is not None:
                self._ended.append((call, _UNSENT))

            self._settle_ended()
            call = self._open_beside(about, is_expected=is_expected)

        self._sent[call_id] = call, monotonic()

    def end(self, call_id: UUID, result: ModelReply | BaseException) -> None:
        """Note the result of a call."""
        if call_id not in self._sent:
            return

        call, started = self._sent.pop(call_id)
        seconds = monotonic() - started

        if isinstance(result, ModelReply):
            self._ended.append((call, CompletedCall(result=result, seconds=seconds)))
        elif isinstance(result, Exception):
            failure = describe_failure(result, Provider(call.choice.model or ""))
            self._ended.append((call, CompletedCall(result=failure, seconds=seconds)))
        else:
            self._ended.append((call, StoppedCall(reason="", sent=True, seconds=seconds)))

    def answered(self, response: ModelResponse, recorder: ReplyRecorder) -> None:
        """Take a reply whose call no callback reported, as from a thread without LangChain's context."""
        if self._reserved is not None and getattr(response.result[0], "usage_metadata", None):
            self._ended.append((self._reserved, CompletedCall(result=recorder.reply(response), seconds=0.0)))
            self._reserved = None

    def close(self) -> None:
        """Settle all calls. One that has not ended was cancelled; one that has not begun was not sent."""
        if self._reserved is not None:
            self._ended.append((self._reserved, _UNSENT))
            self._reserved = None

        for call, started in self._sent.values():
            self._ended.append((call, StoppedCall(reason="", sent=True, seconds=monotonic() - started)))

        self._sent.clear()
        self._settle_ended()

    def _settle_ended(self) -> None:
        for call, sent in self._ended:
            call.spending = self.spending
            self._calls.settle(call, sent)
            self.spending = call.spending

        self._ended.clear()

    def _open(self, name: str, most_output: int) -> tuple[PaidCall, Call]:
        request = Request(self._prompt, most_output=most_output)
        call, reservation = self._calls.reserve((self.thread, self.spending), request, name)
        self.spending = call.spending

        if reservation is None:
            assert call.stop is not None  # noqa: S101 - which keeps a call from being sent
            raise _RefusedCallError(call.stop)

        return call, reservation

    def _open_beside(self, about: Mapping[str, Any], *, is_expected: bool) -> PaidCall:
        """Reserve a call that other middleware makes: its reply cannot be cut any more."""
        name = self._name
        most = self._most

        if not is_expected:
            name = str(about.get("ls_model_name") or "").removeprefix("models/")
            limits = (about.get("ls_max_tokens"), *about[LIMITS].values())
            most = max((limit for limit in limits if isinstance(limit, int)), default=0)

        if self._calls.cuts and not most:
            raise _RefusedCallError(
                ValueError(
                    f"BudgetMiddleware cannot limit the reply of {name or 'the model'} that other middleware asks. Put"
                    " BudgetMiddleware after that middleware in the list, or set max_tokens of that model."
                )
            )

        call, reservation = self._open(name, most or REPLY_TOKENS)
        if self._calls.cuts and reservation.max_output_tokens < most:
            self._ended.append((call, _UNSENT))
            message = f"The remaining budget is below the {most} output tokens that the next call to {name} may answer."
            raise _RefusedCallError(StopCause(reason=StopReason.MAX_OUTPUT_TOKENS, message=message))

        return call


def _no_model(_: object) -> Never:
    raise NotImplementedError("the agent itself calls its model")


def _opened(state: Any) -> Scope:
    budget = state.get("mendgraph_budget")
    if not budget:
        return uuid4().hex, ledger.Spending()
    return budget["thread"], ledger.Spending.model_validate(budget["spending"])


def _state_update(thread: str, spending: ledger.Spending) -> dict[str, Any]:
    return {"mendgraph_budget": {"thread": thread, "spending": spending.model_dump(mode="json")}}


def _prompt(request: ModelRequest) -> Prompt:
    """Return the request as a prompt, for the estimate of its tokens."""
    messages = list(request.messages)
    if request.system_message:
        messages.insert(0, request.system_message)

    tools = []
    for tool in request.tools:
        if not isinstance(tool, dict):
            tool = convert_to_openai_tool(tool)  # noqa: PLW2901 - the same tool
        tools.append(tool)

    return Prompt(tuple(as_map(message, native=True) for message in messages), tuple(tools))
