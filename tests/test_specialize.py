"""The decorator's own part: it returns the user's function, dressed, and says no early."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, DeclarationError, Inline, specialize
from cuplate.typing import Specialized

SRC = Path(__file__).parents[1] / "src"
OURS = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {}')


@specialize(OURS)
def twice(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """The doc."""
    return 2 * x


def test_the_body_is_the_reference_and_never_run_by_a_call() -> None:
    """`f.reference` is the function as written, on any array library."""
    assert twice.reference.__name__ == "twice"
    assert (twice.reference(np.arange(3.0)) == [0, 2, 4]).all()
    assert twice.reference is twice.__wrapped__  # type: ignore[attr-defined]


def test_the_attributes_of_specialized_are_there() -> None:
    """Every public name of the protocol, at run time."""
    names = [n for n in (*vars(Specialized), *Specialized.__annotations__) if not n.startswith("_")]
    assert set(names) >= {
        "reference",
        "template",
        "inspect",
        "compile",
        "explain",
        "cache_info",
        "cache_clear",
        "cache_policy",
        "reload",
    }
    assert all(hasattr(twice, name) for name in names)
    assert twice.template == "<inline>"


def test_attributes_of_the_users_function_survive() -> None:
    """As functools.wraps has it."""

    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]: ...

    f.mark = 3  # type: ignore[attr-defined]
    assert specialize(OURS)(f).mark == 3  # type: ignore[attr-defined]


def test_one_decorator_may_dress_several_functions() -> None:
    """Each with plans of its own."""
    dress = specialize(OURS)

    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]: ...

    def g(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Float32[Array, " N"]: ...

    one, two = dress(f), dress(g)
    assert list(inspect.signature(one).parameters) == ["x"] and list(inspect.signature(two).parameters) == ["x", "y"]
    assert one.__globals__["_plans"] is not two.__globals__["_plans"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("thing", [3, "f", print, len, object(), staticmethod(lambda x: x)])
def test_only_functions_are_decorated(thing: Any) -> None:
    """Anything else is a DeclarationError with what was given."""
    with pytest.raises(DeclarationError):
        specialize(OURS)(thing)


def test_the_decorator_needs_a_template() -> None:
    """Used without parentheses it gets the function as its template, and says so."""
    with pytest.raises(DeclarationError, match="@specialize needs a template") as caught:

        @specialize  # type: ignore[arg-type]
        def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]: ...

    assert caught.value.facts["try_"] == '@specialize("kernel.cu.j2")'


def test_templates_beside_a_module_are_found_from_anywhere(tmp_path: Path) -> None:
    """The folder of the module that decorates decides, not the working directory."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "k.cu.j2").write_text(str(OURS.text))
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "mod.py").write_text(
        "from jaxtyping import Float32\nfrom cuplate import Array, specialize\n"
        "@specialize('k.cu.j2')\ndef k(x: Float32[Array, 'N']) -> Float32[Array, 'N']: ...\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{tmp_path}"}
    code = "import pickle, pkg.mod as m; assert pickle.loads(pickle.dumps(m.k)) is m.k; print(m.k.template)"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "k.cu.j2"), done.stderr


def test_a_call_without_a_gpu_and_a_compiler_is_a_plain_message_b63(monkeypatch: pytest.MonkeyPatch) -> None:
    """B63: only the call needs something that runs kernels; what would do is named."""
    import importlib.util
    import shutil

    from cuplate import ToolchainError
    from cuplate.backend.cpu import compilers, device

    monkeypatch.setattr(device, "_target", [])  # what an earlier test has found
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    compilers._find.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="needs a C\\+\\+ compiler") as caught:
            twice(np.zeros(3, np.float32))
    finally:
        compilers._find.cache_clear()
    assert "ziglang" in str(caught.value) and "g++" in str(caught.value)
