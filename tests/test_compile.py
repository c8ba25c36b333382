"""One compile per key: look, join, compile, store; and what the compiler refused, said at the template's line."""

from __future__ import annotations

import os
import pickle
import re
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuplate import compile as compiling
from cuplate import cubin as cubins
from cuplate import events
from cuplate.compile import SOURCE_NAME, Flights, diagnose, not_defined, obtain
from cuplate.cubin import Cubin
from cuplate.errors import CacheWarning, CompileError, KernelNotFoundError
from cuplate.key import Key
from tests.doubles import rendered


def key(name: str = "k", *, storable: bool = True, reason: str | None = None) -> Key:
    """A key as `make` could have made it."""
    return Key(name.encode().ljust(32, b"."), (("kernel", name),), storable, reason)


def cubin(name: str = "k") -> Cubin:
    """What a compiler could have made."""
    return Cubin(code=b"\x7fELF" + name.encode(), entry=name, arch="sm_90", function="f")


class Store(dict[bytes, bytes]):
    """A tier that works."""

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:  # type: ignore[override]
        """What was put."""
        return super().get(key)

    def put(self, key: bytes, payload: bytes, *, tag: str) -> bool:
        """Keep it."""
        self[key] = payload
        return True


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved sources go where the test's own files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# --- look, compile, store --------------------------------------------------------------------------------------------


def test_a_miss_compiles_and_stores_and_the_next_is_a_hit() -> None:
    """MISS, then HIT, and the hit has the ingredients of the key."""
    store = Store()
    first = obtain(key(), store=store, build=cubin, function="f")
    second = obtain(key(), store=store, build=lambda: pytest.fail("compiled again"), function="f")
    assert (first.origin, second.origin) == ("compile", "disk")
    assert first.cubin == second.cubin
    assert second.cubin.ingredients == key().ingredients
    assert second.compile_s == second.store_s == 0.0


