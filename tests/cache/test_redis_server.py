"""The client for Redis-protocol servers: what it sends, and how it bears one that lies, drips, hangs or is gone."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cuplate.cache import address, remote
from cuplate.cache.remote import LARGEST_BYTES, BadEntry, Refused
from tests.servers import BlackHole, Liar, Served, free_port

pytest.importorskip("redis")

from cuplate.cache import redis_server
from cuplate.cache.redis_server import RedisServer

GENEROUS_S = 20 * remote.WAIT_S  # what a wait of 0.2 s may take on a machine with other work to do


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Where a test is not about the bound, a busy machine is to have time; ``hasty()`` is the bound as it is."""
    bounds = redis_server.WAIT_S, redis_server._PUT_WAIT_S

    def set_to(wait_s: float, put_s: float) -> None:
        monkeypatch.setattr(redis_server, "WAIT_S", wait_s)
        monkeypatch.setattr(redis_server, "_PUT_WAIT_S", put_s)

    set_to(20.0, 20.0)
    return lambda: set_to(*bounds)


def put(server: RedisServer, key: bytes, value: bytes, *, lives_s: float = float("inf"), replace: bool = False) -> bool:
    """Store a value."""
    return server.put(key, value, time_to_live_s=lives_s, replace=replace)


@pytest.fixture
def client(served: Served) -> Iterator[RedisServer]:
    """A client of a real server."""
    made = RedisServer(address.parse(served.url))
    yield made
    made.close()


# ---- a server that is well -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"x", bytes(range(256)) * 1000, b"\r\n$3\r\n"], ids=["1 byte", "250 KB", "protocol"])
def test_bytes_come_back_as_they_were(client: RedisServer, value: bytes) -> None:
    """Whatever they are; what is not there is None."""
    assert client.get(b"k") is None
    assert put(client, b"k", value)
    assert client.get(b"k") == value and client.get(b"other") is None


def test_who_comes_first_stays(client: RedisServer) -> None:
    """Unless told otherwise."""
    assert put(client, b"k", b"first") and not put(client, b"k", b"second")
    assert client.get(b"k") == b"first"
    assert put(client, b"k", b"third", replace=True) and client.get(b"k") == b"third"


@pytest.mark.parametrize(
    ("lives_s", "milliseconds"),
    [(1000.0, 1_000_000), (1e-9, 1), (float("inf"), -1), (float(2**63), -1), (1e10, -1)],
)
def test_a_time_to_live_is_the_servers(client: RedisServer, served: Served, lives_s: float, milliseconds: int) -> None:
    """In milliseconds, at least one; what is beyond years is none."""
    put(client, b"k", b"v", lives_s=lives_s)
    left = served.ask("PTTL", "k")
    assert left == -1 if milliseconds == -1 else left <= milliseconds
    assert milliseconds == -1 or left != -1


def test_one_connection_serves_many_calls(client: RedisServer, served: Served) -> None:
    """And nothing is sent besides the two commands: no name of the client, no ping, no selection of database 0."""
    before = served.connections()
    for n in range(20):
        put(client, b"%d" % n, b"v")
        client.get(b"%d" % n)
    assert served.connections() - before == 2  # one of them is the question
    assert (served.calls("getrange"), served.calls("set")) == (20, 20)
    assert type(client._idle[0]._parser).__name__ == "_RESP2Parser"  # also where hiredis is installed
    assert [served.calls(name) for name in ("ping", "select", "client|setinfo", "hello", "get")] == [0] * 5


def test_a_socket_of_the_file_system_and_a_database(served: Served) -> None:
    """`unix://`, and `db=`."""
    client = RedisServer(address.parse(served.unix_url.replace("db=0", "db=3")))
    put(client, b"k", b"v")
    assert client.get(b"k") == b"v"
    assert served.ask("DBSIZE") == 0
    client.close()
    client = RedisServer(address.parse(f"{served.url[:-1]}3"))
    assert client.get(b"k") == b"v"
    client.close()


