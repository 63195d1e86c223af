"""Names of secrets, literals that look like secrets, and the search for literals under such names in a text. Pure.

Texts are code, settings, headers and logs; the search takes linear time. Only single characters repeat possessively:
Python before 3.11.5 is wrong about groups that do (gh-106052). A group that is matched in a lookahead, as in
`(?=(?P<value>...))(?P=value)`, is possessive, too.
"""

import re
from collections.abc import Iterator
from typing import Final

_NAME_PARTS = """
    pass pwd psk auth creds secret token credential cookie bearer apikey api_key api-key accesskey access_key
    access-key privatekey private_key private-key ingkey ing_key ing-key ionkey ion_key ion-key
"""
SECRET_WORDS: Final = tuple(_NAME_PARTS.split())
"""Each secret's name has one of these words, in any case. Source: the key names of spec 4, and their synonyms."""
_WORDS_WITHOUT_KEY: Final = tuple(word for word in SECRET_WORDS if "key" not in word)

_SECRET_KEY = re.compile(
    r"passw(?:or)?d|passphrase|passcode|secret|token|(?:api|access|private)_?-?key|authorization|bearer|credential"
    r"|cookie",
    re.IGNORECASE,
)
_SECRET_STEM = re.compile(r"pass|pwd|psk|secret|token|key|auth|bearer|cred|cookie", re.IGNORECASE)
"""Matches in every name in which `_SECRET_KEY` or `_SHORT_KEY` matches."""
_NO_SECRET = re.compile(
    r"secretar(?:y|ies|iat)"
    r"|(?:stop|eos|bos|pad|unk|sep|cls|mask|page|pagination|next|continuation|cursor|sync|skip)_?-?tokens?",
    re.IGNORECASE,
)
"""Similar words with another meaning, and tokens that are signs of a text or positions in a list."""
_SHORT_KEY = re.compile(
    r"(?:^|[^A-Za-z]|(?-i:(?<=[a-z])(?=[A-Z]))|db|user|my|root|admin)(?:pass|pwd|psk|auth|creds)$"
    r"|(?:sign|encrypt)(?:ing|ion)_?-?key$|encrypted_?-?key$",
    re.IGNORECASE,
)
"""Last words of names of secrets, which folders, kinds or counts may have as well."""
_NUMBERED_KEY = re.compile(r"pass(?:w|c|phrase|$)|pwd$|pin$|_secret$|api_?key$", re.IGNORECASE)
_FOLDER = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?/[\w.@-]+/|(?:~|\.{1,2}|[A-Za-z]:)[/\\]|/[\w.@-]+$")
_MEASURE = re.compile(
    r"tokeni[sz]\w*|(?:max|min|num)_?tokens?|token_?(?:count|limit|budget|usage|type|id)\w*"
    r"|(?<!access_)(?<!refresh_)(?<!auth_)(?<!api_)(?<!bearer_)tokens(?![a-z])",
    re.IGNORECASE,
)
"""Words for tokens as a measure of text."""

_FILE_NAME = re.compile(r"/|\.[A-Za-z0-9]{1,4}$")  # a key that is a path, as in a map of files to hashes
_ABOUT_WORDS = """
    alg algorithm at attempts attribute backend checksum class column config configuration count date definition
    definitions description details digest dir directory encoder endpoint env error example examples exception
    expired expires expiry factory field file filename fingerprint flow flows folder form format generator grant
    handler hash hasher hashes header help hint id ids index info input kind label len length level line link manager
    message middleware mode model name names options param parameter parser path pattern placeholder policy position
    prefix properties provider re ref regex request requirements reset response rule rules schema scope scopes
    security selector separator serializer service settings size state status storage store strategy stream
    suffix template text time timeout title ttl type uri url usage validator var variable version view
"""
_ABOUT = frozenset(_ABOUT_WORDS.split())
"""Last words of names of what describes a secret: its location, its check, its lifetime."""

