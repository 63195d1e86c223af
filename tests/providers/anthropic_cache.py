"""Anthropic's prompt cache: only what lies before a breakpoint is written, and only what was written is read."""

import hashlib
from collections.abc import Iterator

from mendgraph.nodes.records import JsonMap
from tests.providers.wire import dumps, tokens

LOOK_BACK = 20
"""So many blocks before a breakpoint are looked at for something that was written earlier."""


def blocks(body: JsonMap) -> Iterator[tuple[str, JsonMap]]:
    """The prompt in the order in which it is cached: tools, system, messages; each block with its place."""
    yield from (("tools", tool) for tool in body.get("tools") or [])
    system = body.get("system") or []
    yield from (("system", block) for block in ([_text(system)] if isinstance(system, str) else system))
    for message in body.get("messages") or []:
        content = message["content"]
        yield from ((message["role"], block) for block in ([_text(content)] if isinstance(content, str) else content))


def breakpoints(body: JsonMap) -> int:
    """How many there are, those inside of tool results and the request's own included."""
    inner = [
        part
        for _, block in blocks(body)
        if isinstance(block.get("content"), list)
        for part in block["content"]
        if isinstance(part, dict)
    ]
    marked = [block for _, block in blocks(body)] + inner + [body]
    return sum(bool(block.get("cache_control")) for block in marked)


class PromptCache:
    """What was written, as digests of prefixes; prefixes below `minimum` tokens are not cached."""

    def __init__(self, minimum: int = 1024) -> None:
        self.minimum = minimum
        self._written: set[bytes] = set()

    def usage(self, body: JsonMap) -> tuple[int, int, int]:
        """Tokens that are plain, written and read; the cache holds the prompt's breakpoints from now on."""
        digest = hashlib.sha256(f"{body['model']}{dumps(body.get('tool_choice'))}".encode())
        sizes: list[int] = []
        digests: list[bytes] = []
        marks: list[int] = []
        for place, (where, block) in enumerate(blocks(body)):
            digest.update(f"{where}{dumps(_unmarked(block))}".encode())
            sizes.append((sizes[-1] if sizes else 0) + tokens(_unmarked(block)))
            digests.append(digest.digest())
            if _is_marked(block):
                marks.append(place)
        if body.get("cache_control") and sizes:
            marks.append(len(sizes) - 1)
        marks = [mark for mark in marks if sizes[mark] >= self.minimum]
        found = {place for mark in marks for place in range(max(mark - LOOK_BACK, 0), mark + 1)}
        read = max((sizes[place] for place in found if digests[place] in self._written), default=0)
        self._written.update(digests[mark] for mark in marks)
        written = max((sizes[mark] for mark in marks), default=0)
        total = sizes[-1] if sizes else 0
        return total - max(written, read), max(written - read, 0), read


def _text(text: str) -> JsonMap:
    return {"type": "text", "text": text}


def _is_marked(block: JsonMap) -> bool:
    inner = block.get("content")
    parts = inner if isinstance(inner, list) else []
    return bool(block.get("cache_control")) or any(
        part.get("cache_control") for part in parts if isinstance(part, dict)
    )


def _unmarked(block: JsonMap) -> JsonMap:
    """A block as the cache sees it: a mark that moves on changes nothing."""
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_unmarked(part) if isinstance(part, dict) else part for part in plain["content"]]
    return plain