def test_a_user_and_a_password(serve: Callable[..., Served]) -> None:
    """A password alone, and with a user."""
    served = serve("--requirepass", "hunter2")
    served.password = "hunter2"
    served.ask("ACL", "SETUSER", "me", "on", ">other", "~*", "+@all")
    for login in (":hunter2", "me:other"):
        client = RedisServer(address.parse(served.url.replace("//", f"//{login}@")))
        assert client.get(b"k") is None
        client.close()


@pytest.mark.parametrize("login", ["", ":wrong@", "me:wrong@"])
def test_a_wrong_password_is_a_fault(serve: Callable[..., Served], login: str) -> None:
    """Nothing hangs, and no connection is kept."""
    served = serve("--requirepass", "hunter2")
    client = RedisServer(address.parse(served.url.replace("//", f"//{login}")))
    with pytest.raises(Exception, match=r"(?i)auth|invalid") as caught:
        client.get(b"k")
    assert not isinstance(caught.value, BadEntry)
    assert client._idle == []


def test_a_connection_that_the_server_has_closed_is_not_used(client: RedisServer, served: Served) -> None:
    """A server that was restarted, or one that closes what is idle, costs a connection and no fault."""
    put(client, b"k", b"v")
    served.stop()
    served.start()
    assert client.get(b"k") is None and put(client, b"k", b"v")
    served.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert client.get(b"k") == b"v"


def forgotten(client: RedisServer, seconds: float) -> list[Any]:
    """Idle connections so old that each answers nothing, as behind a firewall which has forgotten them."""
    until = time.monotonic() + 60
    opened = [client._open(until) for _ in range(3)]
    for connection in opened:
        client._ask(connection, until, 100, "PING")
        connection.used -= seconds

        def never(*_: Any) -> None:
            raise TimeoutError

        connection._sock.recv = connection._sock.recv_into = never
        connection.can_read = lambda timeout: False
    return opened


def test_connections_that_a_firewall_has_forgotten_cost_one_failure(client: RedisServer) -> None:
    """Not one, and a longer rest, for each of them."""
    forgotten(client, 0)
    with pytest.raises(Exception, match=r"(?i)time"):
        client.get(b"k")
    assert client.get(b"k") is None


def test_a_connection_that_was_idle_for_long_is_not_used(client: RedisServer) -> None:
    """A new one takes less than to find out whether it is still there."""
    opened = forgotten(client, 300)
    assert client.get(b"k") is None
    assert all(connection._sock is None for connection in opened)


