from langchain_core.messages import AIMessage, HumanMessage

from nodes.language.content_blocks import in_openai_form, media_of, media_problem, without_media


def test_each_kind_is_named_once_whatever_its_provider_calls_it() -> None:
    types = ("text", "image", "input_image", "file", "audio", "video")
    assert media_of(HumanMessage([{"type": kind} for kind in types])) == ("image", "file", "audio", "video")
    assert media_of(HumanMessage("Hi.")) == media_of(AIMessage([{"type": "thinking"}])) == ()


def test_what_is_refused_is_told_with_the_remedy() -> None:
    assert media_problem((), "m") == ""
    said = "The request holds content of the kind 'image', which m does not take: say it in words, or choose a model"
    assert media_problem(("image",), "m").startswith(said)


def test_a_block_without_a_form_of_openais_is_known() -> None:
    assert in_openai_form(HumanMessage(["Hi.", {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]))
    file, video = (
        {"type": "file", "url": "https://x/y.pdf"},
        {"type": "video", "base64": "AA", "mime_type": "video/mp4"},
    )
    assert [in_openai_form(HumanMessage([block])) for block in (file, video, {"type": "image"})] == [None] * 3


def test_what_is_not_shown_is_a_note_and_the_rest_stays() -> None:
    image, video = {"type": "input_image"}, {"type": "video"}
    message = HumanMessage(["Hi.", image, video], id="1")
    noted = without_media(message, ["image"])
    assert (noted.id, noted.content) == (
        "1",
        ["Hi.", {"type": "text", "text": "[image, not shown: the model does not take it]"}, video],
    )
    assert without_media(message, []) is message
