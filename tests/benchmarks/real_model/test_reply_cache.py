from pathlib import Path

import pytest

from benchmarks.real_model.reply_cache import ReplyCache, StoredReply, request_key

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Grüße"}]}


@pytest.mark.parametrize("body", ["data: Grüße\r\n\n".encode(), b"\xff\x00"])
def test_a_reply_comes_back_to_the_byte(tmp_path: Path, body: bytes) -> None:
    reply = StoredReply(status=200, content_type="text/event-stream", body=body, seconds=1.25)
    ReplyCache(tmp_path).put("abc", REQUEST, reply)
    assert ReplyCache(tmp_path).get("abc") == reply
    assert ReplyCache(tmp_path).get("abd") is None


def test_a_damaged_file_is_no_reply(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "abc.json").write_text("{", "utf-8")
    assert ReplyCache(tmp_path).get("abc") is None


def test_a_key_knows_the_request_the_weights_and_the_occurrence() -> None:
    same = request_key({"b": 1, "a": 2}, "w", 0)
    assert same == request_key({"a": 2, "b": 1}, "w", 0)
    assert len({same, request_key({"a": 2}, "w", 0), request_key({"a": 2, "b": 1}, "v", 0)}) == 3
    assert same != request_key({"a": 2, "b": 1}, "w", 1)
