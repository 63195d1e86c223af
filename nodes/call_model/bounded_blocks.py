"""What a request in block form leaves out where the model's window is small: what the task needs least goes first."""

import json
from collections.abc import Callable, Sequence
from math import ceil

from nodes.call_model.turn_view import TurnView
from nodes.language.named_things import named_paths
from nodes.records import JsonMap

BYTES_PER_TOKEN = 3
"""Of UTF-8. Prose and code have three to four to a token, so this errs on the high side."""

TOKENS_PER_MESSAGE = 4
"""What a chat template puts around each message."""


def estimated_tokens(messages: Sequence[JsonMap], tools: Sequence[JsonMap] = ()) -> int:
    """The tokens of messages that hold nothing but text, and of native tools."""
    told = sum(ceil(_size(message["content"]) / BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE for message in messages)
    return told + (ceil(_size(json.dumps(tools)) / BYTES_PER_TOKEN) if tools else 0)


def latest_turns(earlier: Sequence[JsonMap], most_tokens: int) -> list[JsonMap]:
    """The last of these messages that fit; what has lost its beginning goes on with a person's."""
    left, first = estimated_tokens(earlier), 0
    while first < len(earlier) and (left > most_tokens or (first and earlier[first]["role"] != "user")):
        left -= estimated_tokens([earlier[first]])
        first += 1
    return list(earlier[first:])


def bounded_request(task: str, view: TurnView, told: Callable[[TurnView, Sequence[str]], str], most_tokens: int) -> str:
    """`told(view, left_out)` with as much of the view as fits.

    Files that the task does not name are left out first, oldest first, then what was found, then the file that was
    read last, then those that the task names.
    """
    text, left_out = told(view, ()), list[str]()
    order = _least_needed_first(task, view)
    while order and (excess := _size(text) - most_tokens * BYTES_PER_TOKEN) > 0:
        while order and excess > 0:
            path = order.pop(0)
            if path is None:
                excess -= sum(map(_size, view.found))
                view = view.model_copy(update={"found": ()})
            else:
                excess -= _size(view.files[path])
                left_out.append(path)
                files = {name: content for name, content in view.files.items() if name != path}
                view = view.model_copy(update={"files": files})
        text = told(view, left_out)
    return text


def _least_needed_first(task: str, view: TurnView) -> list[str | None]:
    """The paths of all files, and None in the place of what was found. Files are in the order in which they came."""
    named = frozenset(named_paths(task))
    others = [path for path in view.files if path not in named]
    return [
        *others[:-1],
        *([None] if view.found else []),
        *others[-1:],
        *(path for path in view.files if path in named),
    ]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
