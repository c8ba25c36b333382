"""Calls of 2**31 elements and more: a text whose 32-bit indices cannot reach them all is refused.

The integers that cuplate prints are 64-bit ones then. What the template writes around them is its own affair, and an
overflow in it gives a wrong result without a word: this is the one place that reads C++ for what it computes. It knows
two kinds of fault, refuses nothing below their sizes, and takes whatever it cannot make out for right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cuplate.cxx import blank, splice
from cuplate.errors import LaunchError
from cuplate.options import Options
from cuplate.plan import Plan
from cuplate.render import Source
from cuplate.specialization import Slot

__all__ = ["check_indices"]

INT, UNSIGNED = 1 << 31, 1 << 32
# A word or a literal that brings 64 bits in; what a header defines cannot be seen.
_WIDE = re.compile(r"\blong\b|\w*(?:64|size|ptr|ptrdiff)_t\b|\b\d[\da-fA-FxX']*[uU]?[lL]|^\s*#\s*include", re.MULTILINE)
_UNSIGNED = re.compile(r"\b(?:unsigned|auto|uint\w*)\b")
_INT = re.compile(r"\bint\b")
_BLOCK, _NUMBER = r"blockDim\.([xyz])", r"(\d+)(?![\w'.])"
_PRODUCT = re.compile(rf"(\S?)\s*\b(blockIdx|gridDim)\.([xyz])\s*\*\s*(?:{_BLOCK}|{_NUMBER})")
_TURNED = re.compile(rf"(\S?)\s*(?<![\w.])(?:{_BLOCK}|{_NUMBER})\s*\*\s*(blockIdx|gridDim)\.([xyz])")


def check_indices(plan: Plan, source: Source, slots: Sequence[Slot], options: Options) -> None:
    """Refuse a call whose elements the kernel's own arithmetic cannot number.

    Parameters
    ----------
    plan : Plan
    source : Source
        What it is rendered to.
    slots : sequence of Slot
        The kernel's parameter list.
    options : Options
        For its macros.

    Raises
    ------
    LaunchError
        ``blockIdx.x * blockDim.x`` without a cast, on a grid of more than 2**32 threads on that axis; or no 64-bit
        integer at all, and an array of more than 2**31 elements.
    """
    if plan.grid is None or (plan.elements <= INT and max(_threads(plan)) < UNSIGNED):
        return
    text = blank(splice(source.text), literals=True)
    for written, reach in _products(text, plan):
        if reach >= UNSIGNED:
            raise LaunchError(
                f"{written} is a product of 32-bit integers, and {reach} does not fit it.",
                function=source.function,
                template=source.template_name,
                given=f"grid {plan.grid.grid}, block {plan.grid.block}",
                allowed=f"products below {UNSIGNED}",
                try_=f"({{{{ index_t }}}}){written}",
            )
    limit = _most_elements(text, slots, options)
    if plan.elements > limit:
        raise LaunchError(
            f"an array of {plan.elements} elements, and the kernel has no 64-bit integer to number them with.",
            function=source.function,
            template=source.template_name,
            given=f"{plan.elements} elements",
            allowed=f"{limit} elements",
            try_="{{ index_t }} for the kernel's indices: int, or long long where an array needs it",
        )


def _threads(plan: Plan) -> list[int]:
    assert plan.grid is not None
    return [blocks * threads for blocks, threads in zip(plan.grid.grid, plan.grid.block, strict=True)]


def _products(text: str, plan: Plan) -> Iterator[tuple[str, int]]:
    """Each product of a block's place and a number of threads that no cast has widened, and its largest value."""
    assert plan.grid is not None
    found = [(m[1], m[2], m[3], m[4], m[5], m) for m in _PRODUCT.finditer(text)]
    found += [(m[1], m[4], m[5], m[2], m[3], m) for m in _TURNED.finditer(text)]
    for before, place, axis, block_axis, number, match in found:
        if before in (")", "*", "/", "%"):
            continue  # a cast, or the end of a longer product
        blocks = plan.grid.grid["xyz".index(axis)] - (place == "blockIdx")
        step = int(number) if number else plan.grid.block["xyz".index(block_axis)]
        yield match[0][len(before) :].strip(), blocks * step


def _most_elements(text: str, slots: Sequence[Slot], options: Options) -> float:
    """How many elements the text's integers can number."""
    text = text.replace(", ".join(slot.declared for slot in slots), "")
    text += "".join(f" {value}" for _, value in options.define if value)
    if _WIDE.search(text):
        return float("inf")
    return UNSIGNED if _UNSIGNED.search(text) or not _INT.search(text) else INT
