"""The shapes of secrets, as tables, and the search for them in a text. Pure.

Only single characters repeat possessively: Python before 3.11.5 is wrong about groups that do (gh-106052).
"""

import base64
import re
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from mendgraph.nodes.execute_tools.secrets.key_blocks import key_block_spans
from mendgraph.nodes.execute_tools.secrets.keys import is_filler, is_plain, looks_secret


class Scope(StrEnum):
    """Where a shape is searched.

    TOKEN: its words in the long tokens of the text, its expression in the text. TEXT: its words in the lower-case text,
    its expression in the text. FOLDED: both in the lower-case text. COMMAND: as TEXT, if the text has an option.
    """

    TOKEN, TEXT, FOLDED, COMMAND = "token", "text", "folded", "command"


@dataclass(frozen=True, eq=False)
class Shape:
    """A kind of secret: the group `secret` of the expression is removed if `accepts` returns True for it.

    A text with such a secret has at least one of `words`.
    """

    scope: Scope
    words: tuple[str, ...]
    expression: str
    accepts: Callable[[str], bool]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression; to compile all 250 at once takes longer than the rest of a start."""
        return re.compile(self.expression)


def _is_key(value: str) -> bool:
    """Return whether it is not an example, such as `xxxxxxxx`, `your_key_here` and the keys of AWS's documents."""
    is_example = len(set(value[-16:])) <= 3 or value.endswith("EXAMPLE") or "..." in value
    return not is_example and not is_plain(re.sub(r"^\w{1,10}?[-_.]", "", value))


def _is_random_key(value: str) -> bool:
    """For a prefix that names have as well: whether a part of at least 10 characters has letters and digits."""
    if not _is_key(value):
        return False

    long_parts = [part for part in re.split(r"[-_]", value)[1:] if len(part) >= 10]
    return any(re.search(r"\d", part) and re.search(r"[^\W\d_]", part) for part in long_parts)


def _is_login(value: str) -> bool:
    try:
        text = base64.b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), altchars=b"-_").decode()
    except ValueError:
        return False

    return text.isprintable() and ":" in text


def is_url_login(value: str) -> bool:
    """Return whether it is `user:password` without examples, or a long key in the place of the user."""
    user, colon, password = value.partition(":")
    if not colon:
        return len(user) >= 30 and looks_secret(user)

    return len(password) >= 4 and password != user and not is_filler(password)


def _is_mixed(value: str) -> bool:
    """For a shape that attributes have as well: letters of both cases and digits in random order."""
    return _is_key(value) and looks_secret(value[2:]) and bool(re.search(r"[0-9][a-z]|[A-Z][0-9]", value[2:]))


def _is_signature(value: str) -> bool:
    return _is_key(value) and len(value) >= 20 and sum(map(str.isdigit, value)) >= 2


def _is_hash(value: str) -> bool:
    """Return whether the part after the salt is random."""
    return len(set(value[-22:])) > 8 and any(char.isdigit() for char in value[-43:])


def _is_bot(value: str) -> bool:
    """Return whether it begins with the number of a Discord user in base64."""
    first = value.partition(".")[0]
    try:
        return base64.b64decode(first + "=" * (-len(first) % 4), altchars=b"-_").isdigit()
    except ValueError:
        return False


def _is_setting(value: str) -> bool:
    """Return whether a value of a setting is neither an example nor a name."""
    return not is_filler(value) and any(not (char.isalpha() or char in "._-") for char in value)


def _is_password(value: str) -> bool:
    return not value.startswith(("$", "-", "<", "/")) and (_is_setting(value) or looks_secret(value))


def _is_command_login(value: str) -> bool:
    """`user:password`, or a key in the place of the user."""
    user, _, password = value.partition(":")
    if not password:
        return looks_secret(user)

    return len(password) >= 4 and password != user and not (user + password).isdigit() and _is_password(password)


def _is_oracle_login(value: str) -> bool:
    return _is_setting(value.partition("/")[2])


def _is_authorization(value: str) -> bool:
    return looks_secret(value) or _is_login(value)


