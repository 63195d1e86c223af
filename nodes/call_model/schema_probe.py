"""Whether an endpoint takes a schema for its reply: shown by the first call that carries one, and remembered.

No endpoint says beforehand what it can. One that cannot refuses the whole call, so the call is sent again at once
without its schema, in what is left of its time; what it refuses then as well was refused for another reason.
"""

from dataclasses import replace

from nodes.call_model.model import Call
from nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure

LEAST_TIMEOUT_S = 0.001
"""What a call is given whose time is used up: it fails as one that was too late."""


class SchemaProbe:
    """What one endpoint has shown. Safe in threads: what was learned is never taken back."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._refuses = False

    def as_taken(self, call: Call) -> Call:
        """The call as this endpoint takes it."""
        return _without_schema(call, 0.0) if self._refuses else call

    def second_try(self, sent: Call, result: ModelReply | ProviderFailure, seconds: float) -> Call | None:
        """The call to send after `sent` came to `result` in so many seconds; None where the result is final."""
        refused = isinstance(result, ProviderFailure) and result.kind is ProviderErrorKind.BAD_REQUEST
        return _without_schema(sent, seconds) if refused and sent.prompt.response_schema is not None else None

    def learned(self, result: ModelReply | ProviderFailure) -> ModelReply | ProviderFailure:
        """What the second try came to; a reply shows that the schema was what the endpoint had refused."""
        if isinstance(result, ModelReply):
            self._refuses = True
        return result


def response_format(schema: JsonMap) -> JsonMap:
    """The request's field for this schema. Not strict: OpenAI's strict mode refuses optional properties."""
    return {"type": "json_schema", "json_schema": {"name": "tool_call", "schema": schema, "strict": False}}


def _without_schema(call: Call, seconds: float) -> Call:
    prompt = replace(call.prompt, response_schema=None)
    return call.model_copy(update={"prompt": prompt, "timeout_s": max(call.timeout_s - seconds, LEAST_TIMEOUT_S)})
