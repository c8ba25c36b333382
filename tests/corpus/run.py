"""Run the corpus on this machine's GPU and store what came out, or compare the CPU with what a GPU gave.

python -m tests.corpus.run --save tests/corpus/h200.npz       on a GPU: run every case, store its outputs
python -m tests.corpus.run --against tests/corpus/h200.npz    without: run on the CPU, print the table of docs/
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.case import Arrays, Case
from tests.corpus.cases import CASES
from tests.corpus.runner import Difference, compare, run_case

__all__ = ["Stored", "identity", "load", "main", "save", "table"]

_FACTS = "facts"


class Stored:
    """Outputs of the corpus on a GPU.

    Parameters
    ----------
    path : Path
        Written by `save`.

    Attributes
    ----------
    facts : dict of str to str
        The GPU, its driver and compiler.
    identities : dict of str to str
        Case to `identity` when it was stored.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            stored = {name: file[name] for name in file.files}
        notes = json.loads(stored.pop(_FACTS).tobytes())
        self.facts: dict[str, str] = notes["facts"]
        self.identities: dict[str, str] = notes["identities"]
        self._arrays = stored

    def outputs(self, case: Case) -> Arrays | None:
        """What the GPU gave; None when the case was not stored, or is not as it was."""
        if self.identities.get(case.name) != identity(case):
            return None
        start = case.name + "/"
        return {name.removeprefix(start): a for name, a in self._arrays.items() if name.startswith(start)}


def load(path: Path) -> Stored:
    """The outputs in `path`."""
    return Stored(path)


def identity(case: Case) -> str:
    """A digest of what decides the outputs: rendered text, headers, inputs and scalars; nothing of a device."""
    digest = hashlib.sha256()
    # For the oldest architecture of the corpus: the text does not depend on it.
    inputs = case.inputs()
    _, plan, content, *_ = case.f.inspect.__self__._described((), {**described(inputs), **case.given}, "sm_80")
    digest.update(content.source.text.encode())
    if ".cuh" in content.source.text:  # headers of our own
        for path in sorted(Path(__file__).parent.rglob("*.cuh")):
            digest.update(path.read_bytes())
    digest.update(repr((plan.grid, sorted(case.given.items()))).encode())
    for name, value in inputs.items():
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()[:16]


def described(inputs: Arrays) -> dict[str, Any]:
    """The inputs as `ArraySpec`."""
    from cuplate import ArraySpec

    return {name: ArraySpec(value.shape, value.dtype.name) for name, value in inputs.items()}


def save(path: Path, cases: Iterable[Case] = CASES) -> int:
    """Run `cases` on the GPU and store their outputs; the number of outputs beyond the bound of their reference."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    identities, wrong = {}, 0
    for case in cases:
        outputs = run_case(case, arrays="cupy")
        again = run_case(case, arrays="cupy")
        for difference in (*compare(case, outputs), *compare(case, again, outputs)):
            if not difference.allowed:
                wrong += 1
                print(f"{case.name}: {difference}", file=sys.stderr)
        arrays |= {f"{case.name}/{name}": value for name, value in outputs.items()}
        identities[case.name] = identity(case)
    notes = json.dumps({"facts": gpu_facts(), "identities": identities}).encode()
    arrays[_FACTS] = np.frombuffer(notes, np.uint8)
    write(path, arrays)
    return wrong


def write(path: Path, arrays: Arrays) -> None:
    """`arrays` as an npz file whose bytes depend on nothing else."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, value in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(value).reshape(value.shape), allow_pickle=False)


def gpu_facts() -> dict[str, str]:
    """What the outputs were made with."""
    import cupy

    from cuplate.backend.cuda import nvrtc

    number = cupy.cuda.Device().id
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    return {
        "gpu": properties["name"].decode(),
        "compute capability": f"{properties['major']}.{properties['minor']}",
        "driver": str(cupy.cuda.runtime.driverGetVersion()),
        "compiler": str(nvrtc.toolchain(memo=None).build),
    }


def table(stored: Stored, cases: Iterable[Case] = CASES) -> tuple[str, int]:
    """The Markdown table of how the CPU agrees with the GPU, and how many outputs are beyond their bound."""
    rows, beyond, equal, total = [], 0, 0, 0
    for case in cases:
        wanted = stored.outputs(case)
        if wanted is None:
            rows.append((case.name, "", "not stored", ""))
            continue
        differences = compare(case, run_case(case), wanted)
        total += len(differences)
        equal += sum(d.identical for d in differences)
        beyond += sum(not d.allowed for d in differences)
        why = case.agrees.why if not all(d.identical for d in differences) else ""
        rows.append((case.name, ", ".join(sorted(wanted)), said(differences), why))
    lines = ["| kernel | outputs | CPU and GPU | why they differ |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", f"{equal} of {total} outputs of {len(rows)} cases are bit-equal."]
    return "\n".join(lines), beyond


def said(differences: Iterable[Difference]) -> str:
    """One cell of the table."""
    apart = [d for d in differences if not d.identical]
    if not apart:
        return "bit-equal"
    beyond = "" if all(d.allowed for d in apart) else " **beyond the bound**"
    if apart[0].bound.kind == "ulps":
        return f"within {max(d.ulps for d in apart):g} ulps{beyond}"
    return f"within {max(d.relative for d in apart):.1e} of the largest{beyond}"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.run", description=__doc__)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--save", type=Path, metavar="FILE", help="run on the GPU and store the outputs")
    way.add_argument("--against", type=Path, metavar="FILE", help="run on the CPU and compare with stored outputs")
    parser.add_argument("cases", nargs="*", help="names; default: all")
    given = parser.parse_args(arguments)
    unknown = set(given.cases) - {c.name for c in CASES}
    if unknown:
        parser.error(f"no case {sorted(unknown)[0]!r}")
    cases = [c for c in CASES if not given.cases or c.name in given.cases]
    if given.save:
        wrong = save(given.save, cases)
        print(f"{len(cases)} cases, {given.save.stat().st_size} bytes, {wrong} outputs beyond their bound")
        return int(wrong > 0)
    stored = load(given.against)
    with contextlib.redirect_stdout(sys.stderr):  # a kernel of the corpus prints
        text, beyond = table(stored, cases)
    print(", ".join(f"{name}: {value}" for name, value in stored.facts.items()))
    print()
    print(text)
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main())
