"""The variants of one function: from a plan to a cubin, through render, key, look-up and compile."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cuplate import cache, config, events
from cuplate.binding import Binding
from cuplate.cache import fork
from cuplate.cache.counts import HitCounter, count
from cuplate.cache.listing import nearest
from cuplate.compile import Obtained, obtain, offer
from cuplate.content import Content, make_content
from cuplate.cubin import Cubin, encode
from cuplate.errors import DeclarationError, FrozenCacheError, VariantWarning
from cuplate.key import Key
from cuplate.parameters import parameter_key
from cuplate.plan import Plan
from cuplate.specialization import Specialization

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import Target

__all__ = ["Variants"]

T = TypeVar("T")

CONTENTS = 1024  # rendered specializations kept by one function; dropped whole at the limit
WARNED_AT = 64
NEAREST = 256  # stored entries that an explanation looks at


class Variants:
    """What one function has been rendered to.

    Parameters
    ----------
    binding : Binding
    counter : HitCounter
        Gets misses, disk hits and compiles.
    policy : CachePolicy or None
        The function's own; None for the process's.

    Attributes
    ----------
    debug : bool
        Whether calls of these check themselves; see `debugged`.
    """

    def __init__(self, binding: Binding, counter: HitCounter, policy: cache.CachePolicy | None) -> None:
        self.binding = binding
        self.name = binding.signature.function
        self.counter = counter
        if policy is not None and not isinstance(policy, cache.CachePolicy):
            raise DeclarationError(
                "policy= is a CachePolicy.",
                function=self.name,
                given=f"{policy!r:.60}",
                try_="cuplate.CachePolicy(disk_bytes=1 << 30)",
            )
        self.policy = policy
        self._lock = threading.RLock()  # a handler of a signal may call while we hold it
        fork.register(self)
        self._contents: dict[Any, Content] = {}
        self._warned = False
        self._seen: dict[bytes, tuple[tuple[str, Any], ...]] = {}
        self._debugged: Variants | None = None
        self.debug = False

    def debugged(self) -> Variants:
        """These as ``CUPLATE_DEBUG=1`` compiles them: with line info, which is a part of the key."""
        with self._lock:
            if self._debugged is None:
                binding = replace(self.binding, options=self.binding.options.replace(line_info=True))
                self._debugged = Variants(binding, self.counter, self.policy)
                self._debugged.debug = True
            return self._debugged

    def before_fork(self) -> None:
        """Nothing: what the lock guards is whole between any two steps."""

    def after_fork(self, *, child: bool) -> None:
        """A child's lock is a new one: a thread that is gone may hold the old."""
        if child:
            self._lock = threading.RLock()

    def __len__(self) -> int:
        debugged = len(self._debugged) if self._debugged is not None else 0
        return len({content.key.digest for content in tuple(self._contents.values())}) + debugged

    def clear(self) -> None:
        """Forget what was rendered; stored cubins stay."""
        with self._lock:
            self._contents.clear()
            self._seen.clear()
            self._debugged = None

    def store(self) -> cache.Tier | cache.NoStore:
        """The disk tier of this function."""
        return cache.disk_tier(self.policy)

    def distant(self) -> cache.SharedTier | None:
        """The shared tier of this function."""
        return cache.shared_tier(self.policy)

    def cache_policy(self) -> cache.EffectivePolicy:
        """What holds for this function now, with the source of every value."""
        return cache.current_policy(self.policy)

    def content(
        self,
        plan: Plan,
        *,
        target: Target | None = None,
        current: bool = False,
        listed: bool = False,
        trial: bool = False,
    ) -> Content:
        """Source and key of a plan; rendered once for equal specializations.

        Parameters
        ----------
        plan : Plan
        target : Target or None
            Of the CPU backend; None for a GPU.
        current : bool
            True renders and keys anew if the headers have changed since: what is compiled now must not get the old key.
        listed : bool
            True for an entry of a manifest: it was asked for by name, so many are no sign of a value that varies.
        trial : bool
            True for a candidate of a tuning: no call has asked for it, so it is no miss, and no sign of many variants.

        Raises
        ------
        TemplateError, ToolchainError
        """
        rendered = _typed(plan.specialization), target
        content = self._contents.get(rendered)
        if content is None or (current and not content.unchanged()):
            self.counter.cell.misses += not trial
            content = make_content(self.binding, plan, memo=self.store(), target=target)
            events.emit("render", self.name, key=content.key.hex)
            with self._lock:
                if len(self._contents) >= CONTENTS:
                    self._contents.clear()
                self._contents[rendered] = content
            if not (listed or trial):
                self._note_variant(content, plan.specialization.parameters)
        return content

    def obtain(self, content: Content) -> Obtained:
        """The cubin from disk or compiler, counted and announced.

        Frozen, what layers have from another compiler than the one that is here will do: nothing is compiled, so that
        one decides nothing.

        Raises
        ------
        CompileError, ToolchainError
        FrozenCacheError
            It would have to be compiled, and the policy is frozen.
        """
        before = self.nearest(content) if config.settings("explain").explain else None
        try:
            obtained = self._obtain(content, content.key)
        except FrozenCacheError:
            shipped = content.shipped(self.store()) if content.key.storable else None
            if shipped is None or shipped.digest == content.key.digest:
                raise
            obtained = self._obtain(content, shipped)
        cell = self.counter.cell
        if obtained.origin == "disk":
            cell.disk_hits += 1
            events.emit("hit", self.name, key=content.key.hex, tier="disk", seconds=obtained.lookup_s)
        elif obtained.origin == "shared":
            cell.shared_hits += 1
            events.emit("miss", self.name, key=content.key.hex, tier="disk")
            events.emit("hit", self.name, key=content.key.hex, tier="shared", seconds=obtained.lookup_s)
        else:
            cell.compiles += obtained.origin == "compile"
            events.emit("miss", self.name, key=content.key.hex, tier="disk", seconds=obtained.lookup_s)
        if before is not None:
            print(f"cuplate: {self.name}: {_told(obtained)}; {before}", file=sys.stderr)
        return obtained

    def _obtain(self, content: Content, key: Key) -> Obtained:
        return obtain(
            key,
            store=self.store(),
            build=lambda: self._build(content),
            function=self.name,
            unchanged=content.unchanged,
            distant=self.distant,
        )

    def load(self, content: Content, load: Callable[[Cubin], T]) -> tuple[T, float]:
        """What `load` makes of the cubin, and the seconds it took.

        A stored cubin that it refuses is removed, and compiled once more: the store may be at fault.

        Raises
        ------
        CompileError, ToolchainError, FrozenCacheError
        LaunchError
            The driver refuses what was compiled just now.
        """
        obtained = self.obtain(content)
        start = time.perf_counter()
        try:
            return load(obtained.cubin), time.perf_counter() - start
        except Exception as error:
            if obtained.origin not in ("disk", "shared") or self.cache_policy().frozen:
                raise
            events.say(f"cuplate: {self.name}: a stored cubin was refused and is compiled again: {error}")
        store = self.store()
        store.delete(content.key.digest)
        built = self._build(content).with_ingredients(content.key.ingredients)
        start = time.perf_counter()
        loaded, seconds = load(built), time.perf_counter() - start
        if content.key.storable and content.unchanged():
            store.put(content.key.digest, encode(built), tag=self.name)
            if obtained.origin == "shared" and (away := self.distant()) is not None:
                offer(content.key, built, away, replace=True)
        return loaded, seconds

    def _build(self, content: Content) -> Cubin:
        if self.cache_policy().frozen:
            raise self._frozen(content)
        return _build(content)

    def _frozen(self, content: Content) -> FrozenCacheError:
        """Nothing is compiled: what is missing, and what is there instead."""
        policy = self.cache_policy()
        searched = (policy.directory or "no directory", *self._layers(), policy.shared_place())
        return FrozenCacheError(
            "the cache is frozen and does not hold this kernel.",
            function=self.name,
            template=self.binding.template.name,
            kernel=content.source.entry,
            parameters=content.parameters_text or "none",
            arch=content.arch,
            key=content.key.hex,
            nearest=self.nearest(content).removeprefix("miss: "),
            searched=", ".join(map(str, filter(None, searched))),
            frozen_by=policy.source("frozen"),
            try_="a run without frozen that fills the cache, or frozen=False",
        )

    def _layers(self) -> list[str]:
        return [layer.directory for layer in getattr(self.store(), "layers", ())]

    def nearest(self, content: Content) -> str:
        """Whether `content` is stored and, if not, what differs from the stored entry that is nearest."""
        if not content.key.storable:
            return f"never stored: {content.key.reason}"
        found = nearest(content.key.ingredients, self.store().entries(self.name, limit=NEAREST))
        # One that is not among those may be an old one, or another function's.
        if (found is not None and not found[2]) or self.store().peek(content.key.digest) is not None:
            return f"hit: stored as {content.key.hex[:16]}"
        if found is None:
            return "miss: nothing is stored for this function"
        key, cubin, names = found
        told = _tell_difference(names, cubin, content)
        return f"miss: {told} differ{'s' if len(names) == 1 else ''} from the nearest stored entry {key.hex()[:16]}"

    def _note_variant(self, content: Content, parameters: tuple[tuple[str, Any], ...]) -> None:
        """Warn once about a function that is rendered again and again, and then remember no more of it."""
        with self._lock:
            if self._warned:
                return
            self._seen[content.key.digest] = parameters
            if len(self._seen) < WARNED_AT:
                return
            self._warned, seen = True, list(self._seen.values())
            self._seen.clear()
        counts = {name: len({parameter_key(p[i][1]) for p in seen}) for i, (name, _) in enumerate(parameters)}
        name = max(counts, key=counts.__getitem__, default=None)
        what = f"the parameter {name!r} has taken {counts[name]} values" if name else "its sizes vary"
        warnings.warn(
            f"cuplate: {self.name} has been rendered in {WARNED_AT} variants: {what}. A value that changes from call "
            "to call belongs before the *, as a run-time argument.",
            VariantWarning,
            stacklevel=events.caller_depth(),
        )


