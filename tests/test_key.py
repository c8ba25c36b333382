"""The content key, as two tables: rows that must differ, rows that must not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cuplate.backend.protocol import Toolchain
from cuplate.headers import Closure
from cuplate.key import Key, difference, make
from cuplate.options import Options


@dataclass(frozen=True)
class Text:
    """A rendered source, as far as a key looks at it."""

    text: str = "__global__ void k() {}\n"
    entry: str = "k"
    function: str = "f"
    template_name: str = "k.cu.j2"
    parameters: tuple[tuple[str, object], ...] = (("tile", 16),)

    def text_with_lines(self) -> str:
        """The text with the template's line numbers."""
        return f'#line 7 "{self.template_name}"\n{self.text}'


NVRTC = Toolchain("nvrtc", "13.5", "13.5.37", ("sm_80", "sm_90"))
HEADER = ("a.h", "11" * 32)
BASE: dict[str, Any] = {
    "source": Text(),
    "options": Options(),
    "toolchain": NVRTC,
    "arch": "sm_90",
    "closure": Closure(),
    "program_key": b"\1" * 32,
    "checks": "",
}


def key(**changes: Any) -> Key:
    """The key of the base case with some of it changed."""
    return make(**{**BASE, **changes})


DIFFER = {
    "text": {"source": Text("__global__ void k() { }\n")},
    "kernel": {"source": Text(entry="k<1>")},
    "standard": {"options": Options("c++20")},
    "fast math": {"options": Options(fast_math=True)},
    "registers": {"options": Options(max_registers=64)},
    "macro": {"options": Options(define={"A": None})},
    "macro value": {"options": Options(define={"A": 1})},
    "other macro value": {"options": Options(define={"A": 2})},
    "line info": {"options": Options(line_info=True)},
    "debug": {"options": Options(debug=True)},
    "line info, another line": {"options": Options(line_info=True), "source": Text(template_name="other.cu.j2")},
    "bundled headers": {"options": Options(bundled_headers=True)},
    "B31 architecture 8.0": {"arch": "sm_80"},
    "B31 architecture 12.0": {"arch": "sm_120"},
    "B31 architecture 12.1": {"arch": "sm_121"},
    "B31 architecture-specific": {"arch": "sm_90a"},
    "B31 compiler": {"toolchain": replace(NVRTC, version="13.6", build="13.6.1")},
    "B31 compiler patch": {"toolchain": replace(NVRTC, build="13.5.38")},
    "another compiler": {"toolchain": replace(NVRTC, name="clang")},
    "header": {"closure": Closure((HEADER,))},
    "header content": {"closure": Closure((("a.h", "22" * 32),))},
    "header name": {"closure": Closure((("b.h", "11" * 32),))},
    "header twice": {"closure": Closure((HEADER, HEADER))},
    "absent header": {"closure": Closure((), ("a.h",))},
    "other absent header": {"closure": Closure((), ("b.h",))},
    "toolkit headers": {"closure": Closure(toolkit="11" * 32)},
    "parameter checks": {"checks": "static_assert(true);"},
    "program key": {"program_key": b"\2" * 32},
    "no program key": {"program_key": b""},
}

SAME: dict[str, dict[str, Any]] = {
    "function": {"source": Text(function="g")},
    "template name, without line info": {"source": Text(template_name="other.cu.j2")},
    "parameters that render alike": {"source": Text(parameters=(("epilogue", "relu"),))},
    "options spelled out": {"options": Options("C++17", fast_math=False, define={})},
    "include directories": {"options": Options(include=("/one", "/two"))},
    "an architecture more in the compiler": {"toolchain": replace(NVRTC, architectures=("sm_90",))},
    "bundled headers not wanted": {"options": Options(bundled_headers=False)},
}


@pytest.mark.parametrize("row", DIFFER)
def test_what_decides_the_cubin_decides_the_key(row: str) -> None:
    """A changed ingredient is another key, and going back is the old one."""
    assert key(**DIFFER[row]).digest != key().digest
    assert key().digest == key().digest


