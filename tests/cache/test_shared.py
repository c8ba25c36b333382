"""The shared tier on a real server: what it stores and believes, what each fault costs, and who asks how often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cuplate import cache, configure
from cuplate.cache import DiskTier, NoStore, faults
from cuplate.cache import server as server_module
from cuplate.cache.remote import LARGEST_BYTES
from cuplate.cache.server import Server
from cuplate.cache.shared import SCHEMA, SharedTier
from cuplate.compile import obtain
from cuplate.cubin import Cubin
from cuplate.errors import CacheError, CacheWarning
from cuplate.key import Key
from cuplate.seal import seal

pytest.importorskip("redis")

from cuplate.cache import redis_server
from tests.cache.children import Children
from tests.servers import Liar, Served

KEY, SECRET = b"k" * 32, b"a secret of the test"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been said yet, no server is known, and counts begin at zero."""
    monkeypatch.setattr(faults, "_said", set())
    monkeypatch.setattr(server_module._servers, "known", {})
    monkeypatch.setattr(cache.shared_tier.__globals__["_process"], "shared", {})


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Where a test is not about the bound, a busy machine is to have time; ``hasty()`` is the bound as it is."""
    bounds = redis_server.WAIT_S, redis_server._PUT_WAIT_S

    def set_to(wait_s: float, put_s: float) -> None:
        monkeypatch.setattr(redis_server, "WAIT_S", wait_s)
        monkeypatch.setattr(redis_server, "_PUT_WAIT_S", put_s)

    set_to(20.0, 20.0)
    return lambda: set_to(*bounds)


class Counted:
    """What the shared tier has counted since, over all threads."""

    def __init__(self) -> None:
        self.before = cache.stats(all_threads=True).shared

    def __getattr__(self, name: str) -> Any:
        return getattr(cache.stats(all_threads=True).shared, name) - getattr(self.before, name)


@pytest.fixture
def counted() -> Counted:
    """Counts of this test."""
    return Counted()


def tier_of(url: str, *, secret: bytes = SECRET, **more: Any) -> SharedTier:
    """A node's own view of a server: a client of its own, as in a process of its own."""
    return SharedTier(Server(url), secret=secret, **more)


@pytest.fixture
def tier(served: Served) -> Iterator[SharedTier]:
    """A tier on a server of the test's own."""
    made = tier_of(served.url)
    yield made
    made.server.close()


def stored(tier: SharedTier, key: bytes = KEY, payload: bytes = b"payload") -> SharedTier:
    """It, with an entry."""
    assert tier.offer(key, payload) and tier.flush(30)
    return tier


# ---- what it stores --------------------------------------------------------------------------------------------------


def test_what_one_node_offers_another_has(tier: SharedTier, served: Served, counted: Counted) -> None:
    """Hits, misses, puts and bytes are counted; who offers does not wait."""
    assert tier.get(KEY) is None
    stored(tier)
    other = tier_of(served.unix_url)
    assert other.get(KEY) == b"payload"
    assert (counted.hits, counted.misses, counted.puts, counted.drops, counted.errors) == (1, 1, 1, 0, 0)
    assert counted.read_bytes == len(b"payload") < counted.written_bytes
    other.server.close()


def test_keys_carry_the_schema_and_the_values_are_sealed(tier: SharedTier, served: Served) -> None:
    """Nobody reads the secret from the server, and an entry is worth nothing under another key."""
    stored(tier)
    (name,) = served.ask("KEYS", "*")
    assert name == tier.name(KEY) and name.startswith(SCHEMA + b":") and name.endswith(KEY.hex().encode())
    value = served.ask("GET", name)
    assert value == seal(KEY, b"payload", SECRET) and SECRET not in value + name


def test_the_first_writer_wins(tier: SharedTier, counted: Counted) -> None:
    """All kernels of one key are equal; the second put changes nothing, and counts nowhere."""
    stored(tier)
    stored(tier, payload=b"another")
    assert tier.get(KEY) == b"payload" and (counted.puts, counted.drops, counted.errors) == (1, 0, 0)


