"""What a run may do, on which model, within which limits: the form that LangGraph Studio shows.

The context of a turn is stored in the state when the turn begins (`graph.state`), so that a resumed run cannot fall
back to other limits. It holds no secrets: the endpoint's key comes from `OPENAI_API_KEY`.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nodes.call_model.budget import APILimits
from nodes.call_model.ledger import RunLimits
from nodes.heal.corrective_prompt import SelfHealingConfig
from nodes.loop_check.repetition import LoopConfig
from nodes.records import EditForm, Profile, Protocol

MAX_CALLS_PER_TURN_LIMIT = 1_000
"""The most calls that a context may allow in one turn; `graph.build` derives its recursion limit from it."""


MOST = 2**53
"""The largest count that a context may hold: JSON and the checkpoints hold it exactly."""


class AgentContext(BaseModel):
    """One run's permissions, model and limits. Every field has a safe default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workspace: str = Field(
        ".", min_length=1, description="Folder that the agent works in. Nothing outside it is touched."
    )
    mode: Literal["read-only", "ask", "auto"] = Field(
        "auto", description="read-only: no changes. ask: a person approves each change. auto: changes inside the rules."
    )

    model: str | None = Field(
        None,
        description="Model name at the endpoint; 'local' is the embedded model. Empty: found from the environment.",
    )
    base_url: str | None = Field(
        None, description="OpenAI-compatible endpoint. Empty: OPENAI_BASE_URL, or the default."
    )
    protocol: Literal["text", "native", "auto"] = Field(
        "auto", description="How calls travel. auto: text with the embedded model, native elsewhere."
    )
    edit_form: Literal["replace", "blocks", "auto"] = Field(
        "auto", description="How edits are written. auto: fenced blocks with the embedded model, replace elsewhere."
    )
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="Sampling temperature of the first try.")
    seed: int | None = Field(None, ge=0, le=2**31 - 1, description="Sampling seed, where the endpoint honours one.")
    request_timeout_s: float = Field(300.0, gt=0, le=3_600, description="Longest time for one model call, in seconds.")
    provider_retries: int = Field(2, ge=0, le=10, description="Further tries after a transient endpoint failure.")

    max_calls_per_session: int = Field(100, ge=1, le=MOST, description="Model calls in one thread.")
    max_calls_per_turn: int = Field(10, ge=1, le=MAX_CALLS_PER_TURN_LIMIT, description="Model calls in one turn.")
    max_input_tokens_per_session: int = Field(100_000, ge=1, le=MOST, description="Input tokens in one thread.")
    max_output_tokens_per_session: int = Field(50_000, ge=1, le=MOST, description="Output tokens in one thread.")
    max_input_tokens_per_turn: int | None = Field(
        None, ge=1, le=MOST, description="Input tokens in one turn. Empty: no limit."
    )
    max_output_tokens_per_turn: int | None = Field(
        None, ge=1, le=MOST, description="Output tokens in one turn. Empty: no limit."
    )
    max_output_tokens_per_call: int = Field(2_048, ge=16, le=MOST, description="Output tokens in one reply.")
    max_steps: int | None = Field(None, ge=1, le=MOST, description="Rounds of tool calls in one turn. Empty: no limit.")
    max_steps_soft: bool = Field(False, description="Only report when max_steps is passed, instead of stopping.")
    max_seconds: float | None = Field(None, gt=0, description="Seconds in model calls and tools in one turn.")
    max_cost_usd: float | None = Field(None, gt=0, description="USD in one thread; needs both prices below.")
    usd_per_million_input: float | None = Field(None, ge=0, description="Price of a million input tokens, in USD.")
    usd_per_million_output: float | None = Field(None, ge=0, description="Price of a million output tokens, in USD.")

    max_healing_attempts: int = Field(3, ge=0, le=20, description="Corrections in a row for malformed calls.")
    max_schema_repairs: int = Field(2, ge=0, le=20, description="Corrections in a row for arguments that do not fit.")
    repeat_window: int = Field(3, ge=2, le=50, description="Actions that loop control looks back on.")
    loop_repeat_threshold: int = Field(3, ge=2, le=50, description="Identical actions in the window that are a loop.")
    tool_timeout_s: float = Field(30.0, gt=0, le=3_600, description="Longest time for one tool call, in seconds.")
    answer_schema: dict[str, Any] | None = Field(
        None, description="JSON schema that the value of final_answer must fit. Empty: any text is an answer."
    )

    @model_validator(mode="after")
    def _prices_for_a_cost_limit(self) -> Self:
        prices = (self.usd_per_million_input, self.usd_per_million_output)
        if self.max_cost_usd is not None and None in prices:
            raise ValueError("max_cost_usd needs usd_per_million_input and usd_per_million_output as well")
        return self

    def profile(self, embedded: bool) -> Profile:
        """How a turn talks to its model; `embedded` says that it is the embedded one, which wants the block form."""
        protocol = self.protocol if self.protocol != "auto" else "text" if embedded else "native"
        blocks = embedded and protocol == "text"
        edit_form = self.edit_form if self.edit_form != "auto" else "blocks" if blocks else "replace"
        return Profile(protocol=Protocol(protocol), edit_form=EditForm(edit_form), embedded=embedded)

    def limits(self) -> RunLimits:
        """The run's limits, as the ledger wants them."""
        return RunLimits(
            api=APILimits(
                max_calls_per_session=self.max_calls_per_session,
                max_calls_per_turn=self.max_calls_per_turn,
                max_input_tokens_per_session=self.max_input_tokens_per_session,
                max_output_tokens_per_session=self.max_output_tokens_per_session,
            ),
            **{name: getattr(self, name) for name in RunLimits.model_fields if name != "api"},
        )

    def healing(self) -> SelfHealingConfig:
        """How often malformed replies are asked for again."""
        return SelfHealingConfig(max_retries=self.max_healing_attempts, max_schema_repairs=self.max_schema_repairs)

    def loop(self) -> LoopConfig:
        """When repetition is a loop."""
        return LoopConfig(window=self.repeat_window, threshold=self.loop_repeat_threshold)