@pytest.mark.parametrize("payload", [b"", b"nonsense", cubins.encode(cubin())[:-1]])
def test_a_damaged_record_is_a_miss_and_is_replaced(payload: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """B21: first run recompiles with one log line, second run hits."""
    store = Store({key().digest: payload})
    assert obtain(key(), store=store, build=cubin, function="f").origin == "compile"
    assert obtain(key(), store=store, build=cubin, function="f").origin == "disk"
    assert "counts as a miss" in caplog.text


@pytest.mark.parametrize("code", [b"", b"PTX"])
def test_what_is_no_cubin_is_not_stored(code: bytes) -> None:
    """B22: a compiler that publishes nothing, or something else, is an error, and the next call compiles."""
    store = Store()
    broken = Cubin(code=code, entry="k", arch="sm_90", function="f")
    with pytest.raises(ValueError, match="not an ELF image"):
        obtain(key(), store=store, build=lambda: broken, function="f")
    assert store == {}
    assert obtain(key(), store=store, build=cubin, function="f").origin == "compile"


def test_a_failed_compile_is_not_stored_and_raises_again() -> None:
    """Every call gets the same error until the source is right; the error knows its key."""
    store, calls = Store(), []

    def build() -> Cubin:
        calls.append(1)
        raise CompileError("no", _log="log")

    for _ in range(2):
        with pytest.raises(CompileError, match="no") as caught:
            obtain(key(), store=store, build=build, function="f")
        assert caught.value.key == key().hex  # type: ignore[attr-defined]
        assert pickle.loads(pickle.dumps(caught.value)).key == key().hex
    assert (len(calls), store) == (2, {})


def test_an_unstorable_key_is_compiled_and_said_once() -> None:
    """What cannot be keyed works, in every process anew, with one warning that gives the reason."""
    store = Store()
    unstorable = key("u", storable=False, reason="it reads the clock (__TIME__)")
    with pytest.warns(CacheWarning, match="unstored is compiled in every process .* reads the clock"):
        obtain(unstorable, store=store, build=cubin, function="unstored")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert obtain(unstorable, store=store, build=cubin, function="unstored").origin == "compile"
    assert store == {}


def test_headers_that_changed_during_the_compile_are_not_stored() -> None:
    """The key says what the headers were; what was compiled may be newer."""
    store = Store()
    assert obtain(key(), store=store, build=cubin, function="f", unchanged=lambda: False).cubin.entry == "k"
    assert store == {}


def test_who_comes_late_looks_again() -> None:
    """B12: a thread that missed on disk just before another one stored finds it in its turn, and does not compile."""

    class Late(Store):
        def get(self, key: bytes, *, again: bool = False) -> bytes | None:  # type: ignore[override]
            if not self:
                self[b"asked"] = b""
                obtain(late, store=self, build=cubin, function="f")
                return None
            return super().get(key)

    late = key("late")
    assert obtain(late, store=Late(), build=lambda: pytest.fail("compiled"), function="f").origin == "disk"


def test_without_a_store_every_call_compiles() -> None:
    """No disk is not a fault."""
    assert [obtain(key(), store=None, build=cubin, function="f").origin for _ in range(2)] == ["compile"] * 2


def test_a_compile_is_told() -> None:
    """A subscriber hears of compiles, with key and seconds, and not of hits."""
    heard: list[events.Event] = []
    store = Store()
    with events.subscribe(heard.append, "compile"):
        for _ in range(2):
            obtain(key(), store=store, build=cubin, function="f")
    assert [(e.function, e.key) for e in heard] == [("f", key().hex)]
    assert (heard[0].seconds or 0) > 0


# --- threads ---------------------------------------------------------------------------------------------------------


def at_once(count: int, work: Callable[[int], object]) -> list[object]:
    """Results, or exceptions, of ``count`` threads released together."""
    barrier = threading.Barrier(count)

    def run(i: int) -> object:
        barrier.wait()
        try:
            return work(i)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_sixteen_threads_compile_one_key_once() -> None:
    """B12: one compile per key per process, however the threads fall."""
    for round_number in range(20):
        store, calls = Store(), []

        def build(calls: list[int] = calls) -> Cubin:
            calls.append(1)
            time.sleep(0.002)
            return cubin()

        got = at_once(16, lambda i, s=store, b=build: obtain(key(), store=s, build=b, function="f"))  # type: ignore[misc]
        origins = [getattr(g, "origin", g) for g in got]
        assert (len(calls), origins.count("compile")) == (1, 1), (round_number, origins)


def test_different_keys_overlap() -> None:
    """B12: eight keys compile side by side; a lock held over a compile would never let them meet."""
    meeting = threading.Barrier(8, timeout=30)

    def build() -> Cubin:
        meeting.wait()
        return cubin()

    got = at_once(8, lambda i: obtain(key(f"o{i}"), store=None, build=build, function="f"))
    assert [getattr(g, "origin", g) for g in got] == ["compile"] * 8


def test_all_waiters_get_the_same_error() -> None:
    """B12: one failing compile, each thread its own copy of one error, and a later call tries again."""
    calls, started = [], threading.Event()

    def build() -> Cubin:
        calls.append(1)
        started.wait(30)
        raise CompileError("no such type", function="f", _log="the log")

    def work(i: int) -> object:
        if i == 7:
            while not compiling._compiles._flights:
                time.sleep(0.001)
            time.sleep(0.1)  # the others are waiting by now, or will fail the count below
            started.set()
        return obtain(key("e"), store=None, build=build, function="f")

    got = at_once(8, work)
    assert {str(g) for g in got} == {"f: no such type"}
    assert {type(g) for g in got} == {CompileError}
    assert {getattr(g, "log", None) for g in got} == {"the log"}
    assert len({id(g) for g in got}) == 8
    assert len(calls) == 1
    assert obtain(key("e"), store=None, build=cubin, function="f").origin == "compile"


def test_an_interrupted_builder_hands_over() -> None:
    """Ctrl-C in the thread that compiles does not fail the ones that wait: one of them compiles."""
    building, waiting = threading.Event(), threading.Event()
    flights: Flights[str] = Flights()
    outcome: list[object] = []

    def interrupted() -> str:
        building.set()
        waiting.wait(30)
        raise KeyboardInterrupt

    def lead() -> None:
        try:
            flights.run("k", interrupted)
        except KeyboardInterrupt:
            outcome.append("interrupted")

    first = threading.Thread(target=lead)
    first.start()
    building.wait(30)
    second = threading.Thread(target=lambda: outcome.append(flights.run("k", lambda: "built")))
    second.start()
    waiting.set()
    for thread in (first, second):
        thread.join(30)
    assert sorted(map(str, outcome)) == ["('built', True)", "interrupted"]


def test_a_builder_that_asks_for_its_own_key_does_not_wait_for_itself() -> None:
    """Re-entrance in one thread works again rather than hang."""
    flights: Flights[str] = Flights()
    assert flights.run("k", lambda: flights.run("k", lambda: "inner")[0] + " outer") == ("inner outer", True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_during_a_compile_leaves_a_working_child() -> None:
    """The child has no thread that would finish the compile, and compiles itself."""
    building, finish = threading.Event(), threading.Event()

    def slow() -> Cubin:
        building.set()
        finish.wait(30)
        return cubin()

    thread = threading.Thread(target=lambda: obtain(key("fork"), store=None, build=slow, function="f"))
    thread.start()
    building.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child = os.fork()
    if child == 0:
        try:
            good = obtain(key("fork"), store=None, build=cubin, function="f").origin == "compile"
        finally:
            os._exit(0 if good else 1)
    status = [0, 0]
    for _ in range(1000):
        status = list(os.waitpid(child, os.WNOHANG))
        if status[0]:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    finish.set()
    thread.join(30)
    assert status == [child, 0]


# --- what the compiler refused ---------------------------------------------------------------------------------------


LOOP = """\
{% for i in range(tile) %}
__device__ int v{{ i }};
{% endfor %}
extern "C" __global__ void k(int* a)
{
    a[0] = v0 + oops;
}
"""


def refusal(line: int, message: str, shown: str = "", caret: int = 0, file: str = SOURCE_NAME) -> str:
    """A log with one error, as NVRTC words it."""
    pointer = f"  {shown}\n  {' ' * caret}^\n" if shown else ""
    return f'{file}({line}): error: {message}\n{pointer}\n1 error detected in the compilation of "{SOURCE_NAME}".\n\0'


def test_an_error_points_at_the_template() -> None:
    """B51: template line (not rendered line), excerpt, caret, parameters, log and saved source are in the message."""
    source = rendered(LOOP, tile=3)
    line = source.text.split("\n").index("    a[0] = v0 + oops;") + 1
    error = diagnose(
        refusal(line, 'identifier "oops" is undefined', "    a[0] = v0 + oops;", 16), source, key="ab" * 32
    )
    text = str(error)
    assert text.startswith('f: the compiler refused the rendered source: identifier "oops" is undefined\n')
    assert error.template.endswith(":6")  # type: ignore[attr-defined]
    assert "> 6 |     a[0] = v0 + oops;" in text
    assert re.search(r"a\[0\] = v0 \+ oops;\n +\^\n", text)
    assert "tile=3" in text
    assert f"{error.template}: error: identifier" in text  # type: ignore[attr-defined]
    assert "/dev/null" not in text
    assert Path(error.saved).read_text() == source.text  # type: ignore[attr-defined]
    assert error.saved in text  # type: ignore[attr-defined]


def test_the_facts_are_attributes_and_travel() -> None:
    """Source, log, options and key can be had from the error, also after pickling."""
    source = rendered(LOOP, tile=1)
    log = refusal(1, "no")
    error = diagnose(log, source, options=("std=c++17",), key="cd" * 32)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (one.source, one.log, one.options, one.key) == (source.text, log, ("std=c++17",), "cd" * 32)
        assert str(one) == str(error)


def test_with_line_info_the_compiler_names_the_template_itself() -> None:
    """A template line in the log is shown with its excerpt all the same."""
    source = rendered(LOOP, tile=1)
    name = source.origin(source.text.count("\n")).template  # type: ignore[union-attr]
    error = diagnose(refusal(6, "no", file=name), source)
    assert "> 6 |     a[0] = v0 + oops;" in str(error)


def test_an_error_in_a_header_names_the_header() -> None:
    """What is wrong in a user's header is not blamed on the template."""
    error = diagnose(refusal(12, "expected a declaration", file="/inc/sub/a.h"), rendered(LOOP, tile=1))
    assert "/inc/sub/a.h:12" in str(error)


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ('identifier "__half" is undefined', "#include <cuda_fp16.h>"),
        ('identifier "half2" is undefined', "#include <cuda_fp16.h>"),
        ('identifier "__nv_bfloat16" is undefined', "#include <cuda_bf16.h>"),
        ('identifier "__nv_fp8_e4m3" is undefined', "#include <cuda_fp8.h>"),
        ('identifier "uint32_t" is undefined', "#include <cuda/std/cstdint>"),
        ('name followed by "::" must be a class or namespace name', None),
        ('identifier "FLT_MAX" is undefined', "numeric_limits<float>::max(), of #include <cuda/std/limits>"),
        ('namespace "std" has no member "min"', "min without std::"),
        ("'INFINITY' was not declared in this scope", "CUDART_INF_F, of #include <math_constants.h>"),
        ("use of undeclared identifier 'INFINITY'", "CUDART_INF_F, of #include <math_constants.h>"),
        ("'uint' does not name a type", "unsigned int"),
        ("unknown type name 'uint32_t'", "#include <cuda/std/cstdint>"),
        ("'min' is not a member of 'std'", "min without std::"),
        ("no member named 'min' in namespace 'std'", "min without std::"),
        ('cannot open source file "cfloat": Not a directory', "of #include <cuda/std/limits> (NVRTC has no"),
        ("<cmath> is not available on the CPU backend, which has cuda_fp16.h", "no header: sqrt, exp"),
        ("<my.h> is not available on the CPU backend, which has cuda_fp16.h", None),
        ('identifier "tile" is undefined', "{{ tile }}: a parameter reaches the text only in double braces"),
        ('cannot open source file "my/x.cuh": Not a directory', 'include="directory of x.cuh") (searched: /inc)'),
        ('could not open source file "cuda_fp16.h" (no directories in search list)', "install it (searched: /inc)"),
        ("calling a __host__ function from a __global__ function is not allowed", "__device__ in front"),
    ],
)
def test_what_newcomers_meet_gets_a_hint(message: str, hint: str | None) -> None:
    """The usual mistakes say what to try."""
    error = diagnose(refusal(1, message), rendered(LOOP, tile=1), directories=[Path("/inc")], install="install it")
    assert (hint is None and error.facts["try_"] is None) or hint in error.facts["try_"]


