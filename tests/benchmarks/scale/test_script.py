import json

from benchmarks.scale.script import (
    ANSWER,
    CALLS,
    END,
    changed_files,
    events,
    files,
    problems,
    reply,
    run_of,
    task,
)


def test_a_run_makes_its_calls_and_then_answers() -> None:
    results, told = 0, list[list[str]]()
    while (said := reply(results)).calls:
        told.append([call[0] for call in said.calls])
        results += len(said.calls)
    assert told == [["read_file", "read_file"], ["edit_file"], ["edit_file"], ["search_files"]]
    assert (len(told) + 1, said.text) == (CALLS, ANSWER)


def test_each_edit_replaces_what_stands_once_in_its_file() -> None:
    for results in (2, 3):
        asked = json.loads(reply(results).calls[0][1])
        assert files()[asked["path"]].count(asked["old_str"]) == 1
    changed = {path for path, text in changed_files().items() if text != files()[path]}
    assert changed == {"shop/orders.py", "shop/prices.py"}


def test_a_request_tells_its_run() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": task("a1-17")}]}).encode()
    assert (run_of(body), run_of(b"{}")) == ("a1-17", None)


def test_an_answer_comes_in_pieces_and_says_what_it_used() -> None:
    body = json.dumps({"stream": True, "stream_options": {"include_usage": True}}).encode()
    told = events(body)
    assert told[-1] == END
    usage = json.loads(told[-2].removeprefix(b"data: "))["usage"]
    assert (len(told) > 4, usage["prompt_tokens"], usage["completion_tokens"]) == (True, len(body) // 4, 40)


def test_work_that_was_not_done_is_told() -> None:
    assert problems("r", "FINISHED", ANSWER, changed_files()) == []
    assert problems("r", "BUDGET_STOP", "too dear", files()) == [
        "r ended BUDGET_STOP: too dear",
        "r: shop/orders.py is not as it should be",
        "r: shop/prices.py is not as it should be",
    ]
