"""Which names stand for secrets, and which of the literals under them look like one. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

_NAME_PARTS = """
    pass pwd psk auth creds secret token credential cookie bearer apikey api_key api-key accesskey access_key
    access-key privatekey private_key private-key ingkey ing_key ing-key ionkey ion_key ion-key
"""
SECRET_WORDS: Final = tuple(_NAME_PARTS.split())
"""Lower-case words of which a secret's name holds one. Source: spec 4's key names, and those that mean the same."""

_SECRET_KEY = re.compile(
    r"passw(?:or)?d|passphrase|passcode|secret|token|(?:api|access|private)_?-?key|authorization|bearer|credential"
    r"|cookie",
    re.IGNORECASE,
)
_SECRET_STEM = re.compile(r"pass|secret|token|key|auth|bearer|credential|cookie", re.IGNORECASE)
"""Stands in whatever the two patterns beside it find."""
_NO_SECRET = re.compile(
    r"secretar(?:y|ies|iat)"
    r"|(?:stop|eos|bos|pad|unk|sep|cls|mask|page|pagination|next|continuation|cursor|sync|skip)_?-?tokens?",
    re.IGNORECASE,
)
"""Words that only look alike, and tokens that are signs of a text or places in a list."""
_SHORT_KEY = re.compile(
    r"(?:^|[^A-Za-z]|(?-i:(?<=[a-z])(?=[A-Z]))|db|user|my|root|admin)(?:pass|pwd|psk|auth|creds)$"
    r"|(?:sign|encrypt)(?:ing|ion)_?-?key$|encrypted_?-?key$",
    re.IGNORECASE,
)
"""Last words of a name that stand for a secret, but for a folder, a kind or a count as well."""
_NUMBERED_KEY = re.compile(r"pass(?:w|c|phrase|$)|pwd$|pin$|_secret$|api_?key$", re.IGNORECASE)
_FOLDER = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?/[\w.@-]+/|(?:~|\.{1,2}|[A-Za-z]:)[/\\]|/[\w.@-]+$")
_MEASURE = re.compile(
    r"tokeni[sz]\w*|(?:max|min|num)_?tokens?|token_?(?:count|limit|budget|usage|type|id)\w*"
    r"|(?<!access_)(?<!refresh_)(?<!auth_)(?<!api_)(?<!bearer_)tokens(?![a-z])",
    re.IGNORECASE,
)
"""Words that speak of tokens as a measure of text."""

_FILE_NAME = re.compile(r"/|\.[A-Za-z0-9]{1,4}$")
"""Keys that are paths, as in a map of files to hashes."""

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
"""Last words of names that say something about a secret: where it is, how it is checked, how long it lives."""

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
_PLAIN = frozenset(_PLAIN_WORDS.split())
"""Words of which placeholders and test values are made."""

_TERMS = re.compile(
    r"sha-?\d+|base(?:16|32|58|62|64|85)|md5|utf-?(?:8|16|32)|oauth\d|pbkdf2|argon2(?:id?)?|ed25519|x509|pkcs\d+"
    r"|[ehpr]s(?:256|384|512)|aes-?\d+|hmac|http2|i18n|l10n|k8s|s3|ec2|p(?:256|384|521)|(?<![a-z])v\d+",
    re.IGNORECASE,
)
"""Terms of the trade that hold digits: they make no random value of a name."""

_PLACEHOLDER = re.compile(
    r"[\s\u2026]|\.\.\.|\*\*\*|(.)\1{5,}|://|^<.*>$|\$\{|\$\(|^\$(?:env:)?[A-Za-z_]\w*$|\{\{|\{[A-Za-z_]*\}|%\("
    r"|%[sdr]\b|^%\w+%$|\\[swdbWDSB]|\[redacted|@[\w-]+(?:\.[\w-]+)+$|^0x[0-9a-fA-F]+$|^\$?[A-Za-z]+=$|^\[.*\][+*]?$|[aA]-[zZ]"
)
"""What stands for a value, is text, or is a value of another sort: references, formats, URLs, addresses."""

_SEPARATORS = re.compile(r"[#_\-.:/,@~]+")
_NAME_LIKE = re.compile(r"#?[A-Za-z0-9_\-.:/,@~]+")
_BRACKET = re.compile(r"[\[\](){}<>\\|]")
_CAMEL = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WORDY = re.compile(r"[A-Za-z]*\d?|[A-Za-z]{2,}\d{2}|[A-Za-z]+\d[A-Za-z]+|\d{1,10}")
SHORTEST: Final = 8
"""Characters that a literal has at least, to be taken for a secret because of its name."""
SHORTEST_NUMBER: Final = 6
"""Digits that a number has at least, to be taken for a password because of its name."""
LONGEST: Final = 4096
"""Characters that a literal has at most; keys that are longer have a shape of their own."""


def is_secret_key(name: str) -> bool:
    """Whether a value under this name is a secret, whatever it looks like."""
    if not _SECRET_STEM.search(name):
        return False
    told = _NO_SECRET.sub("", _MEASURE.sub("", name))
    return bool(_SECRET_KEY.search(told)) and not _FILE_NAME.search(name)


def names_a_literal(name: str) -> bool:
    """Whether a literal under this name may be a secret: `password`, and not `password_field` or `token_url`."""
    return (is_secret_key(name) and not is_about(name)) or bool(_SHORT_KEY.search(name))


def looks_secret_under(name: str, value: str) -> bool:
    """Whether a literal under a name that `names_a_literal` is a secret; the shell's `PWD` is a folder."""
    return looks_secret(value) and not (_SHORT_KEY.search(name) and _FOLDER.match(value))