_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_PLAIN_WORDS = """
    abc access account acme admin aes alice anonymous another any api app application auth authorization bad bar
    basic baz bearer blank bob bogus change changed changeit changeme client code com cookie correct credential
    credentials custom db default demo dev development dummy empty enter env error example fake false field file
    foo foobar for from generated github goes google guest has have hello here host http https id incorrect insert
    invalid is it jane john jwt key keys letmein like live local localhost login long main me missing mock mongo
    my mypassword mysecret mysql mytoken name new no none not null oauth of off ok old on only openai or org
    other pass passphrase passwd password passwords payload placeholder please postgres prefix private prod
    production provided public put pw pwd qwerty random real redacted redis refresh replace repo required reset
    right root same sample scott secret secrets sentinel server service session set short should signing some
    something stage staging string strong stub suffix super sure tbd temp test testing testpass that the thing
    this tiger tmp to todo token tokens true type undefined unset unused user username valid value values very
    was weak welcome with word world wrong xxx yes you your
"""
_PLAIN = frozenset(_PLAIN_WORDS.split())  # words of which placeholders and test values are made
_PLACEHOLDER = re.compile(
    r"[\s\u2026]|\.\.\.|\*\*\*|(.)\1{5,}|://|^<.*>$|\$\{|\$\(|^\$(?:env:)?[A-Za-z_]\w*$|\{\{|\{[A-Za-z_]*\}|%\("
    r"|%[sdr]\b|^%\w+%$|\\[swdbWDSB]|\[redacted|@[\w-]+(?:\.[\w-]+)+$|^0x[0-9a-fA-F]+$|^\$?[A-Za-z]+=$|^\[.*\][+*]?$|[aA]-[zZ]"
)
"""Matches placeholders, text, and values of other kinds: references, formats, URLs, addresses."""

_SEPARATORS = re.compile(r"[#_\-.:/,@~]+")
_NAME_LIKE = re.compile(r"#?[A-Za-z0-9_\-.:/,@~]+")
_BRACKET = re.compile(r"[\[\](){}<>\\|]")
_CAMEL = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WORDY = re.compile(r"[A-Za-z]*\d?|[A-Za-z]{2,}\d{2}|[A-Za-z]+\d[A-Za-z]+|\d{1,10}")
SHORTEST: Final = 8  # characters of the shortest literal that its name makes a secret
SHORTEST_NUMBER: Final = 6  # digits of the shortest number that its name makes a password
LONGEST: Final = 4096  # characters of the longest literal; longer keys are recognized by their shape


def is_secret_key(name: str) -> bool:
    """Return whether every value under this name is a secret."""
    if not _SECRET_STEM.search(name):
        return False

    key_words = _NO_SECRET.sub("", _MEASURE.sub("", name))
    return bool(_SECRET_KEY.search(key_words)) and not _FILE_NAME.search(name)


def names_a_literal(name: str) -> bool:
    """Return whether a literal under this name may be a secret: `password`, and not `password_field` or `token_url`."""
    if not _SECRET_STEM.search(name):
        return False

    return (is_secret_key(name) and not is_about(name)) or bool(_SHORT_KEY.search(name))


def looks_secret_under(name: str, value: str) -> bool:
    """Return whether a literal is a secret under a name for which `names_a_literal` is true; `PWD` may be a folder."""
    return looks_secret(value) and not (_SHORT_KEY.search(name) and _FOLDER.match(value))


def is_secret_number(name: str, value: float) -> bool:
    """Return whether a number is a password under a name for which `names_a_literal` is true."""
    return bool(_NUMBERED_KEY.search(name)) and SHORTEST_NUMBER <= len(str(value)) <= LONGEST


def is_about(name: str) -> bool:
    """Return whether values under this name only describe a secret."""
    if name.startswith("$"):
        return True

    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    return bool(words) and words[-1] in _ABOUT and words[-2:] != ["secret", "id"]


def looks_secret(value: str) -> bool:
    """Return whether a literal under a secret's name looks like a secret.

    It has at least `SHORTEST` characters of several classes and no white space. It is no placeholder, no reference, no
    path, and no name made of words.
    """
    if not SHORTEST <= len(value) <= LONGEST or is_filler(value) or value[0] in "=:,;":
        return False

    if _NAME_LIKE.fullmatch(value):
        return not _is_name(value)

    classes = set(map(_character_class, value)) - {"other letter"}
    has_digits = "digit" in classes
    if _BRACKET.search(value):
        return has_digits and len(classes) == 4

    return len(classes) >= (2 if has_digits else 3)


def _character_class(char: str) -> str:
    if char.islower():
        return "lower"
    if char.isupper():
        return "upper"
    if char.isdigit():
        return "digit"

    return "other letter" if char.isalnum() else "sign"


def is_plain(value: str) -> bool:
    """Return whether it consists of words of placeholders and test values, digits and signs aside."""
    words = [piece.lower() for piece in _CAMEL.findall(value) if not piece.isdigit()]
    unknown = [word for word in words if word not in _PLAIN]
    return len(unknown) < len(words) and len("".join(unknown)) <= 2


def is_filler(value: str) -> bool:
    """Return whether it is a placeholder, a reference, or made of words of examples."""
    return bool(_PLACEHOLDER.search(value)) or is_plain(value)


def _is_name(value: str) -> bool:
    """Return whether all its parts are words, as in identifiers, paths, attribute chains, versions and dates."""
    parts = [part for part in _SEPARATORS.split(value) if part]
    if len(parts) == 1 and len(re.findall(r"\d", parts[0])) > 1 and not parts[0].isdigit():
        return False

    return all(map(_is_word, parts))