_CHECKS: Final = {
    "authorization": _is_authorization,
    "bot": _is_bot,
    "hash": _is_hash,
    "key": _is_key,
    "login": _is_login,
    "mixed": _is_mixed,
    "oracle login": _is_oracle_login,
    "secret": looks_secret,
    "setting": _is_setting,
    "signature": _is_signature,
}
"""The functions `accepts` of the shapes, by their names in the table."""

_ESCAPES: Final = (
    *(r"\\[nrtbfv]", r"\\u00[0-9a-fA-F]{2}", r"\\x[0-9a-fA-F]{2}", r"%[0-9a-fA-F]{2}"),
    *(r"\[m", r"[\[;][0-9]m", r"[\[;][0-9]{2}m"),
)
"""Escape sequences of strings and URLs, and colours of terminals: a word may start directly after one."""


def _word_start(matched: str = "", signs: str = "A-Za-z0-9_-") -> str:
    """Return an expression that follows `matched`, and asserts that a word of these signs starts before it."""
    after_escape = "".join(f"|(?<={escape}{matched})" for escape in _ESCAPES)
    return rf"(?:(?<![{signs}]{matched}){after_escape})"


_PARTS: Final = {
    "<token>": "[A-Za-z0-9_-]",
    "<alnum>": "[A-Za-z0-9]",
    "<end>": "(?![A-Za-z0-9])",
    "<value>": r"""[^\s"'`,;|&<>(){}\[\]\\]""",
    "<gap>": r"""[\s\\"'`,=]{1,6}+""",
    "<word>": _word_start(signs="A-Za-z0-9"),
    "<number>": _word_start(signs="0-9"),
    "<azure>": _word_start(signs=r"\w~.-"),
    "<vault>": _word_start(r"s\.", r"\w~.-"),
    "<bot>": _word_start("..", r"\w.-"),
}
"""Abbreviations in the expressions of the tables; `<word>`, `<number>` and the last three are starts of words."""


def _expanded(expression: str) -> str:
    for name, part in _PARTS.items():
        expression = expression.replace(name, part)

    return expression