def test_idle_connections_are_few(client: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 threads may ask at once; what they leave is bounded."""
    monkeypatch.setattr(redis_server, "_IDLE", 2)
    until = time.monotonic() + 60
    opened = [client._open(until) for _ in range(4)]
    for connection in opened:
        client._ask(connection, until, 100, "PING")
    assert len(client._idle) == 2 and sum(connection._sock is not None for connection in opened) == 2


# ---- entries that are none of ours -----------------------------------------------------------------------------------


def test_another_type_is_a_bad_entry_and_can_be_replaced(client: RedisServer, served: Served) -> None:
    """A list under our key."""
    served.ask("RPUSH", "k", "x")
    with pytest.raises(BadEntry):
        client.get(b"k")
    assert put(client, b"k", b"v", replace=True) and client.get(b"k") == b"v"


def test_a_value_that_is_too_large_is_not_read(client: RedisServer, served: Served) -> None:
    """However large it is, the server sends no more than one byte above the limit; the largest comes whole."""
    served.ask("SETRANGE", "large", 4 * LARGEST_BYTES, "x")
    with pytest.raises(BadEntry, match="too large"):
        client.get(b"large")
    sent = int(served.ask("INFO", "stats")["total_net_output_bytes"])
    assert sent < 2 * LARGEST_BYTES


# ---- servers that are not well ---------------------------------------------------------------------------------------


def test_a_full_server_refuses(client: RedisServer, served: Served) -> None:
    """Look-ups go on."""
    put(client, b"k", b"v")
    served.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Refused, match="maxmemory"):
        put(client, b"other", b"v")
    assert client.get(b"k") == b"v"


def test_a_frozen_server_costs_one_wait(
    client: RedisServer, served: Served, hasty: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection that is there, and on a new one."""
    put(client, b"k", b"v")
    served.freeze()
    hasty()
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(Exception, match=r"(?i)time|no answer"):
            client.get(b"k")
        assert time.monotonic() - start < GENEROUS_S
    served.thaw()
    monkeypatch.setattr(redis_server, "WAIT_S", 20.0)
    assert client.get(b"k") == b"v"


def test_a_refused_connection(served: Served) -> None:
    """It is said at once, and tried once."""
    client = RedisServer(address.parse(served.url))
    served.stop()
    with pytest.raises(Exception, match=r"refused|111"):
        client.get(b"k")


def test_a_black_hole_costs_one_wait(hasty: Callable[[], None]) -> None:
    """A connection that is neither made nor refused: a firewall, a node that is gone."""
    hasty()
    hole = BlackHole()
    client = RedisServer(address.parse(hole.url))
    start = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)time|no answer"):
        client.get(b"k")
    assert time.monotonic() - start < GENEROUS_S
    hole.close()


def test_a_name_that_nobody_resolves_costs_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver has no bound, so it is left behind."""
    over = []

    def resolve(*arguments: Any, flags: int = 0, **more: Any) -> Any:
        if flags:
            raise socket.gaierror("a name")
        time.sleep(0.3)
        over.append(1)
        raise socket.gaierror("nobody")

    monkeypatch.setattr(redis_server, "WAIT_S", 0.02)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Exception, match=r"(?i)timeout"):
        RedisServer(address.parse("redis://nobody.invalid")).get(b"k")
    assert over == []
    time.sleep(0.4)


@pytest.fixture
def liar() -> Iterator[Callable[[Callable[[socket.socket, bytes], object]], Liar]]:
    """``liar(answer)`` is a server that answers so."""
    made: list[Liar] = []

    def start(answer: Callable[[socket.socket, bytes], object]) -> Liar:
        made.append(Liar(answer))
        return made[-1]

    yield start
    for one in made:
        one.close()


GARBAGE = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "zeros": bytes(5000),
    "an integer": b":3\r\n",
    "a list": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "a list without end": b"*1000000000\r\n" + b"*1000000000\r\n" * 400,
    "a length of letters": b"$abc\r\nx\r\n",
    "a length below zero": b"$-7\r\n",
    "a length of many digits": b"$" + b"9" * 4000 + b"\r\n",
    "an error": b"-ERR no\r\n",
    "an error without a word": b"-\r\n",
    "a push": b">2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_a_fault_and_its_connection_is_closed(liar: Callable[..., Liar], garbage: str) -> None:
    """What is left of it is nobody's answer."""

    def answer(connection: socket.socket, data: bytes) -> None:
        connection.sendall(GARBAGE[garbage])
        connection.shutdown(socket.SHUT_WR)

    server = liar(answer)
    client = RedisServer(address.parse(server.url))
    with pytest.raises(Exception) as caught:
        client.get(b"k")
    assert not isinstance(caught.value, BadEntry)
    assert client._idle == [] and server.connections == 1


def test_nothing_in_other_words_is_nothing(liar: Callable[..., Liar]) -> None:
    """Redis says an empty value for none; a server of another make may say none."""
    client = RedisServer(address.parse(liar(lambda connection, data: connection.sendall(b"$-1\r\n")).url))
    assert client.get(b"k") is None and len(client._idle) == 1
    client.close()


