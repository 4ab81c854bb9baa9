"""What personal data looks like: one finder a type, each with the checks that keep look-alikes out.

A finder takes a text and yields spans. Shape alone is not enough: card numbers must pass Luhn and have their issuer's
prefix and length, IBANs modulo 97 (ISO 7064) and their country's length, addresses must be addresses and not versions
or section numbers, and phone numbers need separators or a country code, for ten bare digits are as often a time stamp.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterator


Span = tuple[int, int]

_SERVICE_USERS = frozenset({"git", "hg", "svn", "ssh", "anonymous", "anoncvs", "cvs", "ftp", "root", "nobody"})
# What manuals write where a name or a password goes.
_USER_EXAMPLES = frozenset(
    {"user", "username", "login", "name", "other", "me", "someone", "youruser", "your-username"}
)
_PASSWORD_EXAMPLES = frozenset(
    {"", "password", "passwd", "pass", "pwd", "secret", "xxx", "xxxx", "***", "yourpassword"}
)
_USERINFO = re.compile(r"(?<=://)([^\s/@:<>\"']{1,64})(:[^\s/@<>\"']{0,128})?(?=@[A-Za-z0-9\[])")
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._+'/-])([A-Za-z0-9_][A-Za-z0-9._+'-]{0,63})@"
    r"((?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24})(?![A-Za-z0-9_(-]|\.[A-Za-z0-9])"
)
# systemd's templates (`getty@tty1.service`) and files; none is a domain.
_UNIT_ENDINGS = frozenset(
    "service socket timer target mount slice scope conf html htm json yaml yml txt jpg png".split()
)
_IPV4 = re.compile(r"(?<![\w.\-+=~^<>])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\w\-+]|\.\d)")
_VERSION_BEFORE = re.compile(
    r"(?:\b(?:v|ver|version|versions|release|released|rev|revision|build|firmware|driver|sdk|section|sections|sec|chapter|clause|table"
    r"|figure|fig|appendix|paragraph|para|item|rule|lib[\w+-]*|python|release notes)|\u00a7)[\s:.#=]*\Z",
    re.I,
)
_ADDRESS_BEFORE = re.compile(
    r"(?:\b(?:ip|ipv4|addr|address|addresses|host|hosts|hostname|server|servers|nameserver|resolver|dns|gateway|router|client|peer|ping"
    r"|subnet|network|proxy|from|to|at|on|via)\b[\s\w:=(\"'\[-]{0,12}|://|@)\Z",
    re.I,
)
# "from" and "to" introduce versions as well as addresses.
_VERSION_TALK = re.compile(
    r"\b(?:versions?|releas\w*|upgrad\w*|updat\w*|downgrad\w*|fix\w*|prior|since|before|after|than|compatible|older"
    r"|newer|introduced|bump\w*|chang\w*)\b[^.\n]{0,40}\Z",
    re.I,
)
_IPV4_EXAMPLES = re.compile(r"1\.2\.3\.\d+|4\.3\.2\.1|123\.123\.123\.123|123\.45\.67\.89|111\.22\.33\.\d+")
_ADDRESS_AFTER = re.compile(r"(?::\d{2,5}|/\d{1,2})(?![\w.])")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:]|\.\d)")
_MAC = re.compile(
    r"(?<![\w:.-])[0-9A-Fa-f]{2}(?P<mark>[:-])(?:[0-9A-Fa-f]{2}(?P=mark)){4}[0-9A-Fa-f]{2}(?![\w:-]|\.\d)"
)
# What manuals write where an address could be: broadcast, zero, doubled digits in a row, and RFC 7042's range.
_MAC_EXAMPLES = re.compile(
    r"(?:ff){6}|(?:00){6}|aabbccddee..|001122334455|112233445566|0123456789ab|000102030405|00005e0053.."
)
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_EXTENSION = r"(?:[ ,]{0,2}(?:x|ext\.?|extension)[ .]?\d{1,6}(?!\w))?"
_EXTENSION_END = re.compile(r"[ ,]*(?:x|ext).*\Z", re.S)
_PLACE = r"(?:(?:W|H|M|C|Fax|Tel|Home|Work|Cell)\b)?"  # "703-555-0118W", as signatures have it
_PHONES = (
    re.compile(
        r"(?<![\w+./=-])\+ ?[1-9](?:[ .\-\u00a0]?\(?\d{1,4}\)?){2,8}(?:[ .\-\u00a0]?\d{4,8})?(?![\w]|[-.]\d)"
        + _EXTENSION
    ),
    re.compile(
        r"(?<![\w.+/-])(?:1[ .-])?(?:\([2-9]\d{2}\)\s{0,2}|[2-9]\d{2}[-. ])[2-9]\d{2}[-.]\d{4}(?="
        + _PLACE
        + r"(?![\w-]|\.\d)"
        r"|[ ,]{0,2}(?:x|ext))" + _EXTENSION
    ),
    re.compile(r"(?<![\w.+/-])0[1-9]([ .-])\d{2}\1\d{2}\1\d{2}\1\d{2}(?![\w-]|[ .]\d)"),
)
# After a word that says so, any number of seven digits or more is one.
_LABELLED_PHONE = re.compile(
    r"\b(?:tel|telephone|phone|fax|facsimile|mobile|cell|cellular|voice|ph|gsm)(?:\.|\b)\s{0,3}(?:no\.?|number|nr\.?|#)?"
    r"\s{0,3}[:=.]?[ \t]{0,12}((?:\+ ?)?\(?\d(?:[ ().\-/]{0,3}\d){6,14})(?![\w]|[-./]\d)",
    re.I,
)
_HEX_BEFORE = re.compile(r"(?:^|\s)[0-9A-Fa-f]{2}\s{1,8}\Z")
_HEX_AFTER = re.compile(r"\s{1,8}[0-9A-Fa-f]{2}(?:\s|\Z)")
_LIMITS = frozenset({"2147483647", "2147483648", "4294967295", "4294967296"})  # of whole numbers in 32 bits
_DATE = re.compile(r"(?:19|20)\d{2}[-./]\d{2}[-./]\d{2}|\d{1,2}[-./]\d{1,2}[-./](?:19|20)\d{2}")
_SSN = re.compile(r"(?<![\w.-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-]|\.\d)")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)")
_ISSUERS = (
    re.compile(r"4(?:\d{12}|\d{15}|\d{18})"),
    re.compile(r"(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}"),
    re.compile(r"3[47]\d{13}"),
    re.compile(r"3(?:0[0-5]|[68]\d)\d{11}"),
    re.compile(r"(?:6011|65\d{2}|64[4-9]\d)\d{12}"),
    re.compile(r"35(?:2[89]|[3-8]\d)\d{12}"),
)
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?= ?[A-Z0-9])")
_IBAN_LENGTHS = dict(
    pair.split(":")
    for pair in (
        "AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24 DE:22 "
        "DK:18 DO:28 EE:20 EG:29 ES:24 FI:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27 GT:28 HR:21 HU:28 "
        "IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LI:21 LT:20 LU:20 LV:21 MC:27 MD:24 ME:22 "
        "MK:19 MR:27 MT:31 MU:30 NL:18 NO:15 PK:24 PL:28 PS:29 PT:25 QA:29 RO:24 RS:22 SA:24 SE:24 SI:19 "
        "SK:24 SM:27 TN:24 TR:26 UA:29 VA:22 XK:20 "
    ).split()
)
_KEY_BLOCK = re.compile(
    r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----"
    # To its end, or as far as lines look like a key's where the end was cut off.
    r"(?:[\s\S]{1,16384}?-----END (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:\s*(?:[A-Za-z0-9+/=]{16,}|[A-Za-z-]+: [^\n]*))+)"
)
_ASSIGNED = re.compile(
    r"(?i:(?:api[_-]?key|secret|token|passwd|password|access[_-]?key|client[_-]?secret|auth|credential)s?"
    r"[\w-]{0,16}[\"']?\s{0,3}(?::|=|=>|:=)\s{0,3}[\"']?|\bBearer )([A-Za-z0-9+/_.~=-]{16,512})(?![A-Za-z0-9+/_~-])"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SECRET = re.compile(
    r"(?<![\w-])(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}|hf_[A-Za-z0-9]{30,64}"
    r"|sk-(?:proj-|ant-(?:[a-z0-9]+-)?)?[A-Za-z0-9_]{20,256}|xox[abeoprs]-[A-Za-z0-9-]{10,256}|AIza[0-9A-Za-z_-]{35}|glpat-[A-Za-z0-9_-]{20,64}"
    r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,256}|[rs]k_live_[A-Za-z0-9]{16,128}|SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}|dop_v1_[0-9a-f]{64}|AC[0-9a-f]{32}"
    r"|eyJ[A-Za-z0-9_-]{10,2048}\.eyJ[A-Za-z0-9_-]{10,4096}\.[A-Za-z0-9_-]{10,1024})"
    r"(?![\w-])"
)


def luhn_valid(digits: str) -> bool:
    """
    Luhn check (ISO/IEC 7812-1).

    Args:
        digits (`str`): Digits alone.

    Returns:
        `bool`: whether the weighted sum of digits is a multiple of ten.
    """
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban_valid(compact: str) -> bool:
    """
    IBAN check: the country's length, and 1 modulo 97 (ISO 7064).

    Args:
        compact (`str`): The IBAN without spaces.

    Returns:
        `bool`: whether both hold.
    """
    if str(len(compact)) != _IBAN_LENGTHS.get(compact[:2]):
        return False
    return int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1


def find_url_userinfo(text: str) -> Iterator[Span]:
    """
    Logins in URLs (`https://user:password@host`); service names without a password stay.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _USERINFO.finditer(text) if "://" in text else ():
        user, password = match[1].lower(), (match[2] or ":")[1:].lower()
        if password == "" and not match[2] and user in _SERVICE_USERS:
            continue
        if user in _USER_EXAMPLES and password in _PASSWORD_EXAMPLES:
            continue
        yield match.span()


