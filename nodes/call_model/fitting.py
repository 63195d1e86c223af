"""Makes the next request fit the window of its model.

Nothing is done, and nothing is counted, while the whole conversation fits. Otherwise old results are cleared, then the
model summarises the beginning, which is a request that is paid like any other, and where that does not help the
window slides.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings, Tell
from mendgraph.nodes.call_model.compaction import TRIGGER, Budget, Compacted, NeedsSummary, compact
from mendgraph.nodes.call_model.ledger import MIN_OUTPUT_TOKENS, Spending
from mendgraph.nodes.call_model.paid_call import Request
from mendgraph.nodes.call_model.pending_call import MOST_ROUNDS, PendingCall
from mendgraph.nodes.call_model.prompts.estimates import estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.summary import SUMMARY_TOKENS
from mendgraph.nodes.call_model.turn_prompt import turn_prompt
from mendgraph.nodes.call_model.window import WHOLE, shown
from mendgraph.nodes.language.block_form import BlockRequests
from mendgraph.nodes.language.chat_messages import text_size
from mendgraph.nodes.language.history import without_thoughts
from mendgraph.nodes.records import ModelReply, Protocol, StopCause, ToolSpec

OUTPUT_SHARE: Final = 4  # a reply may have all of its tokens, or this part of the window, if that is less
MOST_SEEDS: Final = 2**31  # seeds are smaller than this in every endpoint that takes one


class Fitting:
    """Finds the next request that fits. `window` is the part of the history that is shown by now.

    `is_too_long` says that the endpoint called the last request too long, and nothing was left out since. Where nobody
    knows the window, only that makes the conversation smaller. `rounds` counts compactions of this visit and summaries.
    """

    def __init__(
        self,
        state: CallModelState,
        settings: CallSettings,
        specs: Sequence[ToolSpec],
        tell: Tell,
        spending: Spending,
        pending: PendingCall,
    ) -> None:
        """`pending` is how the call stands; events of compactions go to `tell`."""
        self._state = state
        self._settings = settings
        self._specs = specs
        self._tell = tell
        self._spending = spending
        self.window = state.get("window", WHOLE)
        self.is_too_long = pending.is_too_long
        self.rounds = pending.summaries
        self._was_refused = bool(pending.overflow)
        self._is_summarised = pending.summaries > 0
        limits = [tokens for tokens in (settings.window_tokens, self.window.tokens) if tokens is not None]
        self._window_tokens = min(limits, default=None)
        self._output_tokens = self._tokens_for_reply()
        self._needed: NeedsSummary

    def _tokens_for_reply(self) -> int:
        limit = self._settings.budget.limits.max_output_tokens_per_call
        if self._window_tokens is None:
            return limit or 0

        share = self._window_tokens // OUTPUT_SHARE
        if limit is None:
            return share

        return min(limit, share)

    def request(self) -> Request | StopCause:
        """The request for the reply, or for the summary without which that does not fit; or why there is none."""
        if self._settings.blocks is not None:
            return self._block_request(self._settings.blocks)

        while True:
            view = shown(self._state["messages"], self.window, self._settings.stand_ins)
            prompt = turn_prompt(self._state, self._settings, self._specs, view)
            estimated = self.estimate(prompt)

            if self._fits(estimated) or self.rounds == MOST_ROUNDS:
                return self._reply_request(prompt)

            self.rounds += 1
            step = self._compact(prompt, estimated)

            if step is None:  # it cannot be made smaller
                return self._reply_request(prompt)

            if isinstance(step, NeedsSummary) and not self._is_summarised:
                self._needed = step
                return Request(Prompt(step.messages), purpose="summary", most_output=SUMMARY_TOKENS)

            if isinstance(step, NeedsSummary):  # another summary costs as much as the first one
                self._take(step.fallback)
            elif isinstance(step, Compacted):
                self._take(step)
            elif self._state.get("notes"):  # the request itself comes first
                self._state = {**self._state, "notes": ()}
            else:
                return step

    def take_summary(self, reply: ModelReply | None) -> None:
        """Take the summary of a reply; None does without it."""
        if reply is None:
            self._take(self._needed.fallback)
        else:
            self._take(self._needed.conclude(without_thoughts(reply).text))

    def estimate(self, prompt: Prompt) -> int:
        """The estimated input tokens of a request."""
        return estimate_input(prompt.size, len(prompt.messages), self._spending.gauge)

    def _block_request(self, blocks: BlockRequests) -> Request | StopCause:
        """The block form builds each request from facts, and omits what does not fit; after a refusal half of it."""
        state = self._state
        corrections_sent = state["spending"].mending.asked_again
        cause = blocks.exhausted(state["messages"], state.get("corrections") or (), corrections_sent)
        if cause is not None:
            return cause

        most_tokens = None
        if self._window_tokens is not None and self._was_refused:
            most_tokens = self._window_tokens // 2
        elif self._window_tokens is not None:
            most_tokens = max(self._window_tokens - self._output_tokens, 1)

        prompt = turn_prompt(state, self._settings, self._specs, state["messages"], most_tokens)
        return self._reply_request(prompt)

    def _fits(self, estimated: int) -> bool:
        if self.is_too_long:
            return False

        return self._window_tokens is None or estimated + self._output_tokens <= self._window_tokens * TRIGGER

    def _reply_request(self, prompt: Prompt) -> Request:
        seed = self._settings.seed
        if seed is not None:
            seed = (seed + prompt.failed_tries) % MOST_SEEDS

        most_output = None
        if self._window_tokens is not None:
            most_output = max(MIN_OUTPUT_TOKENS, self._window_tokens - self.estimate(prompt))

        return Request(prompt, seed, most_output=most_output)

    def _take(self, compacted: Compacted) -> None:
        self.is_too_long = False
        self.window = compacted.window
        tokens = {"tokens_before": compacted.tokens_before, "tokens_after": compacted.tokens_after}
        self._tell("context.compacted", {"kind": compacted.kind, **tokens})

    def _compact(self, prompt: Prompt, estimated: int) -> Compacted | NeedsSummary | StopCause | None:
        """How a request of `estimated` tokens becomes smaller; messages are measured at its rate of tokens to bytes."""
        state = self._state
        history = state["messages"]
        stand_ins = self._settings.stand_ins
        native = state["profile"].protocol is Protocol.NATIVE
        tokens_per_byte = estimated / max(prompt.size, 1)

        def tokens_of(message: AnyMessage) -> int:
            if message.id:
                size = self._settings.cache.messages([message], native=native)[0].size
            else:  # one that is only being considered
                size = text_size(message.text)

            return ceil(size * tokens_per_byte)

        view_tokens = sum(map(tokens_of, shown(history, self.window, stand_ins)))
        budget = Budget(
            window_tokens=self._window_tokens,
            fixed_tokens=max(0, estimated - view_tokens),
            output_tokens=self._output_tokens,
        )
        changed = tuple(dict.fromkeys(change.path for change in state.get("changes") or ()))

        return compact(
            history,
            self.window,
            state.get("plan"),
            changed,
            tokens_of,
            budget,
            forced=self.is_too_long,
            stand_ins=stand_ins,
        )
