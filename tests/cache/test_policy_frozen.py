"""A frozen cache: what it holds is used, and what it does not hold is an error before any compiler is asked."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import cuplate
from cuplate import Array, CachePolicy, FrozenCacheError, Inline, configure, specialize
from cuplate.cache import reset, set_policy, stats

pytest.importorskip("jaxtyping")
from jaxtyping import Float32

KERNEL = Inline(
    """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = {{ factor }} * x[i];
}
"""
)


@pytest.fixture(autouse=True)
def policy_back() -> Iterator[None]:
    """No test leaves a policy behind."""
    yield
    set_policy(None)


def scaled(policy: CachePolicy | None = None) -> cuplate.Specialized[object]:
    """A function that no other test has compiled."""

    @specialize(KERNEL, policy=policy)
    def scale(x: Float32[Array, "N"], *, factor: int) -> Float32[Array, "N"]:  # noqa: F821
        """A multiple."""

    return scale


def test_a_frozen_cache_gives_what_it_holds_and_refuses_the_rest(tmp_path: Path) -> None:
    """The error has kernel, parameters, key, the nearest stored entry and who froze it; nothing is compiled (B11)."""
    configure(directory=tmp_path)
    scaled().compile(factor=2, arch="sm_90")
    reset()
    configure(frozen=True)
    function = scaled()
    assert function.compile(factor=2, arch="sm_90").arch == "sm_90"
    with pytest.raises(FrozenCacheError) as caught:
        function.compile(factor=3, arch="sm_90")
    compiles = stats().compile
    assert (compiles.compiles, compiles.errors) == (0, 0)
    error = caught.value
    assert (error.function, error.kernel, error.parameters) == ("scale", "scale", "factor=3")
    assert len(bytes.fromhex(error.key)) == 32
    assert "source (factor=2 -> factor=3) differs from the nearest stored entry" in error.nearest
    assert str(tmp_path) in error.searched
    assert error.frozen_by == "code"
    for part in ("the cache is frozen", error.key, error.nearest, "sm_90"):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_next_call_after_frozen_compiles(tmp_path: Path) -> None:
    """A refusal is not remembered, and inspect is refused like a call."""
    configure(directory=tmp_path)
    function = scaled()
    with configure(frozen=True), pytest.raises(FrozenCacheError, match="nothing is stored for this function"):
        function.inspect(factor=2, arch="sm_90")
    assert function.inspect(factor=2, arch="sm_90").origin == "compile"


def test_one_function_may_be_frozen_or_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own policy wins over the process's, and says so."""
    monkeypatch.setenv("CUPLATE_FROZEN", "1")
    free = scaled(CachePolicy(directory=tmp_path, frozen=False))
    assert free.compile(factor=2, arch="sm_90").code
    policy = free.cache_policy()
    assert (policy.source("frozen"), policy.source("directory")) == ("policy=", "policy=")
    assert f"directory      {tmp_path}  [policy=]" in str(policy)
    with pytest.raises(FrozenCacheError) as caught:
        scaled(CachePolicy(directory=tmp_path)).compile(factor=3, arch="sm_90")
    assert caught.value.frozen_by == "CUPLATE_FROZEN"