def test_no_two_rows_share_a_key() -> None:
    """All that differs from the base differs from each other."""
    assert len({key(**changes).digest for changes in DIFFER.values()}) == len(DIFFER)


@pytest.mark.parametrize("row", SAME)
def test_nothing_else_decides_the_key(row: str) -> None:
    """Names, directories and spellings make no other key."""
    assert key(**SAME[row]) == key()


def test_headers_that_change_places_change_the_key() -> None:
    """The order in which the compiler meets two headers of one name decides which of them counts."""
    one, two = ("a.h", "11" * 32), ("a.h", "22" * 32)
    assert key(closure=Closure((one, two))).digest != key(closure=Closure((two, one))).digest


def test_no_byte_moves_between_ingredients() -> None:
    """A macro's text in the name is not the text in the value."""
    split = [{"A": "B", "B": "C"}, {"A": "B; define B=C"}, {"A": "B define B=C"}, {"A": "B=C"}, {"A": "B", "BC": None}]
    assert len({key(options=Options(define=define)).digest for define in split}) == len(split)


def test_a_key_is_a_full_length_digest() -> None:
    """B04: 256 bits, shown as 64 digits, and of nothing that is not in the ingredients."""
    made = key()
    assert len(made.digest) == 32
    assert made.hex == made.digest.hex()
    assert dict(made.ingredients)["compiler"] == "nvrtc 13.5.37"
    assert dict(made.ingredients)["arch"] == "sm_90"


def test_an_unstorable_closure_makes_an_unstorable_key() -> None:
    """What the key cannot see must not be stored, and the reason travels."""
    made = key(closure=Closure(storable=False, reason="reads the clock"))
    assert (made.storable, made.reason) == (False, "reads the clock")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ()),
        ({"arch": "sm_80", "program_key": b"\2" * 32}, ("arch",)),
        ({"source": Text("x"), "program_key": b"\2" * 32}, ("source",)),
        ({"closure": Closure((HEADER,))}, ("header a.h",)),
        ({"closure": Closure((), ("late.h",))}, ("headers",)),
        ({"closure": Closure(toolkit="11" * 32)}, ("toolkit headers",)),
        ({"program_key": b""}, ("program key",)),
        ({"options": Options(fast_math=True), "arch": "sm_80"}, ("options", "arch")),
    ],
)
def test_a_miss_is_explained_by_what_changed(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    """The difference of two keys names the cause, and not what follows from it."""
    assert difference(key().ingredients, key(**changes).ingredients) == names


def test_a_changed_header_is_named() -> None:
    """Among several headers the one that changed is the explanation."""
    before = Closure((HEADER, ("b.h", "11" * 32)))
    after = Closure((HEADER, ("b.h", "22" * 32)))
    assert difference(key(closure=before).ingredients, key(closure=after).ingredients) == ("header b.h",)


def test_many_headers_are_one_digest() -> None:
    """A thousand headers do not make a long record."""
    many = Closure(tuple((f"h{i}.h", "11" * 32) for i in range(1000)))
    assert len(key(closure=many).ingredients) < 20
    assert key(closure=many).digest != key(closure=Closure(many.files[:-1])).digest


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_makes_the_same_key(seed: str) -> None:
    """B04: a process with another hash seed and another directory finds what this one stored."""
    code = (
        "from cuplate.backend.protocol import Toolchain; from cuplate.headers import Closure\n"
        "from cuplate.key import make; from cuplate.options import Options\n"
        "class T: text='__global__ void k() {}\\n'; entry='k'\n"
        "o=Options(define={'B': 1, 'A': 2}, fast_math=True)\n"
        "c=Closure((('a.h', '11' * 32),), ('z.h', 'y.h'))\n"
        "print(make(T, o, Toolchain('nvrtc', '13.5', '13.5.37', ()), 'sm_90', c, program_key=b'x').hex)"
    )
    here = key(
        options=Options(define={"A": 2, "B": 1}, fast_math=True),
        closure=Closure((HEADER,), ("z.h", "y.h")),
        program_key=b"x",
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (here.hex, "")
