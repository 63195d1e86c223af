"""Scripted models during whose calls Ctrl-C or SIGTERM comes."""

import asyncio
import signal
from collections.abc import Callable

from nodes.call_model.model import Call
from nodes.records import ModelReply, ProviderFailure
from tests.doubles.scripted_model import ScriptedModel

STOPPING = "mendgraph: stopping after the running step; Ctrl-C again to stop at once\n"
"""SIGTERM puts its own name there."""


class Interrupted(ScriptedModel):
    """A model that waits after its second line, at which these signals come."""

    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        reply = self.complete(call, on_text)
        if len(self.calls) == 2:
            for each in self.signals:
                signal.raise_signal(each)
            await asyncio.sleep(60)
        return reply


class InterruptedTwice(Interrupted):
    signals = (signal.SIGINT, signal.SIGINT)


class Terminated(Interrupted):
    signals = (signal.SIGTERM,)


class TerminatedTwice(Interrupted):
    signals = (signal.SIGTERM, signal.SIGTERM)


class InterruptedLate(ScriptedModel):
    """A model whose replies are complete when Ctrl-C comes."""

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        signal.raise_signal(signal.SIGINT)
        return self.complete(call, on_text)
