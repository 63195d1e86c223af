"""Images of a request and of files, as each provider receives them."""

import json
from base64 import b64encode
from pathlib import Path

import pytest

from mendgraph import ToolError, get_run, run_task
from mendgraph.graph import cli
from mendgraph.graph.cassettes.from_run import cassette_from_run
from mendgraph.graph.runs.images import images_in
from mendgraph.nodes.language.media import MOST_MEDIA_BYTES
from tests.extent import slow
from tests.providers.clients import client
from tests.providers.servers import FAMILIES, say, use
from tests.row_tables import rows

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000000301010018dd8db0"
    "0000000049454e44ae426082"
)
"""A PNG of one red pixel."""
OTHER = PIXEL.replace(b"\x18\xdd\x8d\xb0", b"\x18\xdd\x8d\xb1")
FAMILIES_WITH_IMAGES = ("openai_gpt5", "openai_responses", "anthropic", "gemini")


def encode(image: bytes) -> str:
    return b64encode(image).decode()


@pytest.mark.parametrize("family", FAMILIES_WITH_IMAGES)
def test_images_of_the_request_and_of_a_file_reach_the_model(family: str, tmp_path: Path) -> None:
    (tmp_path / "given.png").write_bytes(PIXEL)
    (tmp_path / "shot.jpeg").write_bytes(OTHER)  # a PNG, whatever its name says
    with FAMILIES[family]([use(("read_file", '{"path": "shot.jpeg"}')), say("It is red.")]) as server:
        result = run_task(
            "Which colour is it?", workspace=str(tmp_path), model=client(server), images=[tmp_path / "given.png"]
        )
        bodies = [json.dumps(request.body) for request in server.requests]
        refusals = [refusal.why for refusal in server.refusals]
    assert result.outcome.kind == "FINISHED", result.outcome.message
    assert not refusals
    assert [encode(PIXEL) in body for body in bodies] == [True, True]
    assert [encode(OTHER) in body for body in bodies] == [False, True]
    assert "image/png" in bodies[1]
    assert "image/jpeg" not in bodies[1]
    assert result.outcome.usage["total_input_tokens"] < 20_000


@rows(
    ("nowhere.png", "Cannot read 'nowhere.png': there is no such file or directory."),
    ("notes.png", "'notes.png' is not an image that models accept. They accept PNG, JPEG, GIF, WEBP."),
    ("huge.png", f"Cannot read 'huge.png': it has more than {MOST_MEDIA_BYTES:,} bytes."),
    ("a\0b.png", "Cannot read 'a\\x00b.png': the path has a character that no file name can have."),
    (b"GIF87", "'data of 5 bytes' is not an image that models accept. They accept PNG, JPEG, GIF, WEBP."),
)
def test_invalid_image_ends_the_run_before_its_first_call(
    image: str | bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.png").write_text("no image")
    Path("huge.png").write_bytes(PIXEL + bytes(MOST_MEDIA_BYTES))
    outcome = run_task("Look.", workspace=str(tmp_path), model="gpt-5", images=[image]).outcome
    assert (outcome.reason, outcome.message) == ("invalid_request", message)


@rows(
    ("see @a.png, please", ["a.png"]),
    ("(@a.png) and `@a.png`.", ["a.png"]),
    ('@"b c/d.JPG"', ["b c/d.JPG"]),
    ("don't miss {root}/a.png, it isn't large", ["a.png"]),
    ("'{root}/b c/d.JPG' and {root}/b\\ c/d.JPG", ["b c/d.JPG"]),
    ("file://{root}/b%20c/d.JPG", ["b c/d.JPG"]),
    ("a.png, me@a.png, @nowhere.png and @notes.txt", []),
)
def test_images_are_recognized_by_an_at_sign_or_a_pasted_path(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "b c").mkdir()
    for name in ("a.png", "b c/d.JPG", "notes.txt"):
        (tmp_path / name).write_bytes(PIXEL)
    assert images_in(text.format(root=tmp_path), str(tmp_path)) == [str(tmp_path / name) for name in names]


def test_command_sends_the_images_of_its_task_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(PIXEL)
    Path("b.png").write_bytes(OTHER)
    with FAMILIES["openai_gpt5"]([say("It is red.")]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        code = cli.main(["--model", server.model, "--image", "b.png", "Which colour has @a.png?"])
        body = json.dumps(server.requests[0].body)
    assert code == 0, capsys.readouterr().err
    assert (encode(PIXEL) in body, encode(OTHER) in body) == (True, True)
    assert cli.main(["chat", "--image", "b.png"]) == 2
    assert "--image is for a task" in capsys.readouterr().err


@slow
def test_compacted_conversation_says_that_its_image_was_removed(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a line of nine words, and a few more\n" * 400)
    reads = [use(("read_file", f'{{"path": "long.txt", "limit": {300 + number}}}')) for number in range(9)]
    with FAMILIES["openai_gpt5"]([*reads, say("It is red.")], play="position") as server:
        result = run_task(
            "Which colour is it?",
            workspace=str(tmp_path),
            model=client(server),
            images=[PIXEL],
            window_tokens=14_000,
        )
        last = json.dumps(server.requests[-1].body)
    assert result.outcome.kind == "FINISHED", result.outcome.message
    assert encode(PIXEL) not in last
    assert "[image, which is not shown any more]" in last


def test_stored_request_names_its_images_and_its_run_cannot_become_a_test(tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(PIXEL)
    with FAMILIES["openai_gpt5"]([say("It is red.")]) as server:
        images: list[str | bytes] = [str(tmp_path / "shot.png"), OTHER]
        result = run_task("Look.", workspace=str(tmp_path), model=client(server), images=images)
    run = get_run(result.thread_id, str(tmp_path))
    assert not isinstance(run, ToolError)
    assert run.request == f"Look.\n[image '{images[0]!s}']\n[image]"
    refusal = cassette_from_run(result.thread_id, str(tmp_path))
    assert isinstance(refusal, ToolError)
    assert "has an image or a file, which a test cannot send" in refusal.message
    assert not (tmp_path / "tests").exists()


def test_model_without_vision_gets_a_note_instead_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(PIXEL)
    with FAMILIES["openai_gpt5"]([use(("read_file", '{"path": "shot.png"}')), say("I cannot see it.")]) as server:
        blind = client(server).model_copy(update={"profile": {"image_inputs": False}})
        outcome = run_task("Which colour is it?", workspace=str(tmp_path), model=blind).outcome
        body = json.dumps(server.requests[1].body)
    assert outcome.kind == "FINISHED", outcome.message
    assert encode(PIXEL) not in body
    assert "[image, not shown: the model does not take it]" in body
