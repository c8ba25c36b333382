"""Where a shared tier is, and that nothing shows a password."""

from __future__ import annotations

import pytest

from cuplate.cache.address import Address, check, parse, shown
from cuplate.errors import SettingError

GOOD = {
    "redis://host": Address(host="host"),
    "redis://host:7000/3": Address(host="host", port=7000, database=3),
    "REDIS://host/?db=4": Address(host="host", database=4),
    "redis://[::1]:7000/": Address(host="::1", port=7000),
    "redis://:p%40ss@host": Address(host="host", password="p@ss"),
    "redis://user:a%2Fb@host/1": Address(host="host", database=1, username="user", password="a/b"),
    "rediss://host?ssl_ca_certs=/a/b.pem&ssl_cert_reqs=required": Address(
        host="host", tls=True, options=(("ssl_ca_certs", "/a/b.pem"), ("ssl_cert_reqs", "required"))
    ),
    "unix:///run/redis.sock": Address(path="/run/redis.sock"),
    "unix://user:pw@/run/redis%20x.sock?db=2": Address(
        path="/run/redis x.sock", database=2, username="user", password="pw"
    ),
}


@pytest.mark.parametrize("text", GOOD)
def test_a_url_is_read(text: str) -> None:
    """Host, port, socket, database, user, password and the options of TLS."""
    check("shared", text)
    assert parse(text) == GOOD[text]


WRONG = [
    "",
    "redis",
    "redis:",
    "redis://",
    "redis:///0",
    "redis://host:port",
    "redis://host:99999",
    "redis://host:0",
    "redis://host/name",
    "redis://host/0?db=1&db=2",
    "redis://host/0?socket_timeout=30",
    "redis://host/0?password=hunter2",
    "redis://host?ssl_ca_certs=/a",
    "rediss://host?ssl_cert_reqs=maybe",
    "redis://:hunter2#@host",
    "redis://:hun/ter2@host",
    "http://:hunter2@host",
    "redis://[host",
    "unix://host/socket",
    "unix://",
    "unix:///",
    "unix:///a%00b",
    "hunter2@host:6379",
    "a module:Class",
    "module:Class()",
    "module:",
    ":Class",
]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_none_is_refused_without_a_password(text: str) -> None:
    """With what is allowed; whatever stands where a password might is not repeated."""
    with pytest.raises(SettingError) as caught:
        check("CUPLATE_SHARED", text)
    assert "CUPLATE_SHARED" in str(caught.value) and "hunter2" not in str(caught.value)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize("value", [b"redis://host", 6379, object(), ["redis://hunter2@host"]])
def test_it_is_text(value: object) -> None:
    """And what is no text is named by its type."""
    with pytest.raises(SettingError, match=type(value).__name__) as caught:
        check("shared", value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("redis://user:hunter2@host:1/0?db=1", "redis://***@host:1/0"),
        ("redis://host", "redis://host"),
        ("unix://:hunter2@/run/s?db=0", "unix://***@/run/s"),
        ("redis://:hun@ter2@host", "redis://***@host"),
        ("module.of:Class", "module.of:Class"),
    ],
)
def test_what_is_shown(text: str, place: str) -> None:
    """The place alone."""
    assert shown(text) == place


def test_an_address_does_not_print_its_password() -> None:
    """Nor its user."""
    assert "hunter2" not in repr(parse("redis://user:hunter2@host")) and "user" not in repr(parse("redis://user@host"))