def test_the_telling_error_of_a_line_is_the_summary() -> None:
    """An unknown type makes three errors on its line before it is named; the summary is the one that names it."""
    log = refusal(1, 'attribute "__global__" does not apply here') + refusal(1, 'identifier "__half" is undefined')
    assert diagnose(log, rendered(LOOP, tile=1)).summary.endswith('identifier "__half" is undefined')


def test_the_assembler_is_understood() -> None:
    """Too much static shared memory is said in decimal, with the way out."""
    figures = "(0xc3500 bytes, 0xc000 max)"
    log = f"ptxas info    : 0 bytes gmem\n\0ptxas error   : Entry function 'k' uses too much shared data {figures}\n"
    error = diagnose(log, rendered(LOOP, tile=1))
    assert "800000 bytes are declared, 49152 are allowed" in str(error)


def test_a_log_without_an_error_is_shown_as_it_is() -> None:
    """Whatever a compiler says, its last line is the summary."""
    assert "internal trouble" in diagnose("x\ninternal trouble\n", rendered(LOOP, tile=1)).summary
    assert "no reason" in diagnose("", rendered(LOOP, tile=1)).summary


def test_a_long_log_is_cut_in_the_message_only() -> None:
    """A hundred errors do not fill the screen; the attribute has them all."""
    log = "\n".join(refusal(1, f"error {i}") for i in range(100))
    error = diagnose(log, rendered(LOOP, tile=1))
    assert "more lines, see .log" in str(error)
    assert len(str(error).splitlines()) < 50
    assert error.log == log  # type: ignore[attr-defined]


