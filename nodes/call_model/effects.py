"""What the script of a model call asks for, and what it is answered: the words between decisions and effects."""

from dataclasses import dataclass
from typing import Any

from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, Used
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderFailure, Record, StopCause


@dataclass(frozen=True)
class Lost:
    """What calls of the thread have cost that its counters do not hold, and the number of the last of them."""

    used: Used
    number: int


@dataclass(frozen=True)
class Reserve:
    """Enter a reservation into the spending book; the thread's counters hold its entries up to `after`.

    Answered by `Booked`; by `Lost`, where there are later ones, and nothing is entered; or by what forbids the call.
    """

    entry: Entry
    after: int = 0


@dataclass(frozen=True)
class Booked:
    """The number of an entry; 0 where nothing is booked."""

    number: int


@dataclass(frozen=True)
class Settle:
    """Enter what a reserved call has really used. Answered by None."""

    number: int
    used: Used


class Send(Record):
    """Send this call. Answered by what came back, and the seconds it took."""

    call: Call


@dataclass(frozen=True)
class Wait:
    """Wait this long before the next try; `reason` is why the last one failed. Answered by None."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Tell:
    """Tell whoever follows the run's trace. Answered by None."""

    name: str
    payload: JsonMap


class Sent(Record):
    """The answer to `Send`."""

    result: ModelReply | ProviderFailure
    seconds: float


class Stopped(Record):
    """The answer to any effect that a stop has ended, or kept from beginning; `reason` says who asked for it.

    Where a call was `sent`, it took `seconds`, and `received_characters` of its reply had come.
    """

    reason: str
    sent: bool = False
    seconds: float = 0.0
    received_characters: int = 0


Effect = ModelChoice | Reserve | Settle | Send | Wait | Tell
"""What a script asks for. A model is to be connected: answered by None, or by the failure to find its endpoint."""

Answer = Lost | Booked | Sent | Stopped | StopCause | ProviderFailure | None
Update = dict[str, Any]
"""What a script comes to: the channels of the state that change."""
