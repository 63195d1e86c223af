"""Scripted models during whose calls Ctrl-C or SIGTERM comes."""

import asyncio
import signal
from typing import Any, ClassVar

import pytest

from mendgraph.nodes.call_model.model import GuardedModel
from mendgraph.nodes.records import ModelReply, ProviderFailure
from tests.doubles.scripted_model import ScriptedModel

STOPPING = "mendgraph: stopping after the running step; Ctrl-C again to stop at once\n"
"""SIGTERM puts its own name there."""


class Interrupted(ScriptedModel):
    """A model that waits after its second line, at which these signals come."""

    signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT,)

    async def wait_for_reply(self) -> None:
        if len(self.calls) == 2:
            for number in self.signals:
                signal.raise_signal(number)
            await asyncio.sleep(60)


class InterruptedTwice(Interrupted):
    signals = (signal.SIGINT, signal.SIGINT)


class Terminated(Interrupted):
    signals = (signal.SIGTERM,)


class TerminatedTwice(Interrupted):
    signals = (signal.SIGTERM, signal.SIGTERM)


def interrupt_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come whenever a reply is complete."""
    acomplete = GuardedModel.acomplete

    async def interrupted(*arguments: Any) -> ModelReply | ProviderFailure:
        reply = await acomplete(*arguments)
        signal.raise_signal(signal.SIGINT)
        return reply

    monkeypatch.setattr(GuardedModel, "acomplete", interrupted)
