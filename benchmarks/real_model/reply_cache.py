"""Replies that were computed before, so that an experiment which changes nothing for a task costs nothing for it.

A reply is kept under the SHA-256 of the request as it is sent, of the weights, and of how often the same run has sent
the same request before: a harness that samples again gets the next sample, not the same one. What was measured when
the reply was computed (seconds, tokens, cached tokens) is kept with it and counted again.
"""

import hashlib
import json
import os
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path

from mendgraph.nodes.records import JsonMap, Record


class StoredReply(Record):
    """A reply as it came: HTTP status, content type, bytes, and the seconds that it took."""

    status: int
    content_type: str
    body: bytes
    seconds: float


def request_key(request: JsonMap, weights_sha256: str, occurrence: int) -> str:
    """The name of the reply to this request; `occurrence` counts equal requests of one run from 0.

    A greedy reply does not depend on the seed.
    """
    if request.get("temperature") == 0:
        request = {name: value for name, value in request.items() if name != "seed"}
    canonical = json.dumps([request, weights_sha256, occurrence], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class ReplyCache:
    """A folder with one file for each reply. The request stands beside it, for people who look for examples."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made before the first reply is kept."""
        self._folder = folder

    def get(self, key: str) -> StoredReply | None:
        """The reply of this name, None where there is none, or none that can be read."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._path(key).read_text("utf-8"))
            body = kept["text"].encode() if "text" in kept else b64decode(kept["base64"])
            return StoredReply(
                status=kept["status"], content_type=kept["content_type"], body=body, seconds=kept["seconds"]
            )
        return None

    def put(self, key: str, request: JsonMap, reply: StoredReply) -> None:
        """Keep a reply; it is there whole or not at all."""
        kept = {"status": reply.status, "content_type": reply.content_type, "seconds": reply.seconds}
        try:
            body = {"text": reply.body.decode()}
        except UnicodeDecodeError:
            body = {"base64": b64encode(reply.body).decode()}
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**kept, "request": request, **body}, ensure_ascii=False, indent=1), "utf-8")
        draft.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