def test_a_server_that_drips_does_not_get_round_the_bound(liar: Callable[..., Liar], hasty: Callable[[], None]) -> None:
    """A byte now and then, each within the time of one read."""
    hasty()

    def answer(connection: socket.socket, data: bytes) -> None:
        connection.sendall(b"$100000\r\n")
        while not server.over.wait(0.002):
            connection.sendall(b"x")

    server = liar(answer)
    client = RedisServer(address.parse(server.url))
    start = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)time"):
        client.get(b"k")
    assert time.monotonic() - start < GENEROUS_S and client._idle == []


def test_a_gigabyte_that_is_announced_is_not_read(liar: Callable[..., Liar]) -> None:
    """As fast as it may come: above the largest entry the connection is closed."""
    sent: list[int] = []

    def answer(connection: socket.socket, data: bytes) -> None:
        connection.sendall(b"$1073741824\r\n")
        block = bytes(1 << 16)
        while True:
            connection.sendall(block)
            sent.append(len(block))

    client = RedisServer(address.parse(liar(answer).url))
    with pytest.raises(Exception, match=r"(?i)more than was asked|time"):
        client.get(b"k")
    assert sum(sent) < 3 * LARGEST_BYTES


def test_more_than_the_answer_is_not_the_next_ones_answer(liar: Callable[..., Liar]) -> None:
    """Two answers to one question: the second one closes the connection, and serves nobody."""
    server = liar(lambda connection, data: connection.sendall(b"$1\r\na\r\n$1\r\nb\r\n"))
    client = RedisServer(address.parse(server.url))
    assert [client.get(b"k") for _ in range(3)] == [b"a"] * 3
    client.close()


def test_a_put_that_is_not_answered_ends(liar: Callable[..., Liar], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, with a bound of its own; a server that does not read is one that does not answer."""
    monkeypatch.setattr(redis_server, "_PUT_WAIT_S", 0.05)

    def answer(connection: socket.socket, data: bytes) -> None:
        server.over.wait()

    server = liar(answer)
    client = RedisServer(address.parse(server.url))
    with pytest.raises(Exception, match=r"(?i)time|aborted"):
        put(client, b"k", bytes(30 << 20))
    with pytest.raises(Exception, match=r"(?i)time"):
        put(client, b"k", b"v")


def test_an_interrupt_closes_the_connection(client: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is on the way, and must not be the next one's."""
    put(client, b"k", b"v")
    connection = client._idle[0]

    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.get(b"k")
    assert client._idle == [] and connection._sock is None


def test_a_connection_that_is_reset(liar: Callable[..., Liar]) -> None:
    """In the middle of an answer."""

    def answer(connection: socket.socket, data: bytes) -> None:
        connection.sendall(b"$10\r\nabc")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    client = RedisServer(address.parse(liar(answer).url))
    with pytest.raises(Exception, match=r"(?i)reset|closed"):
        client.get(b"k")


# ---- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """For localhost, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not on PATH")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    options = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = ("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(made))
    subprocess.run([openssl, "req", "-x509", *options.split(), *more], check=True, capture_output=True)
    return made, key


def test_tls(serve: Callable[..., Served], certificate: tuple[Path, Path]) -> None:
    """The certificate and its name are checked, unless told otherwise."""
    made, key = certificate
    port = free_port()
    files = ("--tls-cert-file", str(made), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    serve("--tls-port", str(port), *files)

    def client(host: str, query: str) -> RedisServer:
        return RedisServer(address.parse(f"rediss://{host}:{port}{query}"))

    good = client("localhost", f"?ssl_ca_certs={made}")
    put(good, b"k", bytes(100_000))
    assert good.get(b"k") == bytes(100_000)
    good.close()
    unchecked = client("127.0.0.1", "?ssl_cert_reqs=none")
    assert unchecked.get(b"k") == bytes(100_000)
    unchecked.close()
    for host, query in (("localhost", ""), ("127.0.0.1", f"?ssl_ca_certs={made}")):
        with pytest.raises(Exception, match=r"(?i)certificate"):
            client(host, query).get(b"k")