def find_emails(text: str, scp_addresses: bool = False) -> Iterator[Span]:
    """
    E-mail addresses.

    Args:
        text (`str`): The text.
        scp_addresses (`bool`, *optional*, defaults to `False`): Whether `git@host:path` counts as one.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _EMAIL.finditer(text) if "@" in text else ():
        service = match[1].lower() in _SERVICE_USERS
        if service and not scp_addresses and text[match.end() : match.end() + 1] == ":":
            continue
        if match[2].rpartition(".")[2] in _UNIT_ENDINGS:
            continue
        yield match.span()


def find_ipv4(text: str, public_only: bool = True) -> Iterator[Span]:
    """
    IPv4 addresses. Numbers below 100 throughout look like versions and need a word ("host", "from") or a port beside
    them.

    Args:
        text (`str`): The text.
        public_only (`bool`, *optional*, defaults to `True`): Leave private, loopback and documentation addresses.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _IPV4.finditer(text):
        octets = [int(group) for group in match.groups()]
        if max(octets) > 255 or any(len(group) > 1 and group[0] == "0" for group in match.groups()):
            continue
        before = text[max(0, match.start() - 80) : match.start()]
        if _VERSION_BEFORE.search(before):
            continue
        if max(octets) < 100 and not _ADDRESS_AFTER.match(text, match.end()):
            if not _ADDRESS_BEFORE.search(before) or _VERSION_TALK.search(before):
                continue
        address = ipaddress.ip_address(match[0])
        if public_only and (not address.is_global or address.is_multicast or _IPV4_EXAMPLES.fullmatch(match[0])):
            continue
        yield match.span()


