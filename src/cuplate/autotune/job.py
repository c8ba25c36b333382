"""One call that leaves parameters to tuning: its candidates, and what the fastest of them depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuplate.autotune.space import Space
from cuplate.autotune.tuned import ingredients_of, size_class
from cuplate.backend.protocol import NOWHERE, DeviceFacts
from cuplate.binding import Binding
from cuplate.call import Call
from cuplate.choice import Chosen
from cuplate.content import Content
from cuplate.indices import check_indices
from cuplate.plan import Plan, known_values, make_plan

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import Target

__all__ = ["Job", "Parameters", "render"]

Parameters = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One call that leaves parameters to tuning.

    Attributes
    ----------
    function : str
        The function that was called.
    call : Call
    chosen : Chosen
        What runs it, with its candidates.
    facts : DeviceFacts
    target : Target or None
        Of the CPU backend; None for a GPU.
    called_as : str
        The call, for messages.
    """

    function: str
    call: Call
    chosen: Chosen
    facts: DeviceFacts
    target: Target | None
    called_as: str

    @property
    def binding(self) -> Binding:
        """Of the function whose parameters are tuned."""
        return self.chosen.variants.binding

    @property
    def device(self) -> str:
        """Where it runs, in words that tell devices of another speed apart."""
        if self.facts.name == NOWHERE:
            return f"{self.facts.arch}, {NOWHERE}"
        if self.target is None:
            return f"{self.facts.name}, {self.facts.limits.sm_count} multiprocessors"
        return f"CPU, {self.facts.limits.sm_count} cores, check {self.target.check}"

    def sizes(self) -> tuple[tuple[str, str], ...]:
        """The class of the call's sizes."""
        space = self.space
        values = known_values(
            self.binding, self.chosen.solved, self.chosen.parameters, arch=self.facts.arch, limits=self.facts.limits
        )
        return size_class(space.key, values, exact=space.exact, static=self.binding.static)

    def ingredients(self) -> tuple[tuple[str, str], ...]:
        """What its winner depends on."""
        return ingredients_of(self.binding, self.chosen, self.call.arrays, self.sizes(), self.device, self.facts.arch)

    def free(self, candidate: Parameters) -> Parameters:
        """The tuned parameters of a candidate."""
        return tuple((name, value) for name, value in candidate if name in self.space.names)

    @property
    def space(self) -> Space:
        """What may be chosen."""
        space = self.binding.space
        assert space is not None
        return space

    @property
    def first(self) -> int:
        """Place of the default among the candidates, by identity: True equals 1."""
        return next(i for i, candidate in enumerate(self.chosen.candidates) if candidate is self.chosen.parameters)


def render(job: Job, candidate: Parameters, *, trial: bool = False) -> tuple[Plan, Content]:
    """Plan and text of a candidate.

    Raises
    ------
    CuplateError
        It cannot be launched, or rendered.
    """
    variants = job.chosen.variants
    plan = make_plan(
        variants.binding,
        job.chosen.solved,
        candidate,
        arch=variants.binding.options.target(job.facts.arch),
        limits=job.facts.limits,
        called_as=job.called_as,
    )
    content = variants.content(plan, target=job.target, current=True, trial=trial)
    check_indices(plan, content.source, content.slots, variants.binding.options)
    return plan, content
