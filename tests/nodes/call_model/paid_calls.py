"""The other side of a paid call's script, and the words in which tests tell its course."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, Price, Spending, Used
from mendgraph.nodes.call_model.model import Answer, Call, Effect, Emit, Lost, Reserve, Sent, Settle, Stopped, Wait
from mendgraph.nodes.call_model.paid_call import CallBudget, Paid, Request, paid_call
from mendgraph.nodes.call_model.prompts.estimates import Gauge, estimate_tokens
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import ModelReply, ProviderErrorKind as Kind, ProviderFailure, StopCause, StopReason

PROMPT = Prompt(messages=({"role": "user", "content": "Mend calc.py, please."},))
ESTIMATE = estimate_tokens(PROMPT.size, 1)
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
GAUGE = Gauge(size=PROMPT.size, messages=1, tokens=70)
OURS, OTHER, THIRD = (ModelChoice(model=name) for name in ("ours", "other", "third"))
DEAR, CHEAP = Price(input=10.0, output=30.0, cached_input=5.0), Price(input=1.0, output=2.0)
SECONDS = 2.0

Result = ModelReply | ProviderFailure


def failed(kind: Kind, retry_after_s: float | None = None, received: int = 0) -> ProviderFailure:
    return ProviderFailure(
        kind=kind, message=f"{kind.value}!", retry_after_s=retry_after_s, received_characters=received
    )


BUSY, DOWN, NO_KEY = failed(Kind.RATE_LIMITED), failed(Kind.SERVER_ERROR), failed(Kind.AUTHENTICATION)
OPEN = failed(Kind.CONNECTION, retry_after_s=20.0).model_copy(update={"sent": False})


class Endpoint:
    """Plays the other side of the script: answers calls with `results`, each after two seconds, and keeps the book.

    `unreachable` are the models that cannot be connected; `refusals` are what the book says to entries, by number;
    `lost` is what it says to counters that do not hold it; `stop` is said to the effect of the number `stop_at`, from
    0. Entries are numbered from 11.
    """

    def __init__(
        self,
        results: Sequence[Result] = (),
        *,
        unreachable: Mapping[str | None, ProviderFailure] | None = None,
        refusals: Mapping[int, StopCause] | None = None,
        lost: Lost | None = None,
        stop_at: int = -1,
        stop: Stopped | None = None,
    ) -> None:
        self.effects: list[Effect] = []
        self.unreachable, self.refusals = unreachable or {}, refusals or {}
        self.results, self.lost = iter(results), lost
        self.stop_at, self.stop = stop_at, stop
        self.entries = 10

    def play(self, request: Request, spending: Spending, budget: CallBudget) -> Paid:
        script, answer = paid_call(request, spending, budget), None
        while True:
            try:
                effect = script.send(answer)
            except StopIteration as end:
                return cast("Paid", end.value)
            self.effects.append(effect)
            answer = self.answer(effect)

    def answer(self, effect: Effect) -> Any:
        if isinstance(effect, Settle | Emit):
            return None
        if len(self.effects) == self.stop_at + 1:
            return self.stop
        answer: Answer = None
        if isinstance(effect, ModelChoice):
            answer = self.unreachable.get(effect.model)
        elif isinstance(effect, Reserve) and self.lost is not None and effect.after < self.lost.number:
            answer = self.lost
        elif isinstance(effect, Reserve):
            self.entries += 1
            answer = self.refusals.get(self.entries, self.entries)
        elif isinstance(effect, Call):
            answer = Sent(result=next(self.results), seconds=SECONDS)
        return answer

    @property
    def course(self) -> str:
        """The kinds of the effects, one letter each: C(onnect to a model), Reserve, Send, E(nter), Emit, Wait."""
        letters = {ModelChoice: "c", Reserve: "r", Call: "s", Settle: "e", Emit: "t", Wait: "w"}
        return "".join(letters[type(effect)] for effect in self.effects)

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]


def budget(*models: ModelChoice, **more: Any) -> CallBudget:
    return CallBudget(models=models or (OURS,), thread="t", **more)


def paid(endpoint: Endpoint, budget: CallBudget, spending: Spending | None = None, **more: Any) -> Paid:
    return endpoint.play(Request(PROMPT, **more), spending or Spending(), budget)


def entry(model: str = "ours", tokens: int = ESTIMATE, most: int = 2_048, cost: float | None = None) -> Entry:
    return Entry(thread="t", model=model, purpose="reply", input_tokens=tokens, output_tokens=most, cost_usd=cost)


def used(tokens_in: int, tokens_out: int, cost: float | None = None, cached: int = 0, seconds: float = SECONDS) -> Used:
    return Used(
        calls=1,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_tokens=cached,
        cost_usd=cost,
        seconds=seconds,
    )


def told(what: Used, model: str = "ours", purpose: str = "reply") -> Emit:
    return Emit(name="model.usage", payload={"purpose": purpose, "model": model, **what.model_dump(exclude={"calls"})})


def fallen_back(failure: ProviderFailure, model: str, following: str) -> Emit:
    payload = {"model": model, "following": following, "reason": failure.message}
    return Emit(name="model.fallback", payload=payload)


def sending(most: int = 2_048, timeout_s: float = 300.0, *, quiet: bool = False) -> Call:
    return Call(prompt=PROMPT, max_output_tokens=most, timeout_s=timeout_s, quiet=quiet)


def gave_up(failure: ProviderFailure, diagnostics: str) -> StopCause:
    return StopCause(reason=StopReason.PROVIDER_FAILED, message=failure.message, diagnostics=(diagnostics,))


FREE_TRY = used(0, 0, 0.0)
"""What a try comes to that an endpoint refuses at once."""