def find_ipv6(text: str, public_only: bool = True) -> Iterator[Span]:
    """
    IPv6 addresses with three groups or more; times, MAC addresses and `a::b` of programs are none.

    Args:
        text (`str`): The text.
        public_only (`bool`, *optional*, defaults to `True`): Only global unicast (2000::/3) that is not reserved.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _IPV6.finditer(text) if ":" in text else ():
        if sum(map(bool, match[0].split(":"))) < 3:
            continue
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            continue
        if public_only and not (address.is_global and address in _GLOBAL_UNICAST):
            continue
        yield match.span()


def find_macs(text: str) -> Iterator[Span]:
    """
    Hardware addresses of six pairs. Examples of manuals, groups (multicast) and six decimal pairs with dashes stay.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _MAC.finditer(text):
        digits = match[0].replace(match["mark"], "").lower()
        if int(digits[1], 16) & 1 or _MAC_EXAMPLES.fullmatch(digits) or (match["mark"] == "-" and digits.isdigit()):
            continue
        yield match.span()


def find_phones(text: str) -> Iterator[Span]:
    """
    Phone numbers: with a country code, North American groups, or five pairs that begin with 0.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for pattern in _PHONES:
        for match in pattern.finditer(text):
            number = _EXTENSION_END.sub("", match[0]).lstrip("+ ")
            digits = sum(map(str.isdigit, number))
            if not (8 if not number.isdigit() else 10) <= digits <= 15 or number in _LIMITS:
                continue
            if pattern is _PHONES[2] and (
                _HEX_BEFORE.search(text, max(0, match.start() - 12), match.start())
                or _HEX_AFTER.match(text, match.end())
            ):
                continue  # a row of bytes
            yield match.span()
    for match in _LABELLED_PHONE.finditer(text):
        if 7 <= sum(map(str.isdigit, match[1])) <= 15 and not _DATE.match(match[1]):
            yield match.span(1)


def find_ssns(text: str) -> Iterator[Span]:
    """
    US social security numbers in their written form, without the ranges never given out.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    return (match.span() for match in _SSN.finditer(text))


