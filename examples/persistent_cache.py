"""A kernel that is compiled once and found on disk by every later process.

Runs ``epilogue(a @ b + bias)``, says what came from the cache and what each step took, and checks the result against
float64 NumPy. Run it twice: the first run prints MISS, the second HIT, with no compile. Without a GPU the same kernel
runs on the CPU backend, with NumPy arrays and all of its checks on. With ``--arch`` it is compiled for that
architecture and not launched.

    python examples/persistent_cache.py --tile-size 32 --epilogue relu
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import cuplate
from cuplate.kernels import matmul_epilogue


def main() -> int:
    options = read_options()
    import cuda.core  # noqa: F401 - the first call would import both: now, so that its own cost is told apart
    import jinja2  # noqa: F401

    cuplate.configure(directory=options.cache_dir)  # None: the default directory
    if options.clear_cache:
        print(f"cleared             {cuplate.cache.clear()} entries")
    try:
        if options.arch:
            return compile_only(options)
        cupy, reason = find_gpu(options.device)
        return run(options, cupy) if cupy is not None else run_without_gpu(options, reason)
    except cuplate.CuplateError as error:
        print(error, file=sys.stderr)
    except MemoryError as error:  # CuPy's is one too
        print(f"the workload does not fit: {error}", file=sys.stderr)
    return 1


def run(options: argparse.Namespace, cupy: Any) -> int:
    """The whole walk on a GPU: 0 if the result is right."""
    cupy.cuda.Device(options.device).use()
    properties = cupy.cuda.runtime.getDeviceProperties(options.device)
    say("device", f"{options.device}, {properties['name'].decode()}")
    say("compute capability", f"{properties['major']}.{properties['minor']}")
    call, out = prepare(options, cupy)
    passed = check(options, out.get())
    milliseconds = kernel_ms(cupy, options, call)
    flops = 2 * options.m * options.n * options.k
    say("kernel time", f"{milliseconds:.4f} ms, mean of {options.iterations}, {flops / milliseconds / 1e9:.2f} TFLOP/s")
    return tell(passed)


def run_without_gpu(options: argparse.Namespace, reason: str) -> int:
    """The same walk on the CPU backend: 0 if the result is right."""
    say("device", f"the CPU: {reason}")
    call, out = prepare(options, np)
    passed = check(options, out)
    start = time.perf_counter()
    call()
    say("kernel time", f"{(time.perf_counter() - start) * 1e3:.1f} ms on the CPU backend, with all checks on")
    return tell(passed)


def prepare(options: argparse.Namespace, arrays: Any) -> tuple[Any, Any]:
    """The call, made once, and its output; what came from where is printed."""
    say_workload(options)
    a, b, bias = (arrays.asarray(x) for x in operands(options))
    out = arrays.full((options.m, options.n), arrays.nan, dtype=arrays.float32)  # what is not written is not right
    parameters: dict[str, Any] = {"tile": options.tile_size, "epilogue": options.epilogue}

    # A call does all of this by itself; inspect() goes first to show what came from where.
    start = time.perf_counter()
    report = matmul_epilogue.inspect(a, b, bias, **parameters)
    prepare_s = time.perf_counter() - start
    loads: list[float] = []
    with cuplate.subscribe(lambda event: loads.append(event.seconds or 0.0), kinds="load"):
        matmul_epilogue(a, b, bias, **parameters, out=out)
    say_report(report, prepare_s, load_s=sum(loads))
    return lambda: matmul_epilogue(a, b, bias, **parameters, out=out), out


def compile_only(options: argparse.Namespace) -> int:
    """What can be done for a GPU that is not here: render, compile, store, and tell."""
    say("device", f"none: --arch={options.arch} was given")
    say_workload(options)
    shapes = ((options.m, options.k), (options.k, options.n), (options.n,))
    a, b, bias = (cuplate.ArraySpec(shape, "float32") for shape in shapes)
    start = time.perf_counter()
    report = matmul_epilogue.inspect(a, b, bias, tile=options.tile_size, epilogue=options.epilogue, arch=options.arch)
    say_report(report, time.perf_counter() - start)
    print(f"\n{report}\n\nNothing was launched.")
    return 0


def find_gpu(device: int) -> tuple[Any, str]:
    """CuPy, if it is here and sees the device; else None and why not."""
    try:
        import cupy
    except ImportError as error:
        return None, f"CuPy cannot be imported ({error}); pip install 'cuplate[cuda13]'"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"no GPU ({error})"
    if device >= count:
        raise cuplate.DeviceError(
            "there is no such device.", given=f"--device {device}", allowed=f"0 to {count - 1}", try_="--device 0"
        )
    return cupy, ""


def operands(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random normal float32 matrices: the same at every run."""
    draw = np.random.default_rng(0).standard_normal
    m, n, k = options.m, options.n, options.k
    return draw((m, k), np.float32), draw((k, n), np.float32), draw(n, np.float32)


