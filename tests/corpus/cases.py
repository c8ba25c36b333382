"""Every case of the corpus, in order."""

from __future__ import annotations

from tests.corpus import (
    algorithms,
    atomics,
    barriers,
    cooperative,
    halves,
    indexing,
    language,
    lockfree,
    maths,
    matrices,
    memory,
    shared,
    types,
    warp,
)
from tests.corpus.case import Case

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (
    *indexing.CASES,
    *shared.CASES,
    *barriers.CASES,
    *warp.CASES,
    *atomics.CASES,
    *lockfree.CASES,
    *types.CASES,
    *halves.CASES,
    *maths.CASES,
    *memory.CASES,
    *language.CASES,
    *cooperative.CASES,
    *matrices.CASES,
    *algorithms.CASES,
)
