"""The slice of the state that a model call reads, and the settings of the turn."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from mendgraph.nodes import records
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prompts.prompt import ShownMessages
from mendgraph.nodes.call_model.window import StandIns, Window
from mendgraph.nodes.language.project_notes import ProjectNotes

if TYPE_CHECKING:
    from mendgraph.nodes.language.block_form import BlockRequests


class CallModelState(TypedDict, total=False):
    """The slice of the state that the node reads."""

    messages: list[AnyMessage]
    profile: records.Profile
    corrections: list[records.Correction]
    spending: Spending
    preload: records.ModelReply | None
    pending_call: PendingCall | None
    step: int
    window: Window
    plan: records.Plan
    changes: list[records.FileChange]
    notes: tuple[ProjectNotes, ...]
    system_prompt: list[str]


@dataclass(frozen=True)
class CallSettings:
    """The settings for the calls of a turn.

    `window_tokens` is the model's window, None if it is unknown. `system` and `mode_prompt` follow our system
    prompt. `cache` and `stand_ins` hold messages of earlier requests. `blocks` builds requests in the block form, None
    for other forms.
    """

    budget: CallBudget = field(default_factory=CallBudget)
    temperature: float | None = None
    seed: int | None = None
    window_tokens: int | None = None
    cache: ShownMessages = field(default_factory=ShownMessages)
    stand_ins: StandIns = field(default_factory=dict)
    system: str = ""
    mode_prompt: str = ""
    blocks: "BlockRequests | None" = None
