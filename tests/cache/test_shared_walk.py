"""Whole calls with a shared tier: two nodes, which share a server and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, CachePolicy, FrozenCacheError, Inline, ToolchainError, cache, specialize
from cuplate.cache import server as server_module
from cuplate.cubin import Cubin, decode, encode
from tests.servers import Served

pytest.importorskip("redis")

SECRET = b"a secret of the test"
TEXT = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = {{ factor }} * x[i];
}
"""


def scaled(**more: Any) -> Any:
    """A function as a process that has just started has it."""

    @specialize(Inline(TEXT), grid="cdiv(N, 128)", block=128, **more)
    def scale(x: Float32[Array, " N"], *, factor: int = 2) -> Float32[Array, " N"]:
        return factor * x

    return scale


@pytest.fixture
def node(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., cache.SharedTier]]:
    """``node("a")``: from now on this process is that node, and has nothing in memory; gives its shared tier."""
    monkeypatch.setattr(server_module._servers, "known", {})
    monkeypatch.setattr(cache.shared_tier.__globals__["_process"], "shared", {})
    from cuplate.cache import redis_server

    monkeypatch.setattr(redis_server, "WAIT_S", 20.0)
    monkeypatch.setenv("CUPLATE_SHARED", served.url)
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", SECRET.decode())
    tiers = []

    def become(name: str, **values: Any) -> cache.SharedTier:
        for tier in tiers:
            assert tier.flush(30)
        cuplate.configure(CachePolicy(directory=tmp_path / name, **values))
        cache.clear(memory=True, disk=False)
        tier = cache.shared_tier()
        assert tier is not None
        tiers.append(tier)
        return tier

    yield become
    cache.set_policy(None)
    for tier in tiers:
        tier.server.close()


def test_what_one_node_compiles_another_has(
    node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reports, events, counts of the function, and the line of CUPLATE_EXPLAIN say where it came from."""
    monkeypatch.setenv("CUPLATE_EXPLAIN", "1")
    seen: list[tuple[str, str | None]] = []
    said = []
    with cuplate.subscribe(lambda event: seen.append((event.kind, event.tier)), ("hit", "miss", "compile")):
        for name in ("a", "b", "b"):
            node(name)
            function = scaled()
            report = function.inspect(arch="sm_90")
            info = function.cache_info()
            said.append((report.origin, info.compiles, info.disk_hits, info.shared_hits))
            if name == "b":
                assert ("HIT (shared)" in str(report)) == (len(said) == 2)
    assert said == [("compile", 1, 0, 0), ("shared", 0, 0, 1), ("disk", 0, 1, 0)]
    assert seen == [("compile", None), ("miss", "disk"), ("miss", "disk"), ("hit", "shared"), ("hit", "disk")]
    lines = capsys.readouterr().err.splitlines()
    assert "compiled for sm_90" in lines[0] and "loaded from the shared tier in" in lines[1]
    assert "loaded from disk" in lines[2]


def test_a_frozen_node_is_served_and_compiles_nothing(node: Callable[..., Any], served: Served) -> None:
    """A hit there is fine; a miss there is the error, which says where was looked, without a password."""
    node("a")
    scaled().inspect(arch="sm_90")
    node("b", frozen=True)
    assert scaled().inspect(arch="sm_90").origin == "shared"
    with pytest.raises(FrozenCacheError) as caught:
        scaled().inspect(factor=3, arch="sm_90")
    assert served.url in caught.value.searched


def test_a_function_may_have_a_tier_of_its_own_or_none(node: Callable[..., Any], served: Served) -> None:
    """`policy=`."""
    node("a")
    scaled().inspect(arch="sm_90")
    node("b")
    asked = served.calls("getrange")
    own = scaled(policy=CachePolicy(shared="off"))
    assert own.inspect(arch="sm_90").origin == "compile"
    assert served.calls("getrange") == asked and own.cache_policy().source("shared") == "policy="


@pytest.fixture
def a_compiler() -> None:
    """A C++ compiler for this machine."""
    from cuplate.backend.cpu.compilers import find_compiler

    try:
        find_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))


def test_kernels_for_this_host_travel_too(a_compiler: None, node: Callable[..., Any], served: Served) -> None:
    """What the CPU backend builds on one node runs on another; what the other cannot load is built there, and put
    in the place of the bad one.
    """
    x = np.arange(5, dtype=np.float32)
    tier = node("a")
    assert (scaled()(x) == 2 * x).all()
    node("b")
    function = scaled()
    assert (function(x) == 2 * x).all()
    assert (function.cache_info().compiles, function.cache_info().shared_hits) == (0, 1)

    (name,) = served.ask("KEYS", "*")
    key = bytes.fromhex(name.decode().rpartition(":")[2])
    good = decode(tier.get(key) or b"")
    assert good.source == ""
    bad = Cubin(b"\x7fELF of another machine", good.entry, good.arch, good.function, ingredients=good.ingredients)
    tier.offer(key, encode(bad), replace=True)
    node("c")
    function = scaled()
    assert (function(x) == 2 * x).all() and function.cache_info().shared_hits == 1
    assert tier.flush(30)
    assert decode(tier.get(key) or b"").code[:64] == good.code[:64]
