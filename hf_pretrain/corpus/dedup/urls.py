"""One page, many addresses: the canonical form of a URL (RFC 3986, section 6.2) without the marks of trackers.

Scheme (http and https are one), `www.`, default ports, fragments, session and campaign parameters, the order of the
parameters, a final slash and index pages do not make another page. Path and values keep their case.
"""

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit


_TRACKING = re.compile(
    r"(utm_.*|fbclid|gclid|dclid|msclkid|yclid|mc_[ce]id|igshid|phpsessid|jsessionid|sessionid|sid|_ga|ref_src)", re.I
)
_SESSION_PATH = re.compile(r";(jsessionid|phpsessid)=[^/?#]*", re.I)
_INDEX = re.compile(r"/(index|default)\.(html?|php|aspx?|jsp)$", re.I)


def canonical_url(url: str) -> str:
    """The canonical form of an address.

    Args:
        url (`str`): An address, with or without its scheme.

    Returns:
        `str`: `host/path?query`; an empty string for what is no web address.
    """
    url = url.strip()
    if "://" not in url:
        if "@" in url.split("/")[0]:
            return ""
        url = "http://" + url
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        return ""
    if not host or parts.scheme.lower() not in ("http", "https"):
        return ""
    host = host.removeprefix("www.")
    if port not in (None, 80, 443):
        host = f"{host}:{port}"
    path = quote(
        unquote(_SESSION_PATH.sub("", parts.path), errors="replace"), safe="/:@!$&'()*+,;=~-._", errors="replace"
    )
    path = _INDEX.sub("/", re.sub(r"/{2,}", "/", path)).rstrip("/")
    pairs = [pair for pair in parse_qsl(parts.query, True, errors="replace") if not _TRACKING.fullmatch(pair[0])]
    query = urlencode(sorted(pairs), errors="replace")
    return f"{host}{path}?{query}" if query else host + path
