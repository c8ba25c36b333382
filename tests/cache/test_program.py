"""Program caches both ways: ours behind ``Program.compile(cache=...)``, and others' below our tier."""

from __future__ import annotations

from pathlib import Path

import pytest

import cuplate
from cuplate import cache
from cuplate.cache import CachePolicy, reset, stats
from cuplate.cache.program import ForeignStore
from cuplate.errors import CacheWarning

KEY, OTHER = b"k" * 32, b"o" * 32


class Plain(dict):  # type: ignore[type-arg]
    """The five methods and no more."""


class Broken(Plain):
    """Fails at everything."""

    def get(self, *a: object) -> bytes:
        raise OSError("gone")

    def __setitem__(self, *a: object) -> None:
        raise ValueError("full")

    def __delitem__(self, *a: object) -> None:
        raise RuntimeError("no")


def test_what_another_cache_holds_is_sealed_and_checked() -> None:
    """It hands out whatever lies in its files: a cut entry is a miss here."""
    theirs = Plain()
    store = ForeignStore(theirs, secret=b"s")
    reset()
    assert store.put(KEY, b"payload")
    assert store.get(KEY) == b"payload"
    for wrong in (theirs[KEY][:-1], b"", "text", None, ForeignStore(Plain()), theirs[KEY] + b"x"):
        theirs[KEY] = wrong
        assert store.get(KEY) is None
    store.put(KEY, b"payload")
    theirs[OTHER] = theirs[KEY]
    assert store.get(OTHER) is None
    assert store.delete(KEY)
    assert not store.delete(KEY)
    assert (stats().disk.hits, stats().disk.errors) == (1, 6)
    assert (list(store.entries("f")), store.clear()) == ([], 0)


def test_another_cache_may_fail_as_it_likes() -> None:
    """A miss and one warning; after five errors in a row it is left alone."""
    store = ForeignStore(Broken())
    reset()
    with pytest.warns(CacheWarning, match="Broken failed") as caught:
        for _ in range(10):
            assert store.get(KEY) is None
            assert not store.put(KEY, b"p")
    assert not store.delete(KEY)
    assert len(caught) == 1
    assert stats().disk.errors == 5


def test_an_attached_cache_is_below_the_disk_tier(tmp_path: Path) -> None:
    """Written to as well, asked last, and taken away again."""
    pytest.importorskip("diskcache")
    theirs = Plain()
    policy = CachePolicy(directory=tmp_path / "a")
    with cache.attach(theirs) as attached:
        tier = cache.disk_tier(policy)
        assert tier.put(KEY, b"p")
        assert len(theirs) == 1
        assert cache.disk_tier(CachePolicy(directory=tmp_path / "b")).get(KEY) == b"p"
        assert cache.disk_tier(CachePolicy(directory=tmp_path / "b")).flights is not None
        assert tier.delete(KEY)
        assert theirs == {}
    attached.close()
    assert cache.disk_tier(policy).put(KEY, b"p")
    assert theirs == {}


def test_the_tier_serves_programs_of_cuda_core(tmp_path: Path) -> None:
    """A second compile is a hit; keys of any length; a clear leaves kernels of ours alone."""
    core = pytest.importorskip("cuda.core")
    from cuda.core.utils import ProgramCacheResource

    from cuplate.backend.cuda.program_cache import ProgramCache

    policy = CachePolicy(directory=tmp_path)
    cache.disk_tier(policy).put(KEY, b"ours", tag="f")
    with ProgramCache(policy) as programs:
        assert isinstance(programs, ProgramCacheResource)
        reset()
        codes = []
        for _ in range(2):
            program = core.Program('extern "C" __global__ void k() {}', "c++", core.ProgramOptions(arch="sm_90"))
            codes.append(bytes(program.compile("cubin", cache=programs).code))
            program.close()
        assert codes[0] == codes[1]
        assert (stats().disk.puts, stats().disk.hits) == (1, 1)
        programs["text" * 100] = b"binary"
        assert programs["text" * 100] == programs.get(b"text" * 100) == b"binary"
        assert len(programs) == 2
        del programs["text" * 100]
        with pytest.raises(KeyError):
            programs["text" * 100]
        with pytest.raises(KeyError):
            del programs["text" * 100]
        programs.clear()
        assert len(programs) == 0
    assert cache.disk_tier(policy).get(KEY) == b"ours"


def test_cuda_cores_own_file_cache_serves_ours(tmp_path: Path) -> None:
    """Another directory of ours, the same kernels."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from cuda.core.utils import FileStreamProgramCache

    from cuplate.kernels import matmul_epilogue

    theirs = FileStreamProgramCache(tmp_path / "theirs")
    with cache.attach(theirs), cuplate.configure(directory=tmp_path / "one"):
        matmul_epilogue.compile("float32", arch="sm_90")
        cuplate.configure(directory=tmp_path / "two")
        assert matmul_epilogue.inspect("float32", arch="sm_90").origin == "disk"
