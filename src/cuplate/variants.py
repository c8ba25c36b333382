"""The variants of one function: from a plan to a cubin, through render, key, look-up and compile."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from typing import Any

from cuplate import cache, config, events
from cuplate.binding import Binding
from cuplate.cache.stats import HitCounter, count
from cuplate.compile import Obtained, obtain
from cuplate.content import Content, make_content
from cuplate.cubin import Cubin, decode
from cuplate.errors import DeclarationError, VariantWarning
from cuplate.key import difference
from cuplate.parameters import parameter_key
from cuplate.plan import Plan
from cuplate.specialization import Specialization

__all__ = ["Variants"]

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
                try_="cuplate.CachePolicy(memory_kernels=64)",
            )
        self.policy = policy
        self._lock = threading.Lock()
        self._contents: dict[Any, Content] = {}
        self._warned = False
        self._seen: dict[bytes, tuple[tuple[str, Any], ...]] = {}

    def __len__(self) -> int:
        return len({content.key.digest for content in tuple(self._contents.values())})

    def clear(self) -> None:
        """Forget what was rendered; stored cubins stay."""
        with self._lock:
            self._contents.clear()
            self._seen.clear()

    def store(self) -> cache.Store:
        """The disk tier of this function."""
        return cache.disk_tier(self.policy)

    def content(self, plan: Plan, *, current: bool = False) -> Content:
        """Source and key of a plan; rendered once for equal specializations.

        Parameters
        ----------
        plan : Plan
        current : bool
            True renders and keys anew if the headers have changed since: what is compiled now must not get the old key.

        Raises
        ------
        TemplateError, ToolchainError
        """
        rendered = _typed(plan.specialization)
        content = self._contents.get(rendered)
        if content is None or (current and not content.unchanged()):
            self.counter.cell.misses += 1
            content = make_content(self.binding, plan, memo=self.store())
            events.emit("render", self.name, key=content.key.hex)
            with self._lock:
                if len(self._contents) >= CONTENTS:
                    self._contents.clear()
                self._contents[rendered] = content
            self._note_variant(content, plan.specialization.parameters)
        return content

    def obtain(self, content: Content) -> Obtained:
        """The cubin from disk or compiler, counted and announced.

        Raises
        ------
        CompileError, ToolchainError
        """
        before = self.nearest(content) if config.settings().explain else None
        obtained = obtain(
            content.key,
            store=self.store(),
            build=lambda: _build(content),
            function=self.name,
            unchanged=content.unchanged,
        )
        cell = self.counter.cell
        if obtained.origin == "disk":
            cell.disk_hits += 1
            events.emit("hit", self.name, key=content.key.hex, tier="disk", seconds=obtained.lookup_s)
        else:
            cell.compiles += obtained.origin == "compile"
            events.emit("miss", self.name, key=content.key.hex, tier="disk", seconds=obtained.lookup_s)
        if before is not None:
            print(f"cuplate: {self.name}: {_told(obtained)}; {before}", file=sys.stderr)
        return obtained

    def nearest(self, content: Content) -> str:
        """Whether `content` is stored and, if not, what differs from the stored entry that is nearest."""
        if not content.key.storable:
            return f"never stored: {content.key.reason}"
        best: tuple[int, str] | None = None
        for key, payload in self.store().entries(self.name, limit=NEAREST):
            if key == content.key.digest:
                return f"hit: stored as {content.key.hex[:16]}"
            try:
                cubin = decode(payload)
            except ValueError:
                continue
            names = difference(cubin.ingredients, content.key.ingredients)
            told = _tell_difference(names, cubin, content)
            if best is None or len(names) < best[0]:
                best = (
                    len(names),
                    f"{told} differ{'s' if len(names) == 1 else ''} from the nearest stored entry {key.hex()[:16]}",
                )
        if self.store().get(content.key.digest, again=True) is not None:  # an old one, or another function's
            return f"hit: stored as {content.key.hex[:16]}"
        return f"miss: {best[1]}" if best else "miss: nothing is stored for this function"

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
    return f"compiled for {obtained.cubin.arch} in {obtained.compile_s * 1e3:.0f} ms"
