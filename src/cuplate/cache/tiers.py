"""Which tier a policy asks for: SQLite or plain files, with or without layers below."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from typing import Any

from cuplate.cache.disk import DiskTier
from cuplate.cache.faults import warn_once
from cuplate.cache.network import is_network
from cuplate.cache.policy import EffectivePolicy
from cuplate.cache.store import NoStore, Tier

__all__ = ["choose", "make_tier"]


def make_tier(policy: EffectivePolicy) -> Tier | NoStore:
    """The tier of a policy.

    Parameters
    ----------
    policy : EffectivePolicy

    Returns
    -------
    Tier or NoStore
        NoStore when nothing is to be stored, or there is no place for it, and there are no layers. Layers are read
        without a writable directory as well: ``disk`` is about what is written.
    """
    top = _make_top(policy)
    if not policy.layers:
        return top
    from cuplate.cache.layers import Layer, Layered

    told: dict[str, Any] = {"secret": policy.secret, "on_error": policy.on_error, "setting": policy.source("layers")}
    return Layered(top, (Layer(path, **told) for path in policy.layers))


def _make_top(policy: EffectivePolicy) -> Tier | NoStore:
    if policy.directory is None or not os.path.isabs(policy.directory):
        reason = policy.source("directory") if policy.directory is None else "the working directory is gone"
        if policy.disk and not policy.layers:
            warn_once("", reason, f"cuplate: no disk cache: {reason}. Set CUPLATE_CACHE_DIR to keep compiled kernels.")
        return NoStore(reason)
    network = is_network(policy.directory)
    settings: dict[str, Any] = {
        "limit_bytes": policy.disk_bytes,
        "eviction": policy.eviction,
        "time_to_live_s": policy.time_to_live_s,
        "on_error": policy.on_error,
        "secret": policy.secret,
        "single_flight": policy.single_flight,
        "flight_wait_s": policy.flight_wait_s,
    }
    if choose(policy.engine, network=network) == "diskcache":
        return DiskTier(policy.directory, **settings)
    from cuplate.cache.files import FilesTier

    if network:
        settings["flight_directory"] = _local(policy.directory)
        settings["single_flight"] &= settings["flight_directory"] is not None
    return FilesTier(policy.directory, **settings)


def choose(engine: str, *, network: bool) -> str:
    """``"diskcache"`` or ``"files"``.

    Parameters
    ----------
    engine : str
        As in `cuplate.CachePolicy`.
    network : bool
        Whether the directory lies on a network file system; SQLite never runs there, whatever is asked for.
    """
    if network or engine == "files":
        return "files"
    return "diskcache" if all(map(_installed, ("diskcache", "sqlite3", "_sqlite3"))) else "files"


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _local(directory: str) -> str | None:
    """A place on this node for the locks of a directory on a network, where locks may not hold or may block."""
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""), "/tmp"):
        if os.path.isabs(base) and os.path.isdir(base) and not is_network(base):
            user = os.getuid() if hasattr(os, "getuid") else 0
            return os.path.join(base, f"cuplate-{user}", f"{name}.flights")
    return None
