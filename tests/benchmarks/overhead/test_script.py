import json

import pytest

from benchmarks.overhead.script import FILE, Script, answer, count_results, file_name, find_script

SPACED = b'{"messages": [{"role": "tool", "content": "a"}, {"content": "x", "role" : "tool"}]}'


def request(results: int, **more: object) -> bytes:
    messages = [{"role": "tool", "tool_call_id": "c", "content": "x"}] * results
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def document(script: Script, results: int) -> dict[str, object]:
    kind, [content] = answer(script, request(results))
    assert kind == "application/json"
    message: dict[str, object] = json.loads(content)["choices"][0]["message"]
    return message


def paths(script: Script, results: int) -> list[str]:
    calls = script.reply(results).calls
    return [json.loads(arguments)[script.argument] for _, arguments, *_ in calls]


@pytest.mark.parametrize("script", [Script(200), Script(3, 8, 25, "file_path", recorded=True)])
def test_a_script_is_told_by_its_address(script: Script) -> None:
    assert find_script(f"{script.path('home-1')}/chat/completions") == (script, "home-1")


def test_another_address_has_no_script() -> None:
    assert find_script("/v1/chat/completions") is None


def test_each_step_reads_another_file_of_four_kilobytes() -> None:
    assert 3_900 <= len(FILE) <= 4_100
    assert [paths(Script(2, parallel=2), results) for results in (0, 2)] == [
        ["data_000.py", "data_001.py"],
        ["data_002.py", "data_003.py"],
    ]
    assert paths(Script(1, argument="file_path"), 0) == ["/data_000.py"]
    assert file_name(200) == file_name(0)


def test_after_its_steps_a_run_is_over() -> None:
    assert Script(2, parallel=2).reply(4).calls == ()
    assert document(Script(2, parallel=2), 4)["content"] == "Done."


def test_results_are_counted_however_they_are_spelled_but_not_inside_of_texts() -> None:
    assert count_results(SPACED) == 2
    assert count_results(json.dumps({"role": "user", "content": '{"role": "tool"}'}).encode()) == 0


def test_a_streamed_reply_of_many_pieces_has_about_32_chunks() -> None:
    body = request(0, stream=True, stream_options={"include_usage": True})
    kind, events = answer(Script(1, pieces=25), body)
    assert kind == "text/event-stream"
    assert 30 <= len(events) <= 36
    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(texts) == "".join(f"word_{number:02} " for number in range(25))
    assert chunks[-1]["usage"]["prompt_tokens"] == len(body) // 4


def test_a_streamed_reply_without_text_comes_in_few_chunks() -> None:
    _, events = answer(Script(1), request(0, stream=True))
    assert len(events) <= 6