_PREFIXES: Final = r"""
OpenAI, Anthropic, DeepSeek, OpenRouter | sk- | <token>{16,}+
Hugging Face | hf_ | (?:<alnum>{30,40}+(?![A-Za-z0-9_])|(?=[A-Za-z]*+[0-9])<alnum>{20,}+)
GitHub | ghp_ gho_ ghu_ ghs_ ghr_ | <alnum>{20,}+
GitHub | github_pat_ | [A-Za-z0-9_]{20,}+
GitLab | glpat- gldt- glptt- glrt- glft- glsoat- glagent- gloas- glcbt- glimt- glffct- | [A-Za-z0-9_.-]{16,}+
GitLab | GR1348941 | <token>{16,}+
npm | npm_ | <alnum>{30,}+
PyPI, Google | pypi-AgE AIza 1//0 | <token>{30,}+
RubyGems | rubygems_ | [0-9a-f]{40,}+
Docker, Google, Supabase | dckr_pat_ dckr_oat_ GOCSPX- sb_secret_ | <token>{20,}+
AWS | AKIA ASIA ABIA ACCA | (?=[A-Z]{0,15}[0-9])[A-Z0-9]{16}<end>
AWS Bedrock, 1Password, Fly.io | ABSK ops_eyJ fm1a_ fm1r_ fm2_ | [A-Za-z0-9+/]{100,}+=*
Google, Brevo | AQ. xkeysib- | <token>{40,}+
Google | ya29. | [A-Za-z0-9_.-]{20,}+
Alibaba | LTAI | <alnum>{16,}+
Tencent, Adobe | AKID p8e- | <alnum>{32}<end>
Slack | xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxb- xoxe.xoxp- | (?=[A-Za-z-]*+[0-9])[A-Za-z0-9-]{10,}+
Slack | xapp- | [A-Za-z0-9-]{20,}+
Stripe | sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ | (?=[A-Za-z]*+[0-9])<alnum>{10,}+
Stripe | whsec_ | [A-Za-z0-9+/]{24,}+=*
Twilio | SK | [0-9a-fA-F]{32}<end>
SendGrid | SG. | (?:<token>{16,}+\.<token>{16,}+|[A-Za-z0-9_.=-]{66})
Mailgun | key- | [0-9a-f]{32}<end>
DigitalOcean, Shopify | dop_v1_ doo_v1_ dor_v1_ shpat_ shpca_ shppa_ shpss_ | [0-9a-fA-F]{32,}+
Square | sq0atp- sq0csp- | <token>{22,}+
Vault, Tavily | hvs. hvb. hvr. tvly- | <token>{24,}+
Databricks | dapi | (?=[a-f]{0,31}[0-9])[0-9a-f]{32}<end>
Doppler | dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit. | [A-Za-z0-9._-]{40,}+
Dynatrace | dt0c01. | <alnum>{24}[.]<alnum>{64}
Grafana, Sourcegraph | glsa_ sgp_ | [A-Za-z0-9_]{40,}+
Grafana | glc_ | [A-Za-z0-9+/]{32,}+=*
New Relic | NRAK- | [A-Z0-9]{27}
Postman | PMAK- | [0-9a-f-]{50,}+
Pulumi | pul- | [0-9a-f]{40}<end>
Atlassian | ATATT3 ATCTT3 | [A-Za-z0-9_=-]{50,}+
Linear, xAI | lin_api_ xai- | <alnum>{32,}+
Notion, Groq, Perplexity | ntn_ gsk_ pplx- | <alnum>{40,}+
Figma | figd_ | <token>{32,}+
Netlify, Prefect | nfp_ pnu_ | <alnum>{36,}+
PlanetScale | pscale_tkn_ pscale_pw_ pscale_oauth_ | [A-Za-z0-9_.=-]{32,}+
Supabase | sbp_ | [0-9a-f]{40}
Sentry | sntrys_ sntryu_ | [A-Za-z0-9+/_=-]{40,}+
age | AGE-SECRET-KEY-1 | [A-Z0-9]{50,}+
NVIDIA | nvapi- | <token>{50,}+
Replicate | r8_ | <alnum>{37}
Pinecone | pcsk_ | [A-Za-z0-9_]{50,}+
LangSmith | lsv2_pt_ lsv2_sk_ | [0-9a-f]{32}_[0-9a-f]{10}
OpenSSH without its first line, AWS Bedrock | b3BlbnNzaC1rZXktdjE bedrock-api-key- | [A-Za-z0-9+/]{20,}+=*
a key block in base64 | LS0tLS1CRUdJTiBQUklW LS0tLS1CRUdJTiBSU0Eg | [A-Za-z0-9+/]{40,}+=*
a key block in base64 | LS0tLS1CRUdJTiBFQyBQ LS0tLS1CRUdJTiBPUEVOU1NI | [A-Za-z0-9+/]{40,}+=*
1Password | A3- | [A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}
Airtable | pat | <alnum>{14}\.[0-9a-f]{64}<end>
Harness | pat. sat. | <token>{22}\.<alnum>{24}\.<alnum>{20}<end>
Artifactory | AKCp | <alnum>{69}
Artifactory | cmVmd | <alnum>{59}
Authress | sc_ ext_ scauth_ authress_ | [a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[a-z0-9+/_=-]{30,}+
AWS | A3T | (?=[A-Z]{0,16}[0-9])[A-Z0-9]{17}<end>
ClickHouse | 4b1d | <alnum>{38}<end>
Clojars | CLOJARS_ | <alnum>{60}
Cloudflare | v1.0- | [0-9a-f]{24}-[0-9a-f]{146}
Duffel | duffel_live_ duffel_test_ | [A-Za-z0-9_=-]{43}
EasyPost | EZAK EZTK | <alnum>{54}<end>
Facebook | EAAM EAAC | <alnum>{100,}+
Square | EAAA | <token>{56,60}<end>
Flutterwave | FLWSECK_TEST- FLWSECK- | [0-9a-h]{12,}+
Fly.io | fo1_ | <token>{43}
Frame.io | fio-u- | [A-Za-z0-9_=-]{64}
Grafana | eyJrIjoi | <alnum>{70,}+=*
Heroku | HRKU-AA | <token>{58}
Hugging Face | api_org_ | [A-Za-z]{34}<end>
Infracost | ico- | <alnum>{32}(?![A-Za-z0-9.])
42 | s-s4t2ud- s-s4t2af- | [0-9a-f]{64}
a JSON web token in base64 | ZXlK | [A-Za-z0-9+/_-]{60,}+=*
Octopus Deploy | API- | (?=[A-Z]{0,25}[0-9])[A-Z0-9]{26}<end>
ReadMe | rdme_ | [a-z0-9]{70}
Scalingo | tk-us- | <token>{48}
SettleMint | sm_aat_ sm_pat_ sm_sat_ | <alnum>{16}<end>
Shippo | shippo_live_ shippo_test_ | [0-9a-fA-F]{40}
New Relic | NRJS- | [0-9a-f]{19}<end>
New Relic | NRII- | <token>{32}<end>
JSON web tokens | eyJ | <token>{8,}+\.(?:eyJ<token>{8,}+(?:\.<token>*+)?|<token>{8,}+\.<token>{8,}+(?:\.<token>++)*)
"""
"""Keys that begin with a prefix at the start of a word: owners | prefixes | the rest of the key."""

