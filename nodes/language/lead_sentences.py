"""Is the sentence before a call its announcement, or does it explain, quote or offer the call?

"I will read the file first:" announces; "For example:", "The log says:" and "You could send:" do not. Both what a
sentence must have and what it must not have are listed, so that whatever is neither is no announcement: the model is
then asked again, which costs a call and can harm nobody. Only English is understood.
"""

import re

from nodes.language.passages import is_file_name
from nodes.records import JsonMap

LONGEST_LEAD = 400
"""Characters of prose before a call; whoever writes more explains."""

_ACTS = (
    "add|call|change|check|correct|create|delete|edit|find|fix|list|look|make|open|read|remove|rename|replace|run|search"
    "|update|use|write"
)
_DOING = (
    "add|call|chang|check|correct|creat|delet|edit|find|fix|list|look|mak|open|read|remov|renam|replac|runn|search|updat"
    "|us|writ"
)
_ANNOUNCES = re.compile(
    rf"""
      \b(?:i|we)(?:'ll|\ will|\ shall|'m\ going\ to|\ am\ going\ to|'re\ going\ to|\ are\ going\ to
        |\ need\ to|\ have\ to|\ want\ to|\ must|\ should)\b
    | \blet(?:\ me|'s|\ us)\b
    | \b(?:first|now|next|then|finally),?\ (?:{_ACTS})\b
    | \A(?:{_DOING})ing\ [^,.]*[:.]*\Z
    | \A(?:thought|plan)[ \t]*:
    | \bhere(?:'s|\ is)\ (?:the|my|a|an)\ (?:\w+\ ){{0,2}}(?:call|change|code|edit|fix)
        (?:\ (?:to|for|in)\ [^.:]*)?[:.]*\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_EXPLAINS = re.compile(
    r"""
      \? | ```
    | \b(?:examples?|e\.g|i\.e|for\ instance|such\ as|like\ (?:this|so|that)|looks?\ like|format|syntax|template)\b
    | \b(?:would|could|might|may|either|alternatively|alternatives?|options?|(?<!help\ )you|they|let\ me\ know)\b
    | (?:\A|[.,;:!]\ )(?:if|see)\b | \bcan\ see\b
    | \b(?:shows?|explain|describe|demonstrate|illustrate|summari[sz]e|quotes?|documented|documentation)\b
    | \b(?:(?:i|we)\ (?:will|shall|should|must|do|did|have|can)\ not|won't|shouldn't|mustn't|don't|can't|cannot|never)\b
    | \b(?:are|contains?|gives?|has|holds?|is|outputs?|prints?|reads|receives?|returns?|returned|said|says|sends?|was
        |were)[ \t]*[:.]*\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LABEL = frozenset({"file", "filename", "path"})
_MARKS = "#*`_\"'():,;>-"


def announces(lead: str, arguments: JsonMap) -> bool:
    """Whether the prose before a call with these arguments says that it is to be made now.

    A lead that ends with the name of a file is the heading of that file's text, unless it is a sentence and the call is
    about that file.
    """
    said = lead.strip().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if len(said) > LONGEST_LEAD or _EXPLAINS.search(said) or not _ANNOUNCES.search(said):
        return False
    words = [word.strip(_MARKS).rstrip(".") for word in said.splitlines()[-1].split()]
    heading = [word for word in words if word and word.lower() not in _LABEL]
    if not heading or not is_file_name(heading[-1]):
        return True
    return len(heading) > 1 and heading[-1] in [value for value in arguments.values() if isinstance(value, str)]
