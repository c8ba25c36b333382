"""What a call leaves open, settled: by the winner of a tuning, by a contest, or by the default."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cuplate import cache, config, debug, events
from cuplate.arguments import product
from cuplate.autotune.job import Job, Parameters
from cuplate.autotune.stage import Stage
from cuplate.autotune.tuned import Tried, Tuned
from cuplate.autotune.tuner import Part, Tuner
from cuplate.backend.protocol import DeviceFacts
from cuplate.call import Call
from cuplate.choice import Choice, Chosen
from cuplate.errors import ArgumentError, CaptureError, TuneError, TuneWarning

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import Target
    from cuplate.walk import Walk

__all__ = ["Settler"]


class Settler:
    """The tuned parameters of one function.

    Parameters
    ----------
    walk : Walk
        Of the function.
    reference : function
        As written by the user.

    Attributes
    ----------
    tuner : Tuner
        What is known of winners.
    """

    def __init__(self, walk: Walk, reference: Callable[..., Any]) -> None:
        self._walk = walk
        self.tuner = Tuner(reference)

    def settle(
        self,
        choice: Choice,
        call: Call,
        chosen: Chosen,
        facts: DeviceFacts,
        backend: Any,
        stream: int,
        target: Target | None,
    ) -> tuple[Parameters, bool]:
        """The parameters of a call, and whether the next one like it may take them as they are.

        Raises
        ------
        TuneError
            No candidate can run.
        """
        if _is_empty(call, chosen):
            return chosen.parameters, True
        job = self._job(choice, call, chosen, facts, target)
        resolved = self.tuner.resolve(
            job, self._stage(job, backend, stream), forbidden=lambda: self._forbidden(job, backend, stream)
        )
        if resolved.entry is not None:  # loaded for the contest: the call need not load it again
            content, kernel = resolved.entry
            assert call.device is not None
            key = content.key.digest, call.device[1]
            if cache.memory_tier().get(key, again=True) is None:
                cache.memory_tier().put(key, kernel)
        return resolved.parameters, resolved.kept

    def tune(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], executor: Any, sets: int | None) -> Tuned:
        """Measure the candidates for a call; see `cuplate.typing.Specialized.tune`."""
        walk = self._walk
        given, more, unknown = walk.inspection.named(args, kwargs)
        choice = walk.choice
        job, backend, stream = self._open(choice, walk.checked(choice, given, more, unknown))
        if job.target is None and _captured(backend, job.call, stream):
            raise CaptureError(
                "nothing can be measured in a graph capture.", function=walk.name, called_as=job.called_as
            )
        stage = self._stage(job, backend, stream)
        if executor is None:
            tuned = self.tuner.measured(job, stage)
        else:
            from cuplate.autotune.fleet import hold

            tuned = hold(walk.hot.function, self.tuner, job, stage, executor, given, sets)
        walk.forget_plans()
        return tuned

    def part(self, given: Mapping[str, Any], places: Sequence[int], texts: Sequence[str]) -> Part:
        """Measure some of the candidates for who collects the outcomes, see `cuplate.autotune.fleet.work`.

        Parameters
        ----------
        given : mapping
            Values of the call by name.
        places : sequence of int
            Which candidates.
        texts : sequence of str
            All of them, as the other process sees them.

        Raises
        ------
        TuneError
            There are other candidates here.
        """
        walk = self._walk
        choice = walk.choice
        job, backend, stream = self._open(choice, walk.checked(choice, given, (), {}))
        mine = tuple(str(Tried(job.free(candidate))) for candidate in job.chosen.candidates)
        if mine != tuple(texts):
            raise TuneError(
                "a worker has another version of the function, or a device with other limits.",
                function=walk.name,
                given=", ".join(texts),
                allowed=", ".join(mine),
            )
        return self.tuner.part(job, self._stage(job, backend, stream), places)

    def _open(self, choice: Choice, call: Call) -> tuple[Job, Any, int]:
        """What a call with real arrays leaves open, the backend, and the stream."""
        walk = self._walk
        assert call.device is not None
        backend: Any
        stream, target = 0, None
        if call.device[0] == "cpu":
            from cuplate.backend.cpu import device as backend

            target = backend.target(config.cpu_settings(), again=True)
            facts = backend.device_facts(target.arch)
        else:
            from cuplate.backend.cuda import device as backend

            stream = walk.stream_of(call, call.device[1])
            walk.wait_for_exports(call, stream)
            facts = backend.device_facts(call.device[1])
        chosen = choice.choose(call, arch=facts.arch, limits=facts.limits)
        if not chosen.candidates or _is_empty(call, chosen):
            raise ArgumentError(
                "there is nothing to tune.",
                function=walk.name,
                called_as=call.called_as(walk.name),
                try_="tune() as the default of a parameter, and a call that does not give it",
            )
        return self._job(choice, call, chosen, facts, target), backend, stream

    def _job(self, choice: Choice, call: Call, chosen: Chosen, facts: DeviceFacts, target: Target | None) -> Job:
        told = call.called_as(self._walk.name, without=choice.asked - call.given)
        return Job(self._walk.name, call, chosen, facts, target, told)

    def _stage(self, job: Job, backend: Any, stream: int) -> Stage:
        facts = self._walk.choice.facts
        return Stage(self._walk, backend, job.call, job.facts.limits, job.chosen.variants, stream, job.target, facts)

    def _forbidden(self, job: Job, backend: Any, stream: int) -> str | None:
        """Why nothing can be measured just now."""
        if job.target is not None:
            return None
        if debug.checking():
            return "CUPLATE_DEBUG=1"
        if not _captured(backend, job.call, stream):
            return None
        warnings.warn(
            f"cuplate: {job.function} runs untuned, with its default, in a graph capture, where nothing can be "
            "measured: call it once before.",
            TuneWarning,
            stacklevel=events.caller_depth(),
        )
        return "a graph capture"


def _is_empty(call: Call, chosen: Chosen) -> bool:
    """Whether there is nothing to measure: nothing that is written has an element, or something that is read has none.

    Then nothing is launched, or it is over at once, whatever is chosen.
    """
    outputs, mutates = chosen.solved.output_shapes, chosen.variants.binding.mutates
    sizes = {name: array.size for name, array in call.arrays.items() if array is not None}
    written = [*map(product, outputs.values()), *(sizes[name] for name in mutates if name in sizes)]
    read = [size for name, size in sizes.items() if name not in outputs and name not in mutates]
    return not any(written) or not all(read)


def _captured(gpu: Any, call: Call, stream: int) -> bool:
    assert call.device is not None
    with gpu.run_on(call.device[1]):
        return bool(gpu.is_capturing(stream) or gpu.joins_capture(stream))
