"""`mendgraph completion SHELL`, and what the script that it prints asks for when Tab is pressed.

The script calls `mendgraph` with `_MENDGRAPH_COMPLETE` set to the shell's name, `_MENDGRAPH_WORDS` to the words of the
line, one on each line, and `_MENDGRAPH_WORD` to the place of the word at hand. It gets a line for each offer: its kind,
its value and its help, with tabs between them. Nothing is written, and whatever goes wrong there are no offers.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from graph.terminal.exit_codes import ExitCode

if TYPE_CHECKING:
    from graph.terminal.shell_words import Offer

ASKED: Final = "_MENDGRAPH_COMPLETE"
WORDS: Final = "_MENDGRAPH_WORDS"
WORD: Final = "_MENDGRAPH_WORD"

BASH: Final = r"""_mendgraph() {
    local kind value help
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames -o filenames 2>/dev/null ;;
            file) compopt -o default -o filenames 2>/dev/null ;;
        esac
    done < <(IFS=$'\n'; _MENDGRAPH_COMPLETE=bash _MENDGRAPH_WORDS="${COMP_WORDS[*]}" _MENDGRAPH_WORD=$COMP_CWORD \
        "$1" 2>/dev/null)
}
complete -F _mendgraph mendgraph
"""
ZSH: Final = r"""#compdef mendgraph
_mendgraph() {
    local kind value help
    local -a offers
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            plain) offers+=("${value//:/\\:}${help:+:$help}") ;;
            dir) _files -/ ;;
            file) _files ;;
        esac
    done < <(_MENDGRAPH_COMPLETE=zsh _MENDGRAPH_WORDS="${(F)words}" _MENDGRAPH_WORD=$((CURRENT - 1)) "$words[1]" \
        2>/dev/null)
    (( $#offers )) && _describe mendgraph offers
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _mendgraph "$@"
else
    compdef _mendgraph mendgraph
fi
"""
FISH: Final = r"""function __mendgraph
    set -l words (commandline -opc)
    set -lx _MENDGRAPH_COMPLETE fish
    set -lx _MENDGRAPH_WORD (count $words)
    set -lx _MENDGRAPH_WORDS (string join \n -- $words (commandline -ct) | string collect)
    for offer in ($words[1] 2>/dev/null)
        set -l part (string split \t -- $offer)
        switch $part[1]
            case plain
                printf '%s\t%s\n' $part[2] $part[3]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
        end
    end
end
complete -c mendgraph -f -a '(__mendgraph)'
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> int:
    """Print the completion of a shell.

    For bash put this line into ~/.bashrc, for zsh into ~/.zshrc after compinit: eval "$(mendgraph completion bash)".
    For fish: mendgraph completion fish > ~/.config/fish/completions/mendgraph.fish
    """
    typer.echo(SCRIPTS[shell], nl=False)
    return ExitCode.FINISHED


def answer(app: typer.Typer, environment: Mapping[str, str], everywhere: Collection[str]) -> int:
    """Write the offers for the line that the environment describes; see `shell_words.offers`."""
    with suppress(Exception):
        for offer in found_offers(typer.main.get_command(app), environment, everywhere):
            typer.echo("\t".join(offer))
    return ExitCode.FINISHED


def found_offers(app: Any, environment: Mapping[str, str], everywhere: Collection[str]) -> "list[Offer]":
    """The offers; none for a line that no shell has sent."""
    from graph.terminal.shell_words import offers
    from nodes.execute_tools.environment.database import run_names

    place = environment.get(WORD, "")
    words = environment.get(WORDS, "").split("\n")
    if not place.isdecimal() or int(place) >= len(words):
        return []
    before, word = words[1 : int(place)], words[int(place)]
    if environment[ASKED] == "bash":  # which takes `--mode=ask` for three words
        before, word = _joined(before, word)
    return offers(app, before, word, run_names, everywhere)


def _joined(before: list[str], word: str) -> tuple[list[str], str]:
    """The words as a program gets them, where the last one is the value alone, as only that is replaced."""
    if word == "=":
        return before, ""
    return [each for each in before if each != "="], word