NAME_MAP = "__nv_name_map(2): error: {}\n  #pragma nv_mangled_name k\n                          ^\n"


def test_a_missing_kernel_lists_what_was_found() -> None:
    """B51: a kernel name that the render does not define."""
    source = rendered("__global__ void one() {}\n__global__ void two() {}\n")
    error = diagnose(NAME_MAP.format('identifier "k" is undefined'), source)
    assert isinstance(error, KernelNotFoundError)
    assert re.search(r"given +k\n +allowed +found: one, two\n", str(error))


def test_a_missing_kernel_with_one_candidate_is_offered() -> None:
    """With a single kernel in the source the message says how to name it."""
    error = diagnose(NAME_MAP.format('identifier "k" is undefined'), rendered("__global__ void one() {}\n"))
    assert 'entry="one", or name the kernel {{ kernel }} in the template' in str(error)


def test_a_template_needs_a_name_expression() -> None:
    """A C++ template named without its arguments is there, but is not one kernel."""
    source = rendered("template<int N> __global__ void k() {}\n")
    log = NAME_MAP.format('cannot determine which instance of function template "k" is intended')
    error = diagnose(log, source)
    assert isinstance(error, KernelNotFoundError)
    assert 'entry="k<...>"' in str(error)


def test_a_name_expression_of_what_is_not_included_says_the_header() -> None:
    """The kernel is there; what its name is made of is not."""
    log = NAME_MAP.format('identifier "__half" is undefined')
    error = diagnose(log, rendered("template<class T> __global__ void k() {}\n"))
    assert isinstance(error, KernelNotFoundError)
    assert error.try_ == "#include <cuda_fp16.h>"
    assert error.summary.endswith('does not know what the kernel\'s name names: identifier "__half" is undefined')


