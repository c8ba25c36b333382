"""The tiers of the cache, their policy and their counts: a front door, as lazy as that of `cuplate`.

A process that only looks a kernel up loads one tier and what that needs, neither NumPy, Jinja, CUDA nor diskcache.

>>> import cuplate.cache
>>> cuplate.cache.reset()
>>> cuplate.cache.stats().compile.compiles
0
"""

import sys

from cuplate import _FrontDoor

__all__ = [
    "UNLIMITED",
    "Cache",
    "CacheInfo",
    "CachePolicy",
    "CacheStats",
    "CompileStats",
    "Configured",
    "DiskTier",
    "EffectivePolicy",
    "Entry",
    "Gate",
    "HitCounter",
    "Info",
    "MemoryTier",
    "NoStore",
    "SharedStats",
    "SharedStore",
    "SharedTier",
    "Store",
    "Tier",
    "TierStats",
    "attach",
    "clear",
    "configure",
    "count",
    "current_policy",
    "disk_tier",
    "exclusive",
    "export",
    "import_",
    "info",
    "latencies",
    "memory_tier",
    "mount",
    "next_tick",
    "openmetrics",
    "prune",
    "record",
    "reset",
    "set_policy",
    "shared_tier",
    "stats",
    "tune",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cuplate.cache.counts import HitCounter, count, reset
    from cuplate.cache.disk import DiskTier
    from cuplate.cache.front import (
        Cache,
        Configured,
        Info,
        attach,
        clear,
        configure,
        current_policy,
        disk_tier,
        exclusive,
        export,
        import_,
        info,
        latencies,
        memory_tier,
        mount,
        openmetrics,
        prune,
        record,
        set_policy,
        shared_tier,
        tune,
    )
    from cuplate.cache.gate import Gate
    from cuplate.cache.memory import Entry, MemoryTier, next_tick
    from cuplate.cache.policy import CachePolicy, EffectivePolicy
    from cuplate.cache.remote import SharedStore
    from cuplate.cache.shared import SharedTier
    from cuplate.cache.stats import CacheInfo, CacheStats, CompileStats, SharedStats, TierStats, stats
    from cuplate.cache.store import NoStore, Store, Tier
    from cuplate.config import UNLIMITED

_MODULES: frozenset[str] = frozenset()
_HOMES = {  # of what `front` itself does not hold
    "counts": ("HitCounter", "count", "reset"),
    "disk": ("DiskTier",),
    "gate": ("Gate",),
    "memory": ("Entry", "MemoryTier", "next_tick"),
    "policy": ("UNLIMITED", "CachePolicy", "EffectivePolicy"),
    "remote": ("SharedStore",),
    "shared": ("SharedTier",),
    "stats": ("CacheInfo", "CacheStats", "CompileStats", "SharedStats", "TierStats", "stats"),
    "store": ("NoStore", "Store", "Tier"),
}
_HOME = dict.fromkeys(__all__, "front") | {name: module for module, names in _HOMES.items() for name in names}

sys.modules[__name__].__class__ = _FrontDoor