_COMMANDS: Final = r"""
curl | -u|-U|--user|--proxy-user | [\s\\"'`,=]{0,6}+ | <login>
http https | -a|--auth | <gap> | <login>
mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump 7z 7za | -p | ["'`]?+ | <password>
mongo mongosh mongodump mongorestore mongoexport mongoimport sshpass login | -p | <gap> | <password>
redis-cli | -a|--pass | <gap> | <password>
ldapsearch ldapmodify ldapadd ldapwhoami | -w | <gap> | <password>
smbclient | -U | <gap>[^\s%]{1,64}+% | <password>
sqlcmd bcp unzip zip | -P | <gap> | <password>
openssl | -passin|-passout|-pass | <gap>pass: | <password>
keytool jarsigner | -storepass|-keypass | <gap> | <password>
"""
"""Passwords in commands: programs | options | what separates option and password | password. Source: manuals."""

_SECRETS: Final = {
    "<login>": (r"""[^:\s"'`,;|&<>(){}\[\]\\]{1,64}+:<value>{0,200}+""", _is_command_login),
    "<password>": ("<value>{4,200}+", _is_password),
}
_LOGIN_COMMANDS: Final = "docker podman nerdctl buildah skopeo registry oras az oc cf"
"""Programs whose command `login` takes a password."""

