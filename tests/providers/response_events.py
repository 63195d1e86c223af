"""The events in which the Responses API streams its items."""

from mendgraph.nodes.records import JsonMap
from tests.providers.wire import pieces, sse


def response_events(begun: JsonMap, items: list[JsonMap], whole: JsonMap) -> list[bytes]:
    """All events of a response, numbered."""
    events: list[JsonMap] = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
    for index, item in enumerate(items):
        place: JsonMap = {"item_id": item["id"], "output_index": index}
        opened, inner = _OPENED[item["type"]](place, item)
        events.append({"type": "response.output_item.added", "output_index": index, "item": opened})
        events += inner
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return [sse(event | {"sequence_number": number}, event["type"]) for number, event in enumerate(events)]


def _reasoning(place: JsonMap, item: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    events: list[JsonMap] = []
    for index, part in enumerate(item["summary"]):
        here = place | {"summary_index": index}
        name = "response.reasoning_summary"
        events.append(here | {"type": f"{name}_part.added", "part": part | {"text": ""}})
        events += [here | {"type": f"{name}_text.delta", "delta": piece} for piece in pieces(part["text"], 17)]
        events.append(here | {"type": f"{name}_text.done", "text": part["text"]})
        events.append(here | {"type": f"{name}_part.done", "part": part})
    return item | {"summary": []}, events


def _message(place: JsonMap, item: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    here = place | {"content_index": 0}
    part = item["content"][0]
    events = [here | {"type": "response.content_part.added", "part": part | {"text": ""}}]
    events += [
        here | {"type": "response.output_text.delta", "delta": piece, "logprobs": []} for piece in pieces(part["text"])
    ]
    events.append(here | {"type": "response.output_text.done", "text": part["text"], "logprobs": []})
    events.append(here | {"type": "response.content_part.done", "part": part})
    return item | {"status": "in_progress", "content": []}, events


def _function_call(place: JsonMap, item: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    name = "response.function_call_arguments"
    events = [place | {"type": f"{name}.delta", "delta": piece} for piece in pieces(item["arguments"])]
    events.append(place | {"type": f"{name}.done", "arguments": item["arguments"], "name": item["name"]})
    return item | {"status": "in_progress", "arguments": ""}, events


_OPENED = {"reasoning": _reasoning, "message": _message, "function_call": _function_call}