def _build(content: Content) -> Cubin:
    """One counted compile; only the thread that leads one gets here."""
    start = time.perf_counter()
    try:
        cubin = content.build()
    except BaseException:
        count("compile", errors=1, seconds=time.perf_counter() - start)
        raise
    count("compile", compiles=1, written_bytes=len(cubin.code), seconds=time.perf_counter() - start)
    return cubin


def _typed(specialization: Specialization) -> Any:
    """What renders alike: equality of the values alone would take ``True`` for ``1`` and ``-0.0`` for ``0.0``."""
    return specialization, tuple(parameter_key(value) for _, value in specialization.parameters)


def _tell_difference(names: tuple[str, ...], cubin: Cubin, content: Content) -> str:
    """The ingredients that differ, with the values where they are short."""
    theirs, ours = dict(cubin.ingredients), dict(content.key.ingredients)
    told = []
    for name in names:
        if name == "program key":
            continue  # follows from the others
        a, b = theirs.get(name, "nothing"), ours.get(name, "nothing")
        if name == "source" and cubin.parameters_text != content.parameters_text:
            told.append(f"source ({cubin.parameters_text} -> {content.parameters_text})")
        else:
            told.append(name if len(a) + len(b) > 80 else f"{name} ({a} -> {b})")
    return ", ".join(told) or "program key"


def _told(obtained: Obtained) -> str:
    if obtained.origin == "disk":
        return f"loaded from disk in {obtained.lookup_s * 1e3:.1f} ms"
    if obtained.origin == "shared":
        return f"loaded from the shared tier in {obtained.lookup_s * 1e3:.1f} ms"
    return f"compiled for {obtained.cubin.arch} in {obtained.compile_s * 1e3:.0f} ms"