def _is_word(part: str) -> bool:
    if not _WORDY.fullmatch(part):
        return False

    return len(part) < SHORTEST or len(part) >= 3 * len(_CAMEL.findall(part))


# --- Literals under secrets' names in a text

_LONGEST_PREFIX: Final = 60  # characters of a name before its secret word
_LONG_VALUE: Final = 64  # characters of a value in which no further names are searched
_BEFORE: Final = 96  # characters before a name in which the field with the name is searched
_VALUE_BEFORE: Final = 320  # characters before a name in which the field with its value is searched
_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_REST = re.compile(r"[A-Za-z0-9_-]{0,60}+")
_LINK = re.compile(
    r"""
    (?P<close>\\{0,7}+["'`])? (?:\[[0-9]{0,6}+)? \]? [ \t]{0,8}+       # a quoted name ends, or name[25]
    (?P<sign>
        :[ \t]{0,8}+[A-Za-z][\w.|\[\]]{0,60}+[ \t]{0,8}+=(?!=)   # name: type = value
        | :{1,3}=|=>|[?+:.]?=(?![=>~])|\?\?=|:(?!:)
        | (?P<element>>)                              # <name>value</name>
        | (?P<text>                                   # only before a value in quotes:
            (?P<comma>,(?:[ \t]{0,4}+(?:default|value)=)?)   # "name", "value"
            | [=!]==?                                 # name == "value"
            | (?:string|String|str)[ \t]{1,4}+=(?!=)  # name type = "value"
            | \(                                      # name("value")
          )
        | (?P<option>(?<=[ \t]))                      # --name value, or name "value"
    )
    [ \t]{0,8}+(?P<line>(?:[|>][+-]?|[(\\])?[ \t]{0,4}+\r?\n[ \t]{1,40}+)?   # on the next line
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(
    r"""(?:[bBrRuUfF@]{1,2}(?=["'`\\]))?\\{0,7}+(?P<quote>["'`])"""
    r"""(?P<value>(?:(?!(?P=quote)|\s)[\x00-\[\]-\u2e7f]|\\[^\s"'`nrt\\]){8,4096})(?=\\{0,7}(?P=quote))"""
)
_BARE = re.compile(
    r"(?=(?P<value>(?:[A-Za-z0-9+/_.~!@#$%^*=?:-]|&(?![A-Za-z_][A-Za-z0-9_.-]{0,40}+=)){8,4096}))(?P=value)"
    r"(?![(\[{]|<(?!/))"
)
_QUERY_SIGNS = frozenset("?&")
_IN_QUERY = re.compile(r"(?P<value>[A-Za-z0-9+/_.~!@$%^*=:-]{8,4096}+)(?![(\[{<])")
_SCHEME = re.compile(r"(?:[Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest)(?:[ \t]{1,4}+|[ \t]{0,4}+\r?\n[ \t]{1,8}+)")
_LINE_END = re.compile(r"[ \t]{0,8}+(?:\r?\n|\Z|</)")
_COMPARED = re.compile(r"""(?P<quote>["'`])(?P<value>[^\s"'`\\]{8,200}+)(?P=quote)[ \t]{0,4}+[=!]==?[ \t]{0,4}+\Z""")
_CLOSED = re.compile(r"\s{0,40}+</")
_ATTRIBUTES = re.compile(
    r"&?[A-Za-z_]\w*+(?:[!?]?\.#?[A-Za-z_]\w*+)+(?:[!?]|\+\+|--)?|[\w.]{1,40}+\?[\w.]{1,40}+:[\w.]{1,40}+"
)

_FIELD_NAME = r"(?:[Nn]ame|NAME|[Kk]ey|KEY|[Vv]ariable|[Hh]eader|[Ff]ield|[Oo]ption)"
_FIELD_VALUE = r"(?:[Vv]al(?:ue)?|VALUE|[A-Z][a-z]{2,12}Value)"
_IS = r"""\\{0,7}+["']?[ \t]{0,8}+[:=][ \t]{0,8}+"""
_NAME_FIELD = re.compile(rf"""{_FIELD_NAME}{_IS}\\{{0,7}}+["']?[\w.:/-]{{0,60}}\Z""")
_NEXT_FIELD = re.compile(rf"""\\{{0,7}}+["']?\s{{0,48}}+[,;]?\s{{0,48}}+\\{{0,7}}+["']?(?<![\w-]){_FIELD_VALUE}{_IS}""")
_FIELD_BEFORE = re.compile(
    rf"""(?<![\w-]){_FIELD_VALUE}{_IS}(?P<field>\S{{8,200}}+)\s{{0,48}}+\\{{0,7}}+["']?{_FIELD_NAME}{_IS}"""
    rf"""\\{{0,7}}+["']?[\w.:/-]{{0,60}}\Z"""
)


def has_secret_word(folded: str) -> bool:
    """Return whether a lower-case text contains one of `SECRET_WORDS`."""
    return any(word in folded for word in SECRET_WORDS)


def fold(text: str) -> str:
    """Return the text in lower case, with all positions unchanged."""
    folded = text.lower()
    if len(folded) == len(text):
        return folded

    return re.sub(r"[A-Z]+", lambda match: match[0].lower(), text)


def assignment_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of literals under secrets' names. `folded` is the text in lower case."""
    words = SECRET_WORDS if "key" in folded else _WORDS_WITHOUT_KEY
    for word in words:
        at = folded.find(word)
        while at >= 0:
            end, span = _assigned(text, at, at + len(word))
            if span is not None:
                yield span

            at = folded.find(word, max(end, at + 1))


def _assigned(text: str, at: int, end: int) -> tuple[int, tuple[int, int] | None]:
    """Return where to continue after the name with the word at `at`, and the span of the secret that is assigned to it.

    The search continues after the name, or after the assigned value if that is long, so that it takes linear time.
    """
    tail = _REST.match(text, end)
    end = tail.end() if tail else end
    start = _name_start(text, at)
    name = text[start:end]
    if not names_a_literal(name):
        return end, None

    link = _LINK.match(text, end)
    span = _value(text, start, link) if link else None
    if span is None or link is None or link["comma"]:
        span = _field(text, start, end) or _compared(text, start) or span

    if span is None:
        return end, None

    if span[1] - span[0] > _LONG_VALUE:
        end = max(span[1], end)

    if not looks_secret_under(name, text[span[0] : span[1]]):
        return end, None

    return end, span


def _value(text: str, start: int, link: re.Match[str]) -> tuple[int, int] | None:
    """Return the span of the literal after a link; None without a literal, or if the link assigns nothing."""
    if link["comma"] and link["line"]:
        return None

    scheme = _SCHEME.match(text, link.end())
    at = scheme.end() if scheme else link.end()
    value = _QUOTED.match(text, at)

    if value is None and link["text"] is None:
        bare = _IN_QUERY if text[start - 1 : start] in _QUERY_SIGNS else _BARE
        value = bare.match(text, at)
        if value and link["line"] and not _is_value_line(text, value):
            return None

    if value and _is_link(text, start, link, value):
        return value.span("value")

    return None


def _is_value_line(text: str, value: re.Match[str]) -> bool:
    """Return whether a line below a name is its value, and no `name: value` or list item of its own."""
    literal = value["value"]
    return literal[-1] != ":" and literal[0] not in "-#*" and _LINE_END.match(text, value.end()) is not None


def _compared(text: str, start: int) -> tuple[int, int] | None:
    """Return the span of the literal that is compared with the name, as in `"..." == password`."""
    near = text[max(0, start - 3) : start].rstrip(" ")
    if not near.endswith("="):
        return None

    compared = _COMPARED.search(text, max(0, start - _VALUE_BEFORE), start)
    return compared.span("value") if compared else None


def _field(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the span of the value in another field of an object, of which one field holds the name."""
    if not _NAME_FIELD.search(text, max(0, start - _BEFORE), start):
        return None

    next_field = _NEXT_FIELD.match(text, end)
    if next_field:
        value = _QUOTED.match(text, next_field.end()) or _BARE.match(text, next_field.end())
        return value.span("value") if value else None

    field_before = _FIELD_BEFORE.search(text, max(0, start - _VALUE_BEFORE), start)
    if field_before is None:
        return None

    value_start, value_end = field_before.span("field")
    value = _QUOTED.match(text, value_start) or _BARE.match(text, value_start, value_end)
    return value.span("value") if value else None


def _name_start(text: str, at: int) -> int:
    start = at
    while start > 0 and at - start < _LONGEST_PREFIX and text[start - 1] in _NAME_CHARACTERS:
        start -= 1

    escaped = start > 0 and text[start - 1] == "\\" and text[start] in "nrt" and start < at
    return start + 1 if escaped else start


def _is_link(text: str, start: int, link: re.Match[str], value: re.Match[str]) -> bool:
    """Return whether the link assigns the value to the name."""
    is_quoted = value.re is _QUOTED
    if link["comma"] is not None:
        return link["close"] is not None
    if link["element"] is not None:
        return text[start - 1 : start] == "<" and _CLOSED.match(text, value.end()) is not None

    if link["option"] is not None:
        if text[start : start + 2] == "--":
            return True

        is_string = is_quoted and value["quote"] != "`" and link["close"] is None
        return is_string and is_secret_key(text[start : link.start()])

    return is_quoted or not _ATTRIBUTES.fullmatch(value["value"])