_OTHERS: Final = r"""
token | key | Q~
    (?P<secret><azure>[\w~.]{3}[0-9]Q~[\w~.-]{31,34}(?![\w~.-]))

token | key | JQQJ99
    (?P<secret><word><alnum>{52}JQQJ99<alnum>{20,40})

token | key | :AA
    (?P<secret><number>[0-9]{8,10}:AA<token>{30,}+)

token | key | -us
    (?P<secret>(?=[0-9a-f]{32}-us)<word>[0-9a-f]{32}-us[0-9]{1,2})<end>

token | key | .atlasv1.
    (?P<secret><word><alnum>{14}\.atlasv1\.[\w=-]{40,}+)

token | key | _mmk
    (?P<secret><word><alnum>{6}_<alnum>{29}_mmk)<end>

token | key | sha256~
    (?P<secret><word>sha256~<token>{43})<end>

token | mixed | s.
    (?P<secret>s\.<vault><alnum>{24}(?![\w.(]))

token | key | hooks.slack.com/ /api/webhooks/
    (?:hooks\.slack\.com/[a-z]{8,9}|/api/webhooks/[0-9]{10,20})/(?P<secret>[A-Za-z0-9+/_-]{20,}+)

folded | key | accountkey= sharedaccesskey=
    (?:accountkey|sharedaccesskey)=(?P<secret>[a-z0-9+/]{20,}+=*+)

folded | signature | sig= signature= -credential= security-token= ?key= &key=
    (?<=[?&;])(?:sig|signature|key|x-(?:amz|goog)-(?:signature|credential|security-token))=
    (?P<secret>[a-z0-9%+/_~.@-]{20,}+=*+)

folded | hash | $ pbkdf2_sha
    (?P<secret>\$(?:[1567]|g?y|2[abxy]|apr1|argon2(?:id|i|d)|scrypt|pbkdf2(?:-sha[0-9]{1,3})?|bcrypt-sha256)
    \$[a-z0-9./$=,+-]{22,}+
    |\$[ph]\$[a-z0-9./]{31}(?![a-z0-9./])|pbkdf2_sha(?:1|256|512)\$[0-9]{1,9}\$[a-z0-9./$=+]{22,}+)

folded | hash | {s
    (?P<secret>\{(?:s?sha(?:256|512)?|smd5)\}[a-z0-9./$+]{20,}+=*+)

folded | key | _gitlab_session=
    _gitlab_session=(?P<secret>[0-9a-z]{32})

folded | setting | requirepass masterauth
    (?:requirepass|masterauth)[ \t]{1,4}+(?P<secret>[^\s\"']{4,128}+)

folded | setting | identified
    identified by (?:password )?'(?P<secret>[^\s']{4,128}+)'

folded | setting | chpasswd password-stdin
    echo[ \t]{1,4}+(?:-n[ \t]{1,4}+)?["']?
    (?P<secret>[^\s"'|]{6,200}+)["']?[ \t]{0,4}+\|[^\n|;]{0,80}?(?:chpasswd|-stdin)

folded | oracle login | jdbc:oracle:
    jdbc:oracle:[a-z]{2,6}:(?P<secret>[^\s/@]{1,64}+/[^\s@\"']{4,128}+)@

token | bot | .
    (?P<secret>[MNO][DTjz]<bot><token>{22,26}\.<token>{6}\.<token>{27,45})(?![A-Za-z0-9_.-])

folded | key | .webhook.office.com/
    \.webhook\.office\.com/webhookb2/(?P<secret>[0-9a-z-]{36}@[0-9a-z-]{36}/incomingwebhook/[0-9a-z/_-]{32,160}+)

folded | setting | password pwd
    (?:;[ ]?(?:password|pwd)[ ]?=[ ]?(?P<secret>[^;&"'\s\\(){}\[\]<>\u2e80-\U0010ffff]{4,128}+))

folded | setting | password= pwd=
    (?<![a-z0-9_-])(?:password|pwd)=(?P<secret>[^;&"'\s\\(){}\[\]<>\u2e80-\U0010ffff]{4,128}+)(?=;[a-z])

folded | secret | bearer
    bearer[ \t]{1,4}+(?P<secret>[a-z0-9._~+/=-]{8,4096}+)

folded | login | basic
    basic[ \t]{1,4}+(?P<secret>[a-z0-9+/_=-]{8,4096}+)

folded | authorization | authorization
    authorization\\{0,7}+["']?[ \t]{0,4}+[:=,][ \t]{0,4}+\\{0,7}+["']?(?:[a-z][a-z0-9-]{1,20}[ \t]{1,2}+)?
    (?P<secret>[a-z0-9._~+/=-]{8,4096}+)

folded | login | auth
    auth(?:(?<![a-z]auth)\\{0,7}+["']|(?<=_auth))[ \t]{0,4}+[:=][ \t]{0,4}+\\{0,7}+["']?
    (?P<secret>[a-z0-9+/_=-]{8,4096}+)

folded | secret | cookie
    (?<=[;: ])(?:[a-z_.-]{0,20}(?:sess|sid|auth|jwt|csrf)[a-z_.-]{0,20}=)
    (?P<secret>[^\s;,"'`\\\u2e80-\U0010ffff]{16,4096}+)

folded | setting | login
    login\s{1,4}+[^\s]{1,128}+\s{1,4}+password\s{1,4}+(?P<secret>[^\s"'`\\\u2e80-\U0010ffff]{4,128}+)
"""
"""Other shapes: scope | check | words, then the expression on one or more indented lines."""

URL_LOGIN: Final = Shape(
    Scope.TEXT,
    ("://",),
    r"""://(?P<secret>[^\s/?#"'`<>\\(){}|^\[\]\u2e80-\U0010ffff]{3,512})@""",
    is_url_login,
)


