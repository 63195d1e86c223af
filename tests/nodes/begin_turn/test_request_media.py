from langchain_core.messages import HumanMessage

from nodes.begin_turn.request_media import media_of, media_problem


def test_each_kind_is_named_once_whatever_its_provider_calls_it() -> None:
    types = ("text", "image", "input_image", "file", "audio", "video")
    assert media_of(HumanMessage([{"type": kind} for kind in types])) == ("image", "file", "audio", "video")
    assert media_of(HumanMessage("Hi.")) == ()


def test_what_is_refused_is_told_with_the_remedy() -> None:
    assert media_problem((), "m") == ""
    said = "The request holds content of the kind 'image', which m does not take: say it in words, or choose a model"
    assert media_problem(("image",), "m").startswith(said)