def find_cards(text: str) -> Iterator[Span]:
    """
    Payment card numbers: prefix and length of an issuer, and Luhn.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _CARD.finditer(text):
        groups = match[0].replace("-", " ").split(" ")
        if len(groups) > 1 and min(map(len, groups[:-1])) < 4:
            continue  # a row of bytes or small numbers
        digits = "".join(groups)
        if any(issuer.fullmatch(digits) for issuer in _ISSUERS) and luhn_valid(digits):
            yield match.span()


def find_ibans(text: str) -> Iterator[Span]:
    """
    International bank account numbers, compact or in groups of four.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    for match in _IBAN.finditer(text):
        wanted = int(_IBAN_LENGTHS.get(match[0][:2], 0))
        position, compact = match.start(), ""
        while len(compact) < wanted and position < len(text):
            character = text[position]
            if character == " " and text[position - 1] != " ":
                position += 1
                continue
            if not (character.isascii() and (character.isdigit() or character.isupper())):
                break
            compact += character
            position += 1
        if wanted and not text[position : position + 1].isalnum() and iban_valid(compact):
            yield match.start(), position


def find_secrets(text: str) -> Iterator[Span]:
    """
    Keys and tokens: by the prefixes their issuers give them, private key blocks, and what is assigned to a name like
    `api_key` or follows `Bearer` if its characters are random enough.

    Args:
        text (`str`): The text.

    Returns:
        `Iterator[tuple[int, int]]`: spans.
    """
    if "PRIVATE KEY" in text:
        for match in _KEY_BLOCK.finditer(text):
            yield match.span()
    for match in _SECRET.finditer(text):
        if any(map(str.isdigit, match[0])):
            yield match.span()
    for match in _ASSIGNED.finditer(text):
        value = match[1].rstrip(".")
        if looks_random(value) and not _UUID.fullmatch(value):
            yield match.start(1), match.start(1) + len(value)


def looks_random(value: str) -> bool:
    """
    Whether a string could be a key: letters and digits mixed, and as many bits a character as drawn ones have. Names,
    paths, words and numbers have fewer; so have most strings under 16 characters.

    Args:
        value (`str`): The string.

    Returns:
        `bool`: whether its entropy is that of random characters of its length.
    """
    letters = sum(map(str.isalpha, value))
    digits = sum(map(str.isdigit, value))
    if digits < 3 or letters < 3 or value.count("/") > 2 + len(value) // 16:
        return False
    counts = Counter(value)
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    # Sixteen random hexadecimal digits have 3.2 bits a digit on average, longer ones nearly 4.
    hexadecimal = all(character in "0123456789abcdefABCDEF" for character in value)
    if not hexadecimal and digits < len(value) // 6 and re.search(r"[a-z]{8}|[A-Z]{12}", value):
        return False  # words with a number behind them
    return entropy >= (2.9 if hexadecimal else 3.4)