def test_a_declared_kernel_is_not_found() -> None:
    """A source that only declares its kernel has none."""
    error = not_defined(rendered("__global__ void k();\n"), log="")
    assert "found: no __global__ function at all" in str(error)


def test_a_mismatching_parameter_is_named_at_the_kernel() -> None:
    """What the checks refuse is said of the kernel's own list, at the line where it begins."""
    source = rendered('/* one\n two */\nextern "C" __global__ void k(\n    float* a, int n) {}\n')
    log = "".join(
        refusal(
            9 + i,
            f'static assertion failed with "cuplate: parameter {i} \\"{n}\\": a call passes double"',
            file="cuplate_checks",
        )
        for i, n in ((1, "a"), (2, "n"))
    )
    error = diagnose(log, source, checks="static_assert(...);")
    assert error.summary.endswith('parameter list does not match the call: parameter 1 "a": a call passes double')
    assert 'parameter 2 "n": a call passes double' in error.facts["given"]
    assert error.template.endswith(":3")  # type: ignore[attr-defined]


def test_the_saved_source_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode 0600, one file for one content; another's file under the name is left alone; a link is not followed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = compiling.save("text")
    assert path == compiling.save("text")
    assert [file.name for file in tmp_path.iterdir()] == [Path(path or "").name]
    assert stat.S_IMODE(os.stat(path or "").st_mode) == 0o600
    Path(path or "").write_text("planted")
    other = compiling.save("text")
    assert other != path
    assert (Path(path or "").read_text(), Path(other or "").read_text()) == ("planted", "text")
    Path(path or "").unlink()
    Path(path or "").symlink_to(tmp_path / "target")
    compiling.save("text")
    assert not (tmp_path / "target").exists()


def test_no_temp_directory_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be saved the error is complete but for the file."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    error = diagnose(refusal(1, "no"), rendered(LOOP, tile=1))
    assert error.saved is None  # type: ignore[attr-defined]
    assert "rendered to" not in str(error)
