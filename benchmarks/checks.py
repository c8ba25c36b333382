"""What each check of the hot path costs: the same call with one check left out, all in one process.

The generated code is taken as it is, one check is cut out of its text, and the rest runs on: the difference is what
that check costs. A call without its checks is right here, where every call is right; nowhere else. Then what a fact of
the kernel adds (alignment, a scalar, a second GPU), and what a call costs that is not hot.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float32
from measuring import Result, print_rows, ratio, read_options, skip_without_gpu, start, summary, time_bursts

from cuplate import Array, Inline, dispatch, f32, specialize

SIZE = 32
Call = Callable[[], Any]
KERNEL = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;  // tile {{ tile }}
    if (i < {{ N }} && {{ on }}) out[i] = {{ a }}[i] + {{ b }}[i] + {{ bias }}[i % {{ K }}];
}"""
AGAIN = r"\s*return _again\n"
CHECKS: dict[str, tuple[tuple[str, str], ...]] = {
    "overlap of out= with the inputs": ((rf" +if _low < .*:\n{AGAIN}", ""), (r" +_low = .*\n", "")),
    "out= is what the plan expects": ((rf" +elif \((?:.*\n)+?.*\):\n{AGAIN}", ""),),
    "capture: the kernel is kept": ((r" +if _stream_pointer and _is_capturing.*\n +_keep.*\n", ""),),
    "tick and count": ((r" +_entry\.tick = .*\n +_hits\..*\n", ""),),
    "layouts": ((r"\w+\._[cf]_contiguous, ", ""),),
    "dtypes": ((r"\w+\.dtype, ", ""),),
    "shapes": ((r"\w+\.ndim, (?:len\(\w+\), )?\w+\.size, ", ""), (r" and \w+\.ndim == \d and len\(\w+\) == \w+", "")),
    "parameters": ((r"\w+\.__class__, (\w+), (?=\w+\.__class__|\])", ""), (r" and (\w+) is _v_\1", "")),
    "identity of the arrays": ((r"\b_w_\w+\(\) is \w+ and ", ""),),
    "stream=, unknown names, listeners": ((r" and stream is None and not \(_more or _unknown or _listeners\)", ""),),
}
"""Check -> what is cut out of the generated text: pattern and replacement."""


def cut(text: str, check: str | None) -> str:
    """Generated text without one of its checks."""
    for pattern, replacement in CHECKS[check] if check else ():
        text = re.sub(pattern, replacement, text)
    return text


@contextmanager
def without(check: str | None) -> Iterator[list[bool]]:
    """Functions that are generated inside lack one check; yields whether each text was changed."""
    make = dispatch._make
    changed: list[bool] = []

    def make_cut(text: str, name: str, namespace: dict[str, Any]) -> Any:
        changed.append(cut(text, check) != text)
        return make(cut(text, check), name, namespace)

    dispatch._make = make_cut
    try:
        yield changed
    finally:
        dispatch._make = make


def bind(text: str = KERNEL) -> Any:
    """A function of its own: three arrays in, two parameters."""

    @specialize(Inline(text), tiles={"N": 256})
    def add(
        a: Float32[Array, "M N"],
        b: Float32[Array, "M N"],
        bias: Float32[Array, " K"],
        *,
        tile: int = 16,
        on: bool = True,
    ) -> Float32[Array, "M N"]:
        raise NotImplementedError

    return add


def main() -> int:
    options = read_options(
        __doc__,
        ("--rounds", {"type": int, "default": None, "help": "bursts of each contender (default 61, quick 9)"}),
        ("--calls", {"type": int, "default": 300, "help": "calls in a burst (default 300)"}),
    )
    result = start("checks", options)
    cupy = skip_without_gpu(result)
    if cupy is None:
        return result.finish(options)
    rounds = options.rounds or (9 if options.quick else 61)
    for varied in (True, False):
        cuts(result, cupy, rounds, options.calls, varied=varied)
    facts(result, cupy, rounds, options.calls)
    routes(result, cupy, rounds, options.calls)
    return result.finish(options)


def arrays(cupy: Any) -> tuple[Any, Any, Any, Any]:
    """Inputs and an output, small enough that the host is what is measured."""
    square = cupy.ones((SIZE, SIZE), dtype=cupy.float32)
    return square, square * 2, cupy.ones(SIZE, dtype=cupy.float32), cupy.empty_like(square)