@pytest.mark.parametrize(("lives_s", "left"), [(1000.0, True), (float("inf"), False)])
def test_a_time_to_live_is_optional(served: Served, lives_s: float, left: bool) -> None:
    """The policy's, kept by the server."""
    tier = stored(tier_of(served.url, time_to_live_s=lives_s))
    assert (served.ask("PTTL", tier.name(KEY)) > 0) == left
    tier.server.close()


def test_two_secrets_do_not_meet(tier: SharedTier, served: Served, counted: Counted) -> None:
    """Another secret finds nothing, spoils nothing and is no fault: it has names of its own."""
    stored(tier)
    other = tier_of(served.url, secret=b"another")
    assert other.get(KEY) is None
    stored(other, payload=b"theirs")
    assert tier.get(KEY) == b"payload" and other.get(KEY) == b"theirs" and counted.errors == 0
    other.server.close()


def test_a_tier_without_a_secret_is_none() -> None:
    """What it holds is code."""
    with pytest.raises(ValueError, match="secret"):
        SharedTier(Server("redis://host"), secret=b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_process_stores_what_it_has_before_it_ends(served: Served, host: str) -> None:
    """It may end the moment after its last compile, without a connection and by name."""
    code = (
        "from cuplate.cache.server import Server; from cuplate.cache.shared import SharedTier\n"
        f"tier = SharedTier(Server('redis://{host}:{served.port}'), secret={SECRET!r})\n"
        f"for n in range(5): tier.offer(bytes([n]) * 32, b'payload')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "") and served.calls("set") == 5


def test_an_entry_that_is_too_large_is_dropped(tier: SharedTier, served: Served, counted: Counted) -> None:
    """Before it is sent."""
    assert not tier.offer(KEY, bytes(LARGEST_BYTES))
    assert tier.flush(30) and counted.drops == 1 and served.calls("set") == 0


# ---- what it does not believe ----------------------------------------------------------------------------------------


def lies(tier: SharedTier) -> dict[str, Any]:
    """What somebody who can write the server might put under our key."""
    good = seal(KEY, b"payload", SECRET)
    return {
        "forged": seal(KEY, b"forged", b"another secret"),
        "no secret": seal(KEY, b"forged"),
        "another key's": seal(b"o" * 32, b"other", SECRET),
        "cut": good[:-1],
        "longer": good + b"x",
        "changed": good[:-1] + b"!",
        "the head of a seal": good[:20],
        "text": b"hello",
        "a large value": bytes(LARGEST_BYTES + 1),
    }


@pytest.mark.parametrize("lie", [*lies(tier_of("redis://host")), "a list"])
def test_a_forged_entry_is_a_miss_and_is_replaced(tier: SharedTier, served: Served, counted: Counted, lie: str) -> None:
    """One warning, no rest: the server is well, and what is compiled now takes its place."""
    if lie == "a list":
        served.ask("RPUSH", tier.name(KEY), "x")
    else:
        served.ask("SET", tier.name(KEY), lies(tier)[lie])
    with pytest.warns(CacheWarning, match="not to be believed") as told:
        assert tier.get(KEY) is None
        assert tier.get(KEY) is None
    assert len(told) == 1 and (counted.misses, counted.errors) == (2, 2) and tier.state() == "on"
    stored(tier)
    assert tier.get(KEY) == b"payload"


def test_a_record_that_does_not_decode_is_a_miss_and_is_replaced(tier: SharedTier) -> None:
    """Sealed with our secret, and no kernel: another program's, or an older one's."""
    stored(tier, payload=b"no record")
    got, (_, stored_there) = one(tier), (tier.flush(30), tier.get(KEY))
    assert got.origin == "compile" and stored_there != b"no record"
    assert one(tier).origin == "shared"


# ---- who asks, and how often -----------------------------------------------------------------------------------------

WANTED = Key(KEY, (("source", "s"),))


def cubin(source: str = "// text") -> Cubin:
    """As a compiler gives it."""
    return Cubin(b"\x7fELF" + bytes(1000), "k", "sm_90", "f", source=source)


def one(tier: SharedTier | None, store: Any = None, build: Callable[[], Cubin] = cubin) -> Any:
    """What a function does on a miss of memory."""
    return obtain(WANTED, store=store, build=build, function="f", distant=lambda: tier)


def refuse() -> Cubin:
    """A compile that must not be."""
    pytest.fail("compiled")


def test_a_hit_is_written_back_to_the_disk(tier: SharedTier, served: Served, tmp_path: Path) -> None:
    """The next process of the node asks nobody; the kernel is the same, and its text did not travel."""
    first = one(tier, DiskTier(str(tmp_path / "a")))
    assert first.origin == "compile" and tier.flush(30)
    node = DiskTier(str(tmp_path / "b"))
    got = one(tier, node, refuse)
    assert (got.origin, got.cubin.code, got.cubin.ingredients) == ("shared", first.cubin.code, WANTED.ingredients)
    assert got.cubin.source == "" and first.cubin.source == "// text"
    asked = served.calls("getrange")
    assert one(tier, node, refuse).origin == "disk" and served.calls("getrange") == asked == 2


@pytest.mark.parametrize("store", [None, NoStore("off")])
def test_it_works_without_a_disk(tier: SharedTier, store: Any) -> None:
    """A node that may keep nothing."""
    assert one(tier, store).origin == "compile" and tier.flush(30)
    assert one(tier, store, refuse).origin == "shared"


def test_the_disk_is_asked_first(served: Served, tmp_path: Path) -> None:
    """What it has costs the server nothing, not even the making of a tier."""
    node = DiskTier(str(tmp_path))
    one(None, node)
    got = obtain(WANTED, store=node, build=refuse, function="f", distant=lambda: pytest.fail("asked"))
    assert got.origin == "disk" and served.calls("getrange") == 0


@pytest.mark.parametrize("kind", ["unstorable", "changed"])
def test_what_may_not_be_stored_is_not_offered(tier: SharedTier, served: Served, kind: str) -> None:
    """A text that reads the clock; headers that changed during the compile."""
    key = Key(KEY, (), storable=kind != "unstorable", reason="it reads the clock")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        obtain(key, store=None, build=cubin, function=kind, unchanged=lambda: kind != "changed", distant=lambda: tier)
    assert tier.flush(30) and served.calls("set") == 0
    assert served.calls("getrange") == (kind == "changed")


def test_threads_of_a_process_ask_once(tier: SharedTier, served: Served) -> None:
    """Sixteen that miss one key at once: one look-up, one compile, one put."""
    stored(tier, b"o" * 32)
    asked = threading.Barrier(16)
    builds: list[int] = []

    def build() -> Cubin:
        builds.append(1)
        return cubin()

    def work() -> None:
        asked.wait()
        one(tier, None, build)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tier.flush(30)
    # One that comes when the first has ended begins anew: there is no disk in this test.
    assert served.calls("getrange") - len(builds) <= 16 - len(builds) and served.calls("set") == 1 + len(builds)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Nobody is left behind."""
    with Children(tmp_path / "log") as running:
        yield running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_processes_of_a_node_ask_once(served: Served, tmp_path: Path, children: Children) -> None:
    """Eight that share a disk and miss one key: the lock of the node lets one ask, and the others have it from disk."""
    stored(tier_of(served.url), KEY, _record()).server.close()
    before = served.calls("getrange")

    def work() -> str:
        node = DiskTier(str(tmp_path / "node"), write_wait_s=10.0, read_wait_s=1.0)
        return str(one(tier_of(served.url), node, refuse).origin)

    for _ in range(8):
        children.start(work)
    said = sorted(children.finish())
    assert said == ["done 'disk'"] * 7 + ["done 'shared'"] and served.calls("getrange") - before == 1


def _record() -> bytes:
    from cuplate.cubin import encode

    return encode(cubin().with_ingredients(WANTED.ingredients))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_64_cold_clients_on_one_key(served: Served, children: Children) -> None:
    """62 that come a compile later than the first two compile nothing; each asks once, and all have the kernel."""
    clients, early = 64, 2
    gate, go = os.pipe()

    def work() -> str:
        os.read(gate, 1)

        def build() -> Cubin:
            children.say("compile")
            return cubin()

        tier = tier_of(served.url)
        got = one(tier, None, build)
        if not tier.flush(30) or got.cubin.code != cubin().code:
            return "wrong"
        children.say("ready")
        return "fine"

    for _ in range(clients):
        children.start(work)
    for begun, ready in ((early, early), (clients - early, clients)):
        os.write(go, bytes(begun))
        children.until("ready", ready)
    said = children.finish()
    os.close(gate)
    os.close(go)
    assert said.count("done 'fine'") == clients
    assert 1 <= said.count("compile") <= early
    assert served.calls("getrange") == clients and served.calls("set") == said.count("compile")
    assert served.connections() - clients <= 4  # one each, besides the questions of this test


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_has_connections_of_its_own(served: Served, tier: SharedTier, children: Children) -> None:
    """And none of its parent's offers; both go on."""
    stored(tier)

    def work() -> str:
        stored(tier, b"c" * 32, b"child's")
        return f"{tier.get(KEY)!r}"

    before = served.connections()
    children.start(work)
    assert children.finish() == ["done \"b'payload'\""]
    assert served.connections() - before == 2  # the child's, and this question
    assert tier.get(b"c" * 32) == b"child's" and tier.get(KEY) == b"payload"


ENDED: list[int] = []


class OfProcess:
    """A store that knows who made it."""

    def __init__(self) -> None:
        self.made_by = os.getpid()

    def get(self, key: bytes) -> bytes | None:
        return seal(KEY, b"%d" % (self.made_by == os.getpid()), SECRET)

    def put(self, key: bytes, value: bytes) -> None:
        return

    def __del__(self) -> None:
        ENDED.append(self.made_by)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_makes_a_store_of_the_users_anew(children: Children) -> None:
    """It may hold connections, and what it does at its end it is not to do to those of the parent."""
    tier = tier_of(f"{__name__}:OfProcess")
    assert tier.get(KEY) == b"1"
    children.start(lambda: (tier.get(KEY), ENDED))
    assert children.finish() == ["done (b'1', [])"]


# ---- faults ----------------------------------------------------------------------------------------------------------


def nothing_but_a_miss(tier: SharedTier, counted: Counted, said: str) -> None:
    """A fault costs one wait and one warning, and is a miss; from then on nobody is asked, and puts are dropped."""
    with pytest.warns(CacheWarning, match=said) as told:
        got = one(tier)
    assert got.origin == "compile" and len(told) == 1
    assert (counted.misses, counted.errors) == (1, 1) and tier.state().startswith("resting for")
    for _ in range(20):
        assert tier.get(KEY) is None
    assert tier.flush(30) and counted.errors == 1 and counted.drops == 1 and counted.puts == 0


def test_a_frozen_server(
    served: Served,
    tier: SharedTier,
    counted: Counted,
    hasty: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP with connections open; it comes back, is probed once, and serves."""
    stored(tier, b"o" * 32)
    counted.before = cache.stats(all_threads=True).shared
    served.freeze()
    hasty()
    nothing_but_a_miss(tier, counted, "left alone for 30 s")
    served.thaw()
    monkeypatch.setattr(redis_server, "WAIT_S", 20.0)
    end_the_rest(tier)
    assert tier.get(b"o" * 32) == b"payload" and tier.state() == "on"


def end_the_rest(tier: SharedTier) -> None:
    """As if half a minute had gone by."""
    tier.server._reads._until = tier.server._writes._until = 0.0


def test_a_server_frozen_before_the_first_look(served: Served, counted: Counted, hasty: Callable[[], None]) -> None:
    """The system takes the connection, and nobody answers."""
    hasty()
    served.freeze()
    nothing_but_a_miss(tier_of(served.url), counted, "left alone for 30 s")


def test_64_threads_at_a_frozen_server_wait_once(served: Served, counted: Counted, hasty: Callable[[], None]) -> None:
    """All at the same time, none of them again; one warning."""
    hasty()
    tier = tier_of(served.url)
    served.freeze()
    asked = threading.Barrier(64)
    found: list[bytes | None] = []

    def work(number: int) -> None:
        asked.wait()
        found.append(tier.get(bytes([number]) * 32))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(64)]
    with pytest.warns(CacheWarning, match="left alone for 30 s") as told:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [None] * 64 and len(told) == 1 and counted.misses == 64
    served.stop()


def test_a_refused_connection(served: Served, counted: Counted) -> None:
    """Nobody listens."""
    served.stop()
    nothing_but_a_miss(tier_of(served.url), counted, "refused")


def test_a_wrong_password(serve: Callable[..., Served], counted: Counted) -> None:
    """Neither it nor the user is told."""
    served = serve("--requirepass", "right")
    url = served.url.replace("//", "//me:hunter2@")
    with pytest.warns(CacheWarning, match="left alone") as told:
        assert tier_of(url).get(KEY) is None
    assert "hunter2" not in str(told[0].message) and "me:" not in str(told[0].message)


def test_a_full_server(served: Served, tier: SharedTier, counted: Counted) -> None:
    """Look-ups go on, hits are hits; puts rest, with one warning."""
    stored(tier)
    served.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.warns(CacheWarning, match=r"takes no writes \(.*maxmemory.*\)"):
        for n in range(3):
            stored(tier, bytes([n]) * 32)
    assert tier.get(KEY) == b"payload" and tier.state() == "takes no writes"
    assert (counted.puts, counted.errors, counted.drops, counted.hits) == (1, 1, 2, 1)
    served.ask("CONFIG", "SET", "maxmemory", "0")
    end_the_rest(tier)
    stored(tier, b"o" * 32)
    assert tier.get(b"o" * 32) == b"payload" and tier.state() == "on"


def test_a_restart_in_mid_run(served: Served, tier: SharedTier, counted: Counted) -> None:
    """Down it is a miss and a rest; up again, and empty, it is filled anew."""
    stored(tier)
    served.stop()
    with pytest.warns(CacheWarning, match="left alone for 30 s"):
        assert tier.get(KEY) is None
    served.start()
    assert tier.get(KEY) is None and served.calls("getrange") == 0  # it rests
    end_the_rest(tier)
    assert one(tier).origin == "compile" and tier.flush(30)
    assert one(tier, None, refuse).origin == "shared" and counted.errors == 1


def test_a_restart_between_two_calls_costs_nothing(served: Served, tier: SharedTier, counted: Counted) -> None:
    """The dead connection is seen before it is used."""
    stored(tier)
    served.stop()
    served.start()
    assert tier.get(KEY) is None and tier.state() == "on" and counted.errors == 0
    stored(tier)
    assert tier.get(KEY) == b"payload"


GARBAGE = {"HTTP": b"HTTP/1.1 200 OK\r\n\r\n", "a number": b":1\r\n", "loading": b"-LOADING\r\n", "zeros": bytes(100)}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_server_of_another_kind(counted: Counted, garbage: str, hasty: Callable[[], None]) -> None:
    """One fault, as any other."""
    liar = Liar(lambda connection, data: connection.sendall(GARBAGE[garbage]))
    hasty()
    try:
        nothing_but_a_miss(tier_of(liar.url), counted, "left alone for 30 s")
        assert liar.connections == 1
    finally:
        liar.close()


def test_a_server_that_repeats_the_password(counted: Counted) -> None:
    """A server without AUTH says what it was sent; we do not, neither in a warning, a log, an error nor a state."""

    def answer(connection: Any, data: bytes) -> None:
        connection.sendall(b"-ERR unknown command `AUTH`, with args beginning with: `me`, `hunter2`\r\n")

    liar = Liar(answer)
    url = liar.url.replace("//", "//me:hunter2@")
    try:
        tier = tier_of(url)
        with pytest.warns(CacheWarning, match="unknown command") as told:
            assert tier.get(KEY) is None
        strict = tier_of(url, on_error="raise")
        with pytest.raises(CacheError) as caught:
            strict.get(KEY)
        error: BaseException | None = caught.value
        assert error is not None and error.__cause__ is None and error.__context__ is None
        for text in (str(told[0].message), tier.state(), repr(tier), str(error), repr(error)):
            assert "hunter2" not in text and "`me`" not in text
    finally:
        liar.close()


class Broken:
    """A store of the user's that raises what the test says."""

    error: BaseException | None = None

    def get(self, key: bytes) -> bytes | None:
        if self.error is not None:
            raise self.error
        return None

    put_error: BaseException | None = None  # of a put

    def put(self, key: bytes, value: bytes) -> None:
        if self.put_error is not None:
            raise self.put_error


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), MemoryError("x"), SystemExit(3), RecursionError("x")])
def test_whatever_a_store_of_the_users_raises(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, error: BaseException
) -> None:
    """It is a miss."""
    monkeypatch.setattr(Broken, "error", error)
    nothing_but_a_miss(tier_of(f"{__name__}:Broken"), counted, type(error).__name__)


