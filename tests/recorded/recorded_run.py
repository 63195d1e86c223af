"""What a recorded run is: a workspace, the requests of its turns, settings, and the effects of the model's replies.

A recorded run is data. Its expectations were written down after the recording: the model decides what happens, and
where it does something wrong the row says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mendgraph import ApprovalAnswer
from tests.vocabulary import JsonMap

RESUME = ""
"""In place of a request: the run goes on where its last turn was stopped."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A request, and how the machine ended it.

    Args:
        request: what the person typed, or `RESUME`.
        settings: fields of `AgentContext` that differ from those of the run, such as a limit that was raised.
        decision: the person's answer to each approval request.
        steps: what happened, in order: each call with its result, each reply that had to be asked for again, each
            approval, each override of a loop; in the words of `player.step_of`.
        kind: of the outcome.
        reason: of the outcome.
        message: a part of the outcome's message.
        answer: a part of the model's answer.
    """

    request: str
    settings: JsonMap = field(default_factory=dict)
    decision: str | ApprovalAnswer = ""
    steps: tuple[str, ...] = ()
    kind: str = "FINISHED"
    reason: str = "answered"
    message: str = ""
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """One run with the embedded model.

    Args:
        name: of the run and of its cassette.
        story: what the model did and what the machine made of it, for the reader.
        files: the workspace before the first turn.
        settings: fields of `AgentContext` that differ from those of the player.
        turns: of one thread.
        calls: replies of the model in all turns.
        changed: the files that differ at the end, with their new text; "" for a deleted file.
        in_requests: texts that the model was shown in a request.
        hidden: texts of the workspace that no request may hold.
        sandboxed: whether it starts programs, which need bubblewrap.
    """

    name: str
    story: str
    turns: tuple[Turn, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    settings: JsonMap = field(default_factory=dict)
    calls: int = 1
    changed: Mapping[str, str] = field(default_factory=dict)
    in_requests: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    sandboxed: bool = False