def _prefixed_shapes() -> Iterator[Shape]:
    for row in _PREFIXES.strip().splitlines():
        _, prefixes, rest = row.split(" | ")

        for prefix in prefixes.split():
            escaped = re.escape(prefix)
            expression = f"(?P<secret>{escaped}{_word_start(escaped)}{_expanded(rest)})"
            yield Shape(Scope.TOKEN, (prefix,), expression, _is_random_key if prefix == "sk-" else _is_key)


def _command_shapes() -> Iterator[Shape]:
    arguments = r"""(?:[^\n|;&"']|"[^"\n]{0,200}"|'[^'\n]{0,200}'|\\\r?\n){0,100}?"""
    login_starts = "|".join(f"(?<={command} login)" for command in _LOGIN_COMMANDS.split())

    for row in _COMMANDS.strip().splitlines():
        programs, options, separator, secret_name = row.split(" | ")
        secret, accepts = _SECRETS[secret_name]
        password = _expanded(rf"""(?<=[\s"'`])(?:{options}){separator}(?P<secret>{secret})""")

        for program in programs.split():
            escaped = re.escape(program)
            start = rf"(?<![\w.-]{escaped})"
            if program == "login":
                start = f"(?:{login_starts})"

            is_distinctive = len(program) > 5 or program == "curl"
            word = program if is_distinctive else f"{program} "
            yield Shape(Scope.COMMAND, (word,), rf"""{escaped}{start}(?=[\s"']){arguments}{password}""", accepts)


def _other_shapes() -> Iterator[Shape]:
    for row in _OTHERS.strip().split("\n\n"):
        head, *lines = row.splitlines()
        scope, check, words = head.split(" | ")
        expression = "".join(line.strip() for line in lines)
        yield Shape(Scope(scope), tuple(words.split()), _expanded(expression), _CHECKS[check])


SHAPES: Final = (*_command_shapes(), *_prefixed_shapes(), URL_LOGIN, *_other_shapes())
"""All shapes except blocks of private keys, see `key_blocks`."""

_WORDS: Final = {
    scope: [(word, shape) for shape in SHAPES if shape.scope is scope for word in shape.words] for scope in Scope
}
"""The words of each scope, with their shapes."""


# --- The search

SHORTEST_TOKEN: Final = 15
"""Characters of the shortest key that is recognized by its prefix."""

_TOKEN_SIGNS: Final = (string.ascii_letters + string.digits + "_-.+/=~:").encode()
_TOKEN_BYTES: Final = bytes(byte if byte in _TOKEN_SIGNS else ord(" ") for byte in range(256))
"""A table for `bytes.translate`: a space for each byte that no key has."""
_OPTION: Final = re.compile(r"""-(?<=[ \t"'`]-)[a-zA-Z-]""")


def shape_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of secrets with a known shape. `folded` is the text in lower case."""
    for shape in _candidates(text, folded):
        searched = folded if shape.scope is Scope.FOLDED else text
        for match in shape.pattern.finditer(searched):
            start, end = match.span("secret")
            if shape.accepts(text[start:end]):
                yield start, end

    if "PRIVATE KEY" in text:
        yield from key_block_spans(text)


def url_password(url: str) -> str:
    """Return the password in a URL as it is written there, or ""."""
    login = URL_LOGIN.pattern.search(url)
    if login and is_url_login(login["secret"]):
        return login["secret"].partition(":")[2]

    return ""


def _candidates(text: str, folded: str) -> Iterable[Shape]:
    """Return the shapes of which the text has a word."""
    searched = {Scope.TOKEN: _long_tokens(text), Scope.TEXT: folded, Scope.FOLDED: folded, Scope.COMMAND: ""}
    if _OPTION.search(text):
        searched[Scope.COMMAND] = folded

    shapes: list[Shape] = []
    for scope, words_text in searched.items():
        shapes += [shape for word, shape in _WORDS[scope] if word in words_text]

    return dict.fromkeys(shapes)


def _long_tokens(text: str) -> str:
    """Return the different words that are long enough for a key, which are a small part of an ordinary text."""
    words = text.encode("utf-8", "surrogatepass").translate(_TOKEN_BYTES).split()
    return b" ".join({word for word in words if len(word) >= SHORTEST_TOKEN}).decode("ascii")
