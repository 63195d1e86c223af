import pytest

from nodes.language.dialects import LONGEST_LEAD, announces

ARGUMENTS = {"path": "a.py", "limit": 3}


@pytest.mark.parametrize(
    "lead",
    [
        "I will read the file first:",
        "I'll read the file.",
        "I\N{RIGHT SINGLE QUOTATION MARK}ll read the file.",
        "To fix the bug in the add function, we need to change it so that it returns the sum.",
        "The function does not handle None. I am going to fix it before anything else:",
        "Sure, I can help you with that. Let me look at the file.\n",
        "Let's first read it:",
        "First, read the file:",
        "Sure! Reading the file now.\nNow read it:",
        "Reading the file:",
        "Using the read_file tool:",
        "Thought: the file must be read",
        "Here's the corrected code:",
        "Here is the tool call to read the file:",
        "I will read `a.py`:",
        "I will read a.py.",
    ],
)
def test_an_announcement_says_what_is_done_now(lead: str) -> None:
    assert announces(lead, ARGUMENTS)


@pytest.mark.parametrize(
    "lead",
    [
        "",
        "The file:",
        "For example:",
        "Let me give an example:",
        "The first line of the log is:",
        "We need to look at what the server says:",
        "You could send:",
        "I would send:",
        "I will show how it is done:",
        "Let me know whether this is right:",
        "We can see the call in the log:",
        "If the file exists, I will send:",
        "I will either read it or list the files:",
        "Should I send it?",
        "I will not send this:",
        "I won't send this:",
        "Here is the call that the client makes:",
        "Here is the JSON:",
        "Now the log has this line:",
        "First I sent this:",
        "I will use this format:",
        "I will write the file.\n```\nx\n```",
        "a.py",
        "I will write it.\na.py",
        "I will write it.\n### File: `a.py`",
        "I will write `b.py`:",
        "I will write b.py.",
        "I will write .env:",
        "I will write the Makefile: Makefile",
        "Ich lese die Datei:",
    ],
)
def test_anything_else_may_be_an_example(lead: str) -> None:
    assert not announces(lead, ARGUMENTS)


def test_a_long_text_explains() -> None:
    lead = "I will read the file. " + "x" * (LONGEST_LEAD - 22)
    assert announces(lead, {})
    assert not announces(f"{lead}x", {})
