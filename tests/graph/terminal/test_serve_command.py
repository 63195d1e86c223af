"""`mendgraph serve` at the command line, without a server."""

import re
from pathlib import Path

import pytest

from graph import cli
from graph.serving.tenants import token_hash


def test_a_new_token_is_told_with_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--new-token"]) == 0
    found = re.fullmatch(
        r'token, for the user alone:   (mg_\S{43})\nline for the tenants file:   token_sha256 = \["(\w+)"\]\n',
        capsys.readouterr().out,
    )
    assert found is not None
    assert token_hash(found[1]) == found[2]


def test_the_configuration_for_one_machine_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--configuration"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()


def test_a_server_that_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from graph.serving.opening import open_desk

    open_desk.cache_clear()
    assert cli.main(["serve"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "mendgraph: Name the file with the server's users in MENDGRAPH_TENANTS.\n")
