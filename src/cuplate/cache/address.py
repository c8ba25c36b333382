"""Where a shared tier is: a URL of a Redis-protocol server, or ``module:Class``; and what may be shown of it.

Read by our own lines and not by the client's: an option in a URL would override the bounds that are set here, and no
message of ours may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cuplate.errors import SettingError

__all__ = ["Address", "check", "is_url", "parse", "shown"]

_SCHEMES = ("redis", "rediss", "unix")
_ENGINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PORT = 6379
_ALLOWED = "redis://HOST:PORT/DB, rediss:// (TLS), unix:///SOCKET, module:Class, or off"
_EXAMPLE = "redis://localhost:6379/0"
_TLS = {
    "ssl_ca_certs": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_cert_reqs": ("required", "none"),
    "ssl_check_hostname": ("true", "false"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One server, as its URL says it.

    Attributes
    ----------
    host : str
        Empty for a socket in the file system.
    port, database : int
    path : str
        Of the socket; empty for a host.
    tls : bool
    options : tuple of (str, str)
        Those of TLS, as ``redis.connection.SSLConnection`` names them.
    username, password : str
        Empty for none; not in ``repr()``.
    """

    host: str = ""
    port: int = _PORT
    path: str = ""
    database: int = 0
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


def is_url(text: str) -> bool:
    """Whether it names a server; else it names a class."""
    return "://" in text


def shown(text: str) -> str:
    """It without user, password and options, for people.

    Parameters
    ----------
    text : str
        As `check` accepts it.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    _, credentials, place = rest.rpartition("@")
    return f"{scheme}://{'***@' if credentials else ''}{place.partition('?')[0]}"


def check(name: str, value: object) -> None:
    """Refuse what is no place of a shared tier.

    Parameters
    ----------
    name : str
        For the message.
    value : object

    Raises
    ------
    SettingError
        It shows nothing that may be a password.
    """
    if not isinstance(value, str):
        raise _wrong(name, "is not text", type(value).__name__)
    if is_url(value):
        parse(value, name)
    elif not _ENGINE.fullmatch(value):
        raise _wrong(name, "is neither a URL nor module:Class", "***" if "@" in value else repr(value))


def parse(text: str, name: str = "shared") -> Address:
    """The parts of a URL.

    Parameters
    ----------
    text : str
    name : str
        For the message.

    Raises
    ------
    SettingError
        It is none of a server; the message shows no more than the scheme.
    """
    from urllib.parse import parse_qsl, unquote, urlsplit

    scheme = text.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        raise _wrong(name, "has a scheme that is none of a server", "another scheme")
    given = f"{scheme}://..."
    try:
        url = urlsplit(text)
        options = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
        port = url.port
    except ValueError:
        raise _wrong(name, "is no URL", given) from None
    known = {"db"} | (set(_TLS) if scheme == "rediss" else set())
    if url.fragment or len(dict(options)) != len(options) or not known.issuperset(dict(options)):
        allowed = f"{', '.join(sorted(known))}, once each; the characters @ / ? # of a password in per cent code"
        raise SettingError(f"{name} has an option in its URL that is none of ours.", given=given, allowed=allowed)
    told = dict(options)
    if any(value not in (_TLS.get(key) or (value,)) for key, value in told.items()):
        raise _wrong(name, "has an option of TLS with a value that it does not take", given)
    database = told.pop("db", url.path.strip("/") if scheme != "unix" else "") or "0"
    if not re.fullmatch(r"\d{1,5}", database, re.ASCII):
        raise _wrong(name, "has a database that is no number", given)
    path = unquote(url.path) if scheme == "unix" else ""
    host = url.hostname or ""
    if (bool(host) == (scheme == "unix")) or (scheme == "unix" and len(path) < 2) or "\0" in path or port == 0:
        raise _wrong(name, "says no place", given)
    return Address(
        host=host,
        port=port or _PORT,
        path=path,
        database=int(database),
        tls=scheme == "rediss",
        options=tuple(told.items()),
        username=unquote(url.username or ""),
        password=unquote(url.password or ""),
    )


def _wrong(name: str, what: str, given: str) -> SettingError:
    return SettingError(
        f"{name} of a cache policy {what}.", given=given, allowed=_ALLOWED, try_=f'CachePolicy(shared="{_EXAMPLE}")'
    )
