"""Resolves LangChain's wrappers around chat models: which models are asked, in which order, with which settings.

A wrapper hides what limits need: the model's name, how long its reply may be, and how often it is asked.
"""

from collections.abc import Mapping
from contextvars import Context
from typing import Any, Final, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.tracers.root_listeners import AsyncRootListenersTracer, RootListenersTracer

from mendgraph.nodes.records import JsonMap

LIMIT_FIELDS: Final = ("max_tokens", "max_output_tokens", "num_predict", "max_new_tokens", "max_completion_tokens")
"""What chat models call the most tokens of a reply."""

SAMPLING: Final = (
    *("temperature", "seed", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"),
    *("reasoning_effort", "verbosity"),
)
"""Settings of chat models that a model may refuse, and that are omitted then."""

_NAMES: Final = ("model", "model_name")
_CONFIGURABLE: Final = "_ConfigurableModel"
"""The class of what `init_chat_model(configurable_fields=...)` returns, which LangChain does not export."""

_DECIDED: Final = {
    **dict.fromkeys(("tools", "functions", "tool_choice", "function_call"), "pass tools to tools=..."),
    **dict.fromkeys(("response_format", "ls_structured_output_format"), "pass it to response_format=..."),
    **dict.fromkeys(("stream", "stream_options", "n"), "leave it out"),
}
"""Arguments of calls that a run itself sets, and what to do instead."""

_ACCEPTED: Final = (
    "use a chat model, or what bind, with_config, with_retry, with_fallbacks, configurable_fields,"
    " configurable_alternatives or init_chat_model(configurable_fields=...) return"
)


class Single(NamedTuple):
    """One chat model. `settings` are arguments of its calls that are no fields of the model.

    `is_retried`: `with_retry` would ask it several times.
    """

    chat: BaseChatModel
    settings: JsonMap
    is_retried: bool = False


def unwrap(model: Any, config: RunnableConfig | None = None) -> tuple[Single, ...]:
    """Return the chat models that a model of LangChain asks, in order; more than one with `with_fallbacks`.

    `config` chooses among what is configurable; defaults hold otherwise.

    Raises:
        TypeError: it is something else; the message says what is accepted.
    """
    if isinstance(model, BaseChatModel):
        return (Single(model, {}),)

    if isinstance(model, DynamicRunnable):
        prepared, chosen = model.prepare(config)
        return unwrap(prepared, chosen)

    if isinstance(model, RunnableBindingBase):
        bound_config = merge_configs(model.config, *(factory(model.config) for factory in model.config_factories))
        models = []
        for single in unwrap(model.bound, merge_configs(bound_config, config)):
            is_retried = single.is_retried or isinstance(model, RunnableRetry)
            models.append(_bind(single, model.kwargs, bound_config)._replace(is_retried=is_retried))

        return tuple(models)

    if isinstance(model, RunnableWithFallbacks):
        if model.exception_key is not None:
            raise TypeError("with_fallbacks(exception_key=...) is for chains whose input is a dict: leave it out")
        if model.exceptions_to_handle != (Exception,):
            raise TypeError(
                "with_fallbacks(exceptions_to_handle=...) chooses by exceptions, and a run by kinds of failures: leave"
                " it out"
            )

        return tuple(single for runnable in model.runnables for single in unwrap(runnable, config))

    if type(model).__name__ == _CONFIGURABLE:
        return unwrap(_configured(model, config))

    raise TypeError(f"a {type(model).__name__} hides which model it asks, so no limit can be kept: {_ACCEPTED}")


def run_models(model: Any, config: RunnableConfig | None = None) -> tuple[Single, ...]:
    """Return the chat models that a run asks, in order: it makes retries of its own, and decides which failures pass.

    Raises:
        TypeError: it is no chat model, or nothing that a run can honour; the message says what is accepted.
    """
    models = unwrap(model, config)

    for single in models:
        for name in single.settings.keys() & _DECIDED.keys():
            raise TypeError(f"bind({name}=...) is for the machine to decide: {_DECIDED[name]}")

        handlers: Any = getattr(single.chat.callbacks, "handlers", single.chat.callbacks) or ()
        if any(isinstance(handler, RootListenersTracer | AsyncRootListenersTracer) for handler in handlers):
            raise TypeError(
                "the listeners of with_listeners hear one call, and a run makes many: give a callback handler, as in"
                " with_config(callbacks=[...])"
            )

    return models


def is_configurable(model: Any) -> bool:
    """Return whether a run's config may choose among models or their settings."""
    if isinstance(model, RunnableBindingBase):
        return is_configurable(model.bound)
    if isinstance(model, RunnableWithFallbacks):
        return any(map(is_configurable, model.runnables))

    return isinstance(model, DynamicRunnable) or type(model).__name__ == _CONFIGURABLE


def with_arguments(model: Single, arguments: Mapping[str, Any]) -> Single:
    """Return the model with arguments of a call; those that limits need, and sampling, become fields of a copy."""
    fields = type(model.chat).model_fields
    update = JsonMap()
    limit = next((name for name in LIMIT_FIELDS if name in fields), "")
    others = dict(model.settings)

    for name, value in arguments.items():
        if name in LIMIT_FIELDS and limit:
            update[limit] = value
        elif name in _NAMES and (names := [limit_name for limit_name in reversed(_NAMES) if limit_name in fields]):
            update |= {names[0]: value, "profile": None}
        elif name in SAMPLING and name in fields:
            update[name] = value
        else:
            others[name] = value

    return model._replace(chat=with_settings(model.chat, update), settings=others)


def with_settings(chat: BaseChatModel, settings: JsonMap) -> BaseChatModel:
    """Return a copy with these settings, or the chat model itself if it has them, as it may have a state of its own."""
    if all(getattr(chat, name) == value for name, value in settings.items()):
        return chat
    return chat.model_copy(update=settings)


def _configured(model: Any, config: RunnableConfig | None) -> Any:
    """Return the model that `init_chat_model(configurable_fields=...)` makes of a config; it reads no other one."""
    configurable = (config or {}).get("configurable") or {}

    def copy() -> Any:
        return model.with_config(configurable=configurable).model_copy()

    try:
        return Context().run(copy)
    except AttributeError:
        raise TypeError(
            "init_chat_model(configurable_fields=...) has no default model here: name one, as in"
            ' init_chat_model("openai:gpt-5-mini", configurable_fields=("model",))'
        ) from None


def _bind(model: Single, arguments: Mapping[str, Any], config: RunnableConfig) -> Single:
    """Return the model with what a binding adds to each call: arguments, tags, metadata and callbacks."""
    chat = model.chat
    added = JsonMap()
    if tags := config.get("tags"):
        added["tags"] = [*(chat.tags or ()), *tags]

    if metadata := config.get("metadata"):
        added["metadata"] = {**(chat.metadata or {}), **metadata}

    if callbacks := config.get("callbacks"):
        added["callbacks"] = merge_configs({"callbacks": chat.callbacks}, {"callbacks": callbacks}).get("callbacks")

    return with_arguments(model._replace(chat=with_settings(chat, added)), arguments)


def split_by_fields(arguments: Mapping[str, Any], kind: type[BaseChatModel]) -> tuple[JsonMap, JsonMap]:
    """Return the arguments that are fields of a class of chat models, and the others."""
    fields: JsonMap = {}
    others: JsonMap = {}

    for name, value in arguments.items():
        if name in kind.model_fields:
            fields[name] = value
        else:
            others[name] = value

    return fields, others
