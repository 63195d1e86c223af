"""What a provider replies, independent of its wire format, and the state that it returns with it.

Everything is computed from the family and the reply's number: a run that was killed and asks again gets the same bytes.
"""

import hashlib
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Literal

from tests.providers.wire import JsonMap

BASE_62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Call:
    """A tool call, with its arguments as JSON text to the letter."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True)
class Reply:
    """One reply of the model; `thinks` only counts where the request lets it think."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinks: bool = False
    finish: Literal["stop", "length"] = "stop"


def say(text: str, *, thinks: bool = False, finish: Literal["stop", "length"] = "stop") -> Reply:
    return Reply(text, thinks=thinks, finish=finish)


def use(*calls: tuple[str, str], text: str = "", thinks: bool = True) -> Reply:
    return Reply(text, tuple(Call(name, arguments) for name, arguments in calls), thinks)


@dataclass(frozen=True)
class State:
    """What belongs to a reply and has to come back as it was."""

    family: str
    number: int

    @property
    def thinking(self) -> str:
        """A text that is damaged by trimming, double escaping or cutting at a byte."""
        return (
            f'Thought {self.number} of {self.family}: "naïve" → 推理 \U0001f9e0, a path C:\\tmp\\n,\n'
            f"  an indent, <b>&amp;</b>, {self.letters('thinking', 40)} and a blank at its end. "
        )

    @property
    def signature(self) -> str:
        """Base64 of some 190 bytes, with each of its special characters."""
        seed = f"{self.family} {self.number}".encode()
        return b64encode(b"\xfb\xef\xbe\xff\xff\xff" + hashlib.shake_256(seed).digest(184)).decode()

    def letters(self, purpose: str, length: int) -> str:
        digest = hashlib.shake_256(f"{self.family} {self.number} {purpose}".encode()).digest(length)
        return "".join(BASE_62[byte % 62] for byte in digest)


@dataclass(frozen=True)
class Request:
    """A request as it came; header names are lower-case."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: JsonMap


@dataclass(frozen=True)
class Turn:
    """A reply that is due, and what it answers."""

    reply: Reply
    state: State
    request: Request
    usage: JsonMap = field(default_factory=dict)
    """In the provider's own words."""


@dataclass(frozen=True)
class Refusal:
    """A refusal, with the request that it refused."""

    status: int
    body: JsonMap | str
    why: str
    request: Request
