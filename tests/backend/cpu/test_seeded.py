"""Faulty kernels of every class the checker knows, each with a sound twin: see seeds.py."""

from __future__ import annotations

import pytest

from cuplate.backend.cpu import reports
from cuplate.backend.cpu.compilers import HostCompiler
from tests.backend.cpu.seeds import CASES, SEEDED, Case, compiled, examined, found_in, launch, marked


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_seeded_fault_is_found(compiler: HostCompiler, case: Case) -> None:
    """Each faulty kernel is reported with its array and index, thread, block and line."""
    said = examined(compiler, case)
    assert found_in(said, case), "\n".join(said) or "nothing was reported"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_sound_twin_is_silent(compiler: HostCompiler, case: Case) -> None:
    """The corrected kernel, launched the same, gives no report."""
    module = compiled(compiler, (SEEDED / f"{case.name}.cu").read_text(), sound=True)
    found, fault = launch(module, case, case.arguments())
    module.close()
    assert fault is None, str(fault)
    assert not found, reports.listing(found)


def test_every_seeded_file_is_a_case() -> None:
    """No faulty kernel is left out of the table."""
    assert sorted(path.stem for path in SEEDED.glob("*.cu")) == sorted(case.name for case in CASES)


def test_every_message_names_a_line() -> None:
    """Each message that names a line finds it marked in its source."""
    for case in CASES:
        source = (SEEDED / f"{case.name}.cu").read_text()
        for word in ("fault", "other"):
            assert ("{" + word + "}" in case.message) <= (marked(source, word) > 0), f"{case.name}: {word}"
