"""A cache of replies, so that an experiment computes only the replies that it changes.

The key of a reply is the SHA-256 of the request, of the weights, and of the number of equal earlier requests of the
run, so that repeated sampling gets different samples. The original seconds and tokens are stored and counted again.
"""

import hashlib
import json
import os
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path

from mendgraph.nodes.records import JsonMap, Record


class StoredReply(Record):
    """A reply: HTTP status, content type, bytes, and duration."""

    status: int
    content_type: str
    body: bytes
    seconds: float


def request_key(request: JsonMap, weights_sha256: str, occurrence: int) -> str:
    """Return the key of the reply to this request. `occurrence` counts equal requests of one run from 0.

    The key of a greedy request does not depend on the seed.
    """
    if request.get("temperature") == 0:
        request = {name: value for name, value in request.items() if name != "seed"}
    canonical = json.dumps([request, weights_sha256, occurrence], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class ReplyCache:
    """A folder with one file for each reply. The file includes the request, for readers who look for examples."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> StoredReply | None:
        """Return the reply with this key; None if it is missing or unreadable."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            document = json.loads(self._path(key).read_text("utf-8"))
            body = document["text"].encode() if "text" in document else b64decode(document["base64"])
            return StoredReply(
                status=document["status"],
                content_type=document["content_type"],
                body=body,
                seconds=document["seconds"],
            )
        return None

    def put(self, key: str, request: JsonMap, reply: StoredReply) -> None:
        """Store a reply atomically."""
        document: JsonMap = {
            "status": reply.status,
            "content_type": reply.content_type,
            "seconds": reply.seconds,
            "request": request,
        }
        try:
            document["text"] = reply.body.decode()
        except UnicodeDecodeError:
            document["base64"] = b64encode(reply.body).decode()

        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(document, ensure_ascii=False, indent=1), "utf-8")
        draft.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
