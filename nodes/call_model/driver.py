"""Performs the script of a model call: connects, sends and waits, sync or async. Decides nothing."""

import asyncio
import time
from collections.abc import Callable, Generator

from nodes.call_model.exchange import Answer, Connect, Effect, Send, Sent, Update, Wait
from nodes.call_model.model import Model
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure

Script = Generator[Effect, Answer, Update]
Connector = Callable[[str | None, str | None], Model | ProviderFailure]
OnText = Callable[[str], None]
OnWait = Callable[[Wait], None]


def unnoticed(_: Wait) -> None:
    """Wait without telling anybody."""


def perform(script: Script, connect: Connector, on_text: OnText, on_wait: OnWait = unnoticed) -> Update:
    """Run a script to its end and return the update that it decided on. Blocks while it sends and waits."""
    model: Model | ProviderFailure | None = None
    answer: Answer = None
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return dict(end.value)
        answer = None
        if isinstance(effect, Connect):
            model = connect(effect.model, effect.base_url)
            answer = model if isinstance(model, ProviderFailure) else None
        elif isinstance(effect, Send) and model is not None and not isinstance(model, ProviderFailure):
            started = time.monotonic()
            try:
                result = _checked(model.complete(effect.call, on_text))
            except Exception as error:  # noqa: BLE001 - a model of the user's own may fail in any way
                result = _broken(error)
            answer = Sent(result=result, seconds=time.monotonic() - started)
        elif isinstance(effect, Wait):
            on_wait(effect)
            time.sleep(effect.seconds)


async def aperform(script: Script, connect: Connector, on_text: OnText, on_wait: OnWait = unnoticed) -> Update:
    """Do the same without blocking the event loop."""
    model: Model | ProviderFailure | None = None
    answer: Answer = None
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return dict(end.value)
        answer = None
        if isinstance(effect, Connect):
            model = await asyncio.to_thread(connect, effect.model, effect.base_url)
            answer = model if isinstance(model, ProviderFailure) else None
        elif isinstance(effect, Send) and model is not None and not isinstance(model, ProviderFailure):
            started = time.monotonic()
            try:
                result = _checked(await model.acomplete(effect.call, on_text))
            except Exception as error:  # noqa: BLE001 - a model of the user's own may fail in any way
                result = _broken(error)
            answer = Sent(result=result, seconds=time.monotonic() - started)
        elif isinstance(effect, Wait):
            on_wait(effect)
            await asyncio.sleep(effect.seconds)


def _checked(result: object) -> ModelReply | ProviderFailure:
    if isinstance(result, ModelReply | ProviderFailure):
        return result
    raise TypeError(f"it gave back a {type(result).__name__}")


def _broken(error: Exception) -> ProviderFailure:
    """What is told of a model that breaks its contract; asking it again would break it again."""
    message = f"The model failed: {type(error).__name__}: {str(error)[:300]}"
    return ProviderFailure(kind=ProviderErrorKind.BAD_REQUEST, message=message)