@pytest.mark.parametrize("error", [ValueError("full"), SystemExit("full")])
def test_a_store_of_the_users_that_takes_no_puts(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, error: BaseException
) -> None:
    """Look-ups go on."""
    monkeypatch.setattr(Broken, "put_error", error)
    tier = tier_of(f"{__name__}:Broken")
    with pytest.warns(CacheWarning, match=f"takes no writes .{type(error).__name__}: full"):
        stored(tier)
    assert tier.get(KEY) is None and tier.state() == "takes no writes" and counted.errors == 1


def test_a_refused_put_shows_that_the_server_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends a rest from look-ups."""
    tier = tier_of(f"{__name__}:Broken", on_error="ignore")
    monkeypatch.setattr(Broken, "error", ValueError("x"))
    assert tier.get(KEY) is None and tier.state().startswith("resting")
    monkeypatch.setattr(Broken, "error", None)
    monkeypatch.setattr(Broken, "put_error", ValueError("full"))
    end_the_rest(tier)
    stored(tier)
    assert tier.state() == "takes no writes" and tier.server.ask() is not None


def test_a_module_that_is_not_there_is_off(counted: Counted) -> None:
    """For the process, with one warning; nobody tries again."""
    tier = tier_of("no.such.module:Class")
    with pytest.warns(CacheWarning, match="off for this process: .*ModuleNotFoundError") as told:
        for _ in range(3):
            assert tier.get(KEY) is None
    stored(tier)
    assert len(told) == 1 and tier.state().startswith("off: ") and (counted.errors, counted.drops) == (1, 1)


@pytest.mark.parametrize("on_error", ["ignore", "raise"])
def test_on_error(served: Served, counted: Counted, on_error: str) -> None:
    """Ignored, or raised where somebody waits; what fails in the background is a warning then."""
    served.stop()
    tier = tier_of(served.url, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(CacheError, match="left alone"):
            tier.get(KEY)
        assert (counted.misses, counted.errors) == (1, 1)
        end_the_rest(tier)
        with pytest.warns(CacheWarning, match="left alone"):
            stored(tier)
    else:
        assert tier.get(KEY) is None
        stored(tier)
        assert counted.errors == 1 and counted.drops == 1


def test_a_warning_that_is_an_error_fails_no_call(served: Served) -> None:
    """Nothing of a cache leaves a call."""
    served.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tier_of(served.url).get(KEY) is None


# ---- policy ----------------------------------------------------------------------------------------------------------


def test_policies_of_one_server_share_it(served: Served) -> None:
    """Functions with policies of their own; other secrets and times to live are other views of it."""
    with configure(shared=served.url, secret=SECRET):
        mine = cache.shared_tier()
        other = cache.shared_tier(cache.CachePolicy(time_to_live_s=5.0))
        none = cache.shared_tier(cache.CachePolicy(shared="off"))
        assert mine is not None and other is not None and none is None
        assert mine is cache.shared_tier() and mine is not other and mine.server is other.server
        assert cache.disk_tier() is cache.disk_tier(cache.CachePolicy(shared="off"))
    assert cache.shared_tier() is None


def test_info_says_where_it_is_and_how_it_does(served: Served) -> None:
    """Without user and password; nothing is asked for it."""
    with configure(shared=served.url.replace("//", "//me:hunter2@"), secret=SECRET):
        info = cache.info()
        assert (info.shared, info.shared_state) == (f"redis://***@127.0.0.1:{served.port}/0", "not asked yet")
        assert f"shared         {info.shared} (not asked yet)" in str(info).splitlines()
        assert "hunter2" not in f"{info}{info!r}{cache.current_policy()!r}{cache.CachePolicy(shared=served.url)!r}"
    assert cache.info().shared is None and "shared  " not in str(cache.info()).splitlines()[3]
    json.dumps(cache.openmetrics())
