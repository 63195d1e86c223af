import re

import pytest

from nodes.execute_tools.secrets import commands
from nodes.execute_tools.secrets.commands import COMMAND_WORDS, Word, command_spans, passwords_in
from tests.nodes.execute_tools.secrets.ways import PASS, WAYS, WORD


def taken(text: str) -> list[str]:
    return [text[start:end] for start, end in command_spans(text)]


def taken_of(*words: str) -> list[str]:
    found = passwords_in([Word(each, 0) for each in words])
    return [words[place][start:end] for place, start, end in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"curl -su me:{WORD} u", []),  # several letters in one: not read
        (f"curl -u me:{WORD}\nmysql -p{PASS}\n", [f"me:{WORD}", PASS]),
        (f"sshpass -p {WORD} mysql -p{PASS}", [WORD, PASS]),
        (f"curl \\\n  -s \\\n  -u me:{WORD}", [f"me:{WORD}"]),
        (f'["curl",\n "-u",\n "me:{WORD}"]', [f"me:{WORD}"]),
        (f"curl -H 'X: a; b' -u 'me:{WORD}'", [f"me:{WORD}"]),
        ("curl -u me:yqDVtkqPECriaLRi u", ["me:yqDVtkqPECriaLRi"]),
        (f"curl -u '{WORD}:' u", [f"{WORD}:"]),
        (f"curl a | sort -u me:{WORD}", []),
        (f"curl a; tar -u me:{WORD}", []),
        (f"curl a\nsort -u me:{WORD}", []),
        (f"docker run -p {WORD}", []),
        (f"docker login -p {WORD}", [WORD]),
        (f"login -p {WORD}", []),
        (f"/usr/bin/curl -u me:{WORD}", [f"me:{WORD}"]),
        (f"my-curl -u me:{WORD}", []),
        (f"mysql -p {WORD}", []),
        ("curl -u $USER:$PASS", []),
        ("curl -u me:", []),
        ("curl -u me", []),
        ("curl -u 1000:1000", []),
        ("sshpass -p <password> ssh me@h", []),
    ],
)
def test_the_program_decides_what_an_option_means(text: str, found: list[str]) -> None:
    assert taken(text) == found


def test_lists_of_arguments_are_read_as_they_are() -> None:
    assert taken_of("curl", "-u", f"me:{WORD}") == [f"me:{WORD}"]
    assert taken_of("/usr/bin/mysql", "-u", "me", f"-p{WORD}") == [WORD]
    assert taken_of("run", "--token", WORD, "--max-tokens", "123456789") == [WORD]
    assert taken_of("git", "log", "-p", WORD) == taken_of("curl", "-u") == taken_of() == []


@pytest.mark.parametrize(("before", "secret", "after"), WAYS["command lines"])
def test_a_command_line_with_a_password_holds_a_word_that_is_looked_for(before: str, secret: str, after: str) -> None:
    text = before + secret + after
    if taken(text):
        assert any(word in text.lower() or word.strip() in text.lower().split('"') for word in COMMAND_WORDS)


@pytest.mark.parametrize("pattern", [each for each in vars(commands).values() if isinstance(each, re.Pattern)])
def test_no_group_repeats_possessively(pattern: re.Pattern[str]) -> None:
    """Python before 3.11.5 is wrong about such groups (gh-106052), which no later one shows."""
    assert re.search(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>", pattern.pattern) is None
