import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from graph.cassettes.cassette_file import CassetteFile, Exchange
from graph.cassettes.player import Player

PATH = "/v1/chat/completions"
CAUSE = "\nWhat usually causes this: "
AGAIN = " If it is meant, record again with `pytest --mendgraph-record`."
SAME_VERSION = f"{CAUSE}a changed prompt, tool, setting, file or version of the agent asks for something else.{AGAIN}"


def body(*texts: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts], **more}).encode()


def player(*bodies: bytes, version: str = "1", recorded: str = "1") -> Player:
    exchanges = tuple(
        Exchange(method="POST", path=PATH, request=each, status=200, headers={}, response=str(index).encode())
        for index, each in enumerate(bodies)
    )
    settings = {"mendgraph": recorded}
    return Player(CassetteFile(recorded_from="x", settings=settings, exchanges=exchanges), "c.yaml", version=version)


def answers(played: Player, *bodies: bytes, path: str = PATH) -> list[str]:
    found = [played.take("POST", path, each) for each in bodies]
    return [each if isinstance(each, str) else each.response.decode() for each in found]


def test_each_exchange_answers_once_whatever_the_order_of_requests() -> None:
    played = player(body("a"), body("b"), body("a"))
    assert answers(played, body("b"), body("a"), body("a")) == ["1", "0", "2"]
    assert (played.misses, played.unplayed, played.played) == ([], [], 3)


def test_a_query_and_the_layout_of_json_make_no_difference() -> None:
    assert answers(player(body("a")), body("a").replace(b" ", b""), path=f"{PATH}?key=x") == ["0"]


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_the_root_that_a_client_puts_before_a_path_makes_no_difference(path: str) -> None:
    assert answers(player(body("a")), body("a"), path=path) == ["0"]


@pytest.mark.parametrize("path", ["/v1", "/v1beta/chat/completions", "/x/v1/chat/completions"])
def test_any_other_root_does(path: str) -> None:
    assert f"POST {PATH} was recorded, POST {path} is sent" in answers(player(body("a")), body("a"), path=path)[0]


def test_a_conversation_of_any_api_is_told_by_how_it_ends() -> None:
    blocks = [{"type": "text", "text": "a\nb"}, "c", {"type": "tool_result", "content": "d"}]
    bodies: list[Any] = [
        {"messages": [{"role": "user", "content": blocks}]},
        {"contents": [{"role": "model", "parts": [{"text": "a"}]}]},
        {"input": [{"type": "function_call_output", "output": "a"}]},
        {"input": "a"},
    ]
    lines = player(*(json.dumps(each).encode() for each in bodies)).unplayed
    assert [line.partition(PATH)[2] for line in lines] == [
        ", 1 messages, the last by user: 'a b c d'",
        ", 1 messages, the last by model: 'a'",
        ", 1 messages, the last by function_call_output: ''",
        "",
    ]


def test_secrets_are_compared_as_they_were_recorded() -> None:
    assert answers(player(body("SCRUBBED")), body("sk-" + "a1B2" * 5)) == ["0"]


@pytest.mark.parametrize(("value", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0)])
def test_values_that_only_python_takes_for_equal_are_not(value: Any, other: Any) -> None:
    (miss,) = answers(player(body("a", n=value)), body("a", n=other))
    assert f"\n  n: recorded {json.dumps(value)}, sent {json.dumps(other)}" in miss
    assert answers(player(body("a", n=value, m=1)), body("a", m=1, n=value)) == ["0"]


def test_a_miss_shows_the_nearest_exchange_that_is_left() -> None:
    played = player(body("a"), body("d", temperature=0, seed=1), body("c", temperature=0))
    miss = (
        f"POST {PATH} was not recorded in c.yaml. The nearest exchange that is left is number 3 of 3:\n"
        f"  messages[0] (user).content: recorded 'c', sent 'b'{SAME_VERSION}"
    )
    assert answers(played, body("a"), body("b", temperature=0), body("b", temperature=0)) == ["0", miss, miss]
    assert played.misses == [miss]


def test_another_path_is_told() -> None:
    miss = (
        "POST /v1/models was not recorded in c.yaml. The exchange that is left is number 1 of 1:\n"
        f"  POST {PATH} was recorded, POST /v1/models is sent{SAME_VERSION}"
    )
    assert answers(player(body("a")), body("a"), path="/v1/models") == [miss]


def test_a_request_too_many_is_told_by_how_it_ends() -> None:
    ends = f"all of its 1 exchanges have been played, 2 messages, the last by user: 'b c'.{SAME_VERSION}"
    assert (
        answers(player(body("a")), body("a"), body("a", "b\n c"))[1]
        == f"POST {PATH} was not recorded in c.yaml: {ends}"
    )


def test_a_request_that_comes_again_is_told_as_such() -> None:
    again = answers(player(body("a")), body("a"), body("a"))[1]
    assert again.startswith(
        f"POST {PATH} was asked for again, and c.yaml holds its answer as often as it was recorded:"
    )


@pytest.mark.parametrize(("recorded", "version"), [("1", "2"), ("1", "1"), ("", "2"), ("1", "")])
def test_another_version_of_mendgraph_is_the_first_suspect(recorded: str, version: str) -> None:
    miss = answers(player(body("a"), version=version, recorded=recorded), body("b"))[0]
    suspect = f"{CAUSE}it was recorded with mendgraph 1, and this is 2, whose prompts may differ.{AGAIN}"
    assert miss.endswith(suspect if (recorded, version) == ("1", "2") else SAME_VERSION)


def test_what_nobody_has_asked_for_is_told_by_how_it_ends() -> None:
    played = player(body("a"), body("b", "x" * 100), b"{}", b"[]")
    answers(played, body("a"))
    assert played.unplayed == [
        f"number 2 of 4: POST {PATH}, 2 messages, the last by user: {'x' * 80!r}",
        f"number 3 of 4: POST {PATH}",
        f"number 4 of 4: POST {PATH}",
    ]


def test_threads_share_the_exchanges() -> None:
    played = player(*[body("a")] * 50)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: answers(played, body("a"))[0], range(50)))
    assert sorted(found, key=int) == [str(index) for index in range(50)]