def is_secret_number(name: str, value: float) -> bool:
    """Whether a number under a name that `names_a_literal` is a secret: a password, and no count of tokens."""
    return bool(_NUMBERED_KEY.search(name)) and SHORTEST_NUMBER <= len(str(value)) <= LONGEST


def is_about(name: str) -> bool:
    """Whether what stands under this name only says something about its neighbours or its owner."""
    words = _NAME_WORDS.findall(name)
    last, secret_id = "".join(words[-1:]).lower(), "".join(words[-2:]).lower() == "secretid"
    return name.startswith("$") or (last in _ABOUT and not secret_id)


def looks_secret(value: str) -> bool:
    """Whether a literal under a secret name is a secret by its look.

    It has at least `SHORTEST` characters of mixed classes and no white space, and is no placeholder, no reference,
    no path and no name: none whose parts are words.
    """
    if not SHORTEST <= len(value) <= LONGEST or is_filler(value) or value[0] in "=:,;":
        return False
    digits, classes = _classes(value)
    if _NAME_LIKE.fullmatch(value):
        return not _is_name(value)
    if _BRACKET.search(value):
        return digits and classes == 4
    return classes >= (2 if digits else 3)


def is_plain(value: str) -> bool:
    """Whether it is made of words that placeholders and test values are made of, digits and signs aside."""
    pieces = [piece.lower() for piece in _CAMEL.findall(value) if not piece.isdigit()]
    odd = [piece for piece in pieces if piece not in _PLAIN]
    return len(odd) < len(pieces) and len("".join(odd)) <= 2


def is_filler(value: str) -> bool:
    """Whether it stands for a value: a placeholder, a reference, or words that examples are made of."""
    return bool(_PLACEHOLDER.search(value)) or is_plain(value)


def _classes(value: str) -> tuple[bool, int]:
    lower, upper, digits = (any(test(char) for char in value) for test in (str.islower, str.isupper, str.isdigit))
    return digits, lower + upper + digits + any(not char.isalnum() for char in value)


def _is_name(value: str) -> bool:
    """Whether each part of it is a word, as in identifiers, paths, attribute chains, versions and dates."""
    parts = [part for part in _SEPARATORS.split(_TERMS.sub("x", value)) if part]
    if len(parts) == 1 and sum(char.isdigit() for char in parts[0]) > 1 and not parts[0].isdigit():
        return False
    return all(_is_word(part) for part in parts)


def _is_word(part: str) -> bool:
    if not _WORDY.fullmatch(part):
        return False
    pieces = _CAMEL.findall(part)
    return len(part) < SHORTEST or len(part) >= 3 * len(pieces)


Meaning = TypeVar("Meaning")
Hints: TypeAlias = tuple[tuple[str, tuple[tuple[str, Meaning], ...]], ...]
"""For each hint the words that hold it, each with what it means."""


def hinted(words: Iterable[tuple[str, Meaning]], hints: Iterable[str]) -> Hints[Meaning]:
    """The words, each under the first hint that it holds, or under itself where it holds none of them."""
    grouped: dict[str, list[tuple[str, Meaning]]] = {}
    known = tuple(hints)
    for word, meaning in words:
        hint = next((hint for hint in known if hint in word), word)
        grouped.setdefault(hint, []).append((word, meaning))
    return tuple((hint, tuple(group)) for hint, group in grouped.items())


def meanings_in(hints: Hints[Meaning], text: str) -> Iterator[Meaning]:
    """What the words mean that the text holds; one that several of them mean comes several times."""
    for group in [group for hint, group in hints if hint in text]:  # a list comprehension: no frame for each hint
        for word, meaning in group:
            if word in text:
                yield meaning
