"""What a trial of candidates needs of the walk: kernels loaded beside the memory tier, launched again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuplate import config
from cuplate.backend import owners
from cuplate.call import Call
from cuplate.content import Content
from cuplate.cubin import Cubin
from cuplate.errors import LaunchError
from cuplate.grid import Limits
from cuplate.plan import Plan
from cuplate.specialization import Fact
from cuplate.variants import Variants

if TYPE_CHECKING:
    from cuplate.autotune.workspace import Bench
    from cuplate.backend.cpu.device import Target
    from cuplate.walk import Walk

__all__ = ["Stage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the candidates of one call run.

    Attributes
    ----------
    walk : Walk
    backend : module
        ``cuplate.backend.cuda.device``, or its counterpart for the CPU.
    call : Call
        The call itself, not the copy of it that candidates run on.
    limits : Limits
    variants : Variants
    stream : int
        Pointer of the launch stream.
    target : Target or None
        Of the CPU backend.
    facts : frozenset of Fact
        Layout facts that kernels of this function may read.
    """

    walk: Walk
    backend: Any
    call: Call
    limits: Limits
    variants: Variants
    stream: int
    target: Target | None
    facts: frozenset[Fact]

    @property
    def _number(self) -> int:
        assert self.call.device is not None
        return self.call.device[1]

    @property
    def _order(self) -> int | None:
        return self.stream if self.call.values.get("stream") is not None else None

    def finish(self, plan: Plan, content: Content, entry: Any) -> Any:
        """A loaded kernel, checked against its plan.

        Raises
        ------
        LaunchError
        """
        if self.target is not None:
            assert plan.grid is not None
            self.backend.check(plan.grid, self.variants.name)
        return self.walk.finish(self.backend, self.limits, self._number, plan, content, entry, self.variants, {})

    def load(self, cubin: Cubin) -> Any:
        """Load a kernel, which lives as long as who asked keeps it."""
        return self.backend.load(cubin, self._number)

    def bench(self) -> Bench:
        """Memory and times on the device of the call."""
        if self.target is not None:
            from cuplate.backend.cpu import bench as cpu

            return cpu.Bench()
        from cuplate.backend.cuda import bench as cuda

        return cuda.Bench(self.call.owner, self._number, self.stream, self._order)

    def launcher(self, call: Call, ready: Any) -> Callable[[], object]:
        """What launches a plan on the arrays of `call` once; keeps the kernel, and its scratch."""
        return self._on_gpu(call, ready) if self.target is None else self._on_host(call, ready)

    def _on_gpu(self, call: Call, ready: Any) -> Callable[[], object]:
        owner: Any = call.owner
        gpu = self.backend
        arrays = {name: array for name, array in call.arrays.items() if array is not None}
        kept = []
        for name, size, dtype in ready.plan.scratch:
            kept.append(owner.empty((size,), dtype, self._number, self._order))
            arrays[name] = owner.describe(name, kept[-1], self.variants.name)
        pointers = {name: array.pointer for name, array in arrays.items()}
        with gpu.run_on(self._number):  # a tensor map is made here
            values = [self.walk.value_of(recipe, pointers, call.values) for recipe in ready.recipes]
        zeroed = [(pointers[n], arrays[n].size * arrays[n].itemsize) for n in ready.plan.zeroed]
        stream = gpu.stream_of(self.stream)
        launch = gpu.launch_packed if self.walk.packed else gpu.launch
        settings, kernel = ready.config, ready.entry.value.kernel

        def run(scratch: Sequence[Any] = kept) -> None:
            for pointer, size in zeroed:
                gpu.zero(pointer, size, stream)
            try:
                launch(stream, settings, kernel, *values)
            except Exception as error:
                raise LaunchError(f"the launch was refused: {error}") from error

        return run

    def _on_host(self, call: Call, ready: Any) -> Callable[[], object]:
        owner: Any = call.owner
        scratch = {n: owner.empty((size,), d, owners.HOST, None) for n, size, d in ready.plan.scratch}
        fresh = {name: None for name, _, _ in ready.plan.outputs if name not in self.call.outputs}
        settings = config.cpu_settings()

        def run() -> None:
            values = self.walk.host_values(call, ready, fresh, scratch, self.facts)  # zeroes what is to be zeroed
            self.walk.run_on_host(ready, values, settings, lambda: call.called_as(self.variants.name), scratch)

        return run