def check(options: argparse.Namespace, got: np.ndarray) -> bool:
    """Whether each element is within the bound of a float32 sum of K products.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    a, b, bias = (x.astype(np.float64) for x in operands(options))
    want = a @ b + bias
    if options.epilogue == "relu":
        want = np.maximum(want, 0)
    error = np.abs(got - want)
    bound = (options.k + 2) * 2.0**-24 * (np.abs(a) @ np.abs(b) + np.abs(bias))
    share = float((error / bound).max())
    say("largest error", f"{error.max():.3g}, {share:.2%} of the bound for float32 rounding at worst")
    return bool((error <= bound).all())  # a NaN never passes


def tell(passed: bool) -> int:
    print("PASSED" if passed else "FAILED")
    return 0 if passed else 1


def kernel_ms(cupy: Any, options: argparse.Namespace, call: Any) -> float:
    """Mean time of one launch between two events, milliseconds."""
    for _ in range(options.warmup):
        call()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(options.iterations):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end) / options.iterations)


def say(name: str, value: object) -> None:
    print(f"{name:<20}{value}")


def say_workload(options: argparse.Namespace) -> None:
    say("cache directory", cuplate.cache.info().directory or "none: kernels are kept in memory only")
    say("workload", f"{options.epilogue}(a[{options.m}, {options.k}] @ b[{options.k}, {options.n}] + bias), float32")
    say("tile", f"{options.tile_size} x {options.tile_size}")


def say_report(report: Any, prepare_s: float, load_s: float | None = None) -> None:
    """Where the kernel came from, and what each step took."""
    hit = report.origin == "disk"
    say("cache", "HIT" if hit else "MISS")
    say("key", report.key)
    say("artifact size", f"{len(report.cubin.code)} bytes, built for {report.arch} by {report.cubin.toolchain}")
    steps_s = report.lookup_s + report.compile_s + report.store_s
    say("render and key", f"{(prepare_s - steps_s) * 1e3:.2f} ms")
    say("look-up", f"{report.lookup_s * 1e3:.3f} ms")
    say("compile", "skipped" if hit else f"{report.compile_s * 1e3:.1f} ms")
    say("store", "skipped" if hit else f"{report.store_s * 1e3:.3f} ms")
    say("load", "skipped" if load_s is None else f"{load_s * 1e3:.3f} ms")
    say("host preparation", f"{(prepare_s + (load_s or 0)) * 1e3:.2f} ms, all of the above")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", type=whole(0), default=0, metavar="I", help="ordinal of the GPU (default 0)")
    for name, what in (("m", "rows of a"), ("k", "columns of a and rows of b"), ("n", "columns of b")):
        add(f"--{name}", type=whole(1), default=256, metavar=name.upper(), help=f"{what} (default 256)")
    add("--tile-size", type=int, choices=(16, 32), default=16, help="edge of a block's tile (default 16)")
    add("--epilogue", choices=("identity", "relu"), default="relu", help="applied to a @ b + bias (default relu)")
    add(
        "--cache-dir",
        type=directory,
        metavar="DIR",
        help="where compiled kernels are kept (default: your cache folder)",
    )
    add("--clear-cache", action="store_true", help="empty that cache first")
    add("--warmup", type=whole(0), default=5, metavar="N", help="launches before the timed ones (default 5)")
    add("--iterations", type=whole(1), default=100, metavar="N", help="timed launches (default 100)")
    add("--arch", metavar="SM", help="compile for this architecture and launch nothing")
    return parser.parse_args()


def whole(smallest: int) -> Any:
    """A reader of whole numbers from `smallest` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {smallest}")
        return value

    return read


def directory(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not text or (path.exists() and not path.is_dir()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return path


if __name__ == "__main__":
    sys.exit(main())