def cuts(result: Result, cupy: Any, rounds: int, calls: int, *, varied: bool) -> None:
    """One row for each check: the call without it. `varied`: by key, with new array objects; else as a repeat."""
    kind = "new array objects" if varied else "same objects"
    whole = f"{kind}: whole"
    contenders: dict[str, Call] = {}
    for check in (None, *CHECKS):
        a, b, bias, out = arrays(cupy)
        with without(check) as changed:
            function = bind()
            for _ in range(3):
                function(a, b, bias, out=out)
        assert check is None or any(changed), f"{check}: nothing was cut out of the generated code"
        contenders[f"{kind}: without {check}" if check else whole] = caller(function, a, b, bias, out, varied=varied)
    tell(result, cupy, contenders, whole, rounds, calls)


def caller(function: Any, a: Any, b: Any, bias: Any, out: Any, *, varied: bool) -> Call:
    """The call as people write it."""
    inputs = itertools.cycle([a[:] for _ in range(3000)])

    def new_objects() -> Any:
        return function(next(inputs), b, bias, out=out)

    def same_objects() -> Any:
        return function(a, b, bias, out=out)

    return new_objects if varied else same_objects


def facts(result: Result, cupy: Any, rounds: int, calls: int) -> None:
    """What a fact that the kernel reads adds to the call of an empty one."""
    x = cupy.ones(256, dtype=cupy.float32)
    others = itertools.cycle([x[:] for _ in range(3000)])
    text = 'extern "C" __global__ void {{ kernel }}({{ args }}) { %s }'

    def empty(body: str = "") -> Any:
        @specialize(Inline(text.replace("%s", body)), mutates="x")
        def f(x: Float32[Array, " N"]) -> None:
            raise NotImplementedError

        return f

    @specialize(Inline(text.replace("%s", "")), mutates="x")
    def scalar(x: Float32[Array, " N"], alpha: f32) -> None:
        raise NotImplementedError

    plain, aligned = empty(), empty("{% if x.aligned(16) %}{% endif %}")
    with several_devices():
        several = empty()
        several(x)
    contenders: dict[str, Call] = {
        "empty kernel, one array": lambda: plain(next(others)),
        "its alignment is asked": lambda: aligned(next(others)),
        "and a float32 scalar": lambda: scalar(next(others), 0.1),
        "as on a machine with several GPUs": lambda: several(next(others)),
    }
    tell(result, cupy, contenders, "empty kernel, one array", rounds, calls)


@contextmanager
def several_devices() -> Iterator[None]:
    """Generate what is generated where there are several GPUs."""
    from cuplate.backend.cuda import device

    count = device.device_count
    device.device_count = lambda: 2
    try:
        yield
    finally:
        device.device_count = count


def routes(result: Result, cupy: Any, rounds: int, calls: int) -> None:
    """Calls that are not hot, against one that is; with ``CUPLATE_DEBUG=1`` each one waits for its kernel."""
    a, b, bias, out = arrays(cupy)
    function = bind()
    stream = cupy.cuda.get_current_stream()
    hot = caller(function, a, b, bias, out, varied=True)
    wide = cupy.ones((SIZE, 2 * SIZE), dtype=cupy.float32)

    strided = bind(KERNEL.replace("{{ a }}[i]", "{{ a }}[i * {{ a.stride(0) }}]"))

    def debugged() -> Any:
        os.environ["CUPLATE_DEBUG"] = "1"
        try:
            return function(a, b, bias, out=out, stream=stream)
        finally:
            del os.environ["CUPLATE_DEBUG"]

    contenders: dict[str, Call] = {
        "hot": hot,
        "stream= given": lambda: function(a, b, bias, out=out, stream=stream),
        "a view with gaps": lambda: strided(wide[:, :SIZE], b, bias, out=out),
    }
    tell(result, cupy, contenders, "hot", rounds, max(10, calls // 10))
    tell(result, cupy, {"CUPLATE_DEBUG=1": debugged}, "CUPLATE_DEBUG=1", rounds, max(10, calls // 10))


def tell(result: Result, cupy: Any, contenders: dict[str, Call], whole: str, rounds: int, calls: int) -> None:
    """Time, print and keep rows, each with its ratio to the whole call."""
    times = time_bursts(contenders, cupy.cuda.runtime.deviceSynchronize, rounds=rounds, calls=calls)
    rows = [summary(name, values, "us") for name, values in times.items()]
    print_rows(rows)
    for row in rows:
        found = ratio(times[row["name"]], times[whole])
        row["over_whole"] = round(found.median_of_rounds, 4)
        if row["name"] != whole:
            result.note(f"{row['name']}: {found.median_of_rounds:.3f} x {whole}")
    result.rows += rows


if __name__ == "__main__":
    sys.exit(main())
