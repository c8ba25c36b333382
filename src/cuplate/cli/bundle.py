"""``cuplate bundle``: what is in a bundle, whether it is whole, and how two of them differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuplate import cache
from cuplate.cache.comparing import Change, Comparison, compare, kernels_of
from cuplate.cache.layers import Layer, Layered
from cuplate.cache.packing import toolchains
from cuplate.cache.store import NoStore
from cuplate.cli import screen
from cuplate.cli.exits import Exit, Stop, ending, say
from cuplate.cli.flags import Command, Group
from cuplate.cli.look import entry_fields, print_entries
from cuplate.cli.store import Json, Opened, SecretFile, read_secret
from cuplate.cubin import Cubin

if TYPE_CHECKING:
    from cuplate.build import Lacking

__all__ = ["app"]

app = typer.Typer(
    cls=Group,
    help="Bundles, as cuplate build has written them: what is in one, whether it is whole, how two differ.",
    no_args_is_help=True,
)
Place = Annotated[Path, typer.Argument(metavar="BUNDLE", exists=True, help="A file.cuplate, or a directory.")]


@contextmanager
def _opened(place: Path, secret_file: Path | None) -> Iterator[tuple[Opened, Layer]]:
    """A bundle as a store of its own; who asks here does not ask whether it is to be trusted."""
    secret = read_secret(secret_file) if secret_file is not None else b""
    with cache.configure(secret=secret):
        layer = Layer(place, secret=secret, on_error="ignore", trusted=True)
        tier = Layered(NoStore("a bundle is only read"), (layer,))
        yield Opened(tier, cache.current_policy()), layer


@app.command("ls", cls=Command)
def list_(place: Place, secret_file: SecretFile = None, json: Json = False) -> None:
    """The kernels, by function, parameters and architecture."""
    with ending(), _opened(place, secret_file) as (store, layer):
        entries = store.entries()
        entries.sort(key=lambda e: (e.function, e.kernel.about.parameters_text if e.kernel else "", e.key))
        compilers = toolchains(layer)
        if json:
            screen.emit(bundle=str(place), toolchains=compilers, entries=[entry_fields(entry) for entry in entries])
            return
        print_entries(entries, layers=False)
        archs = sorted({entry.kernel.arch for entry in entries if entry.kernel})
        say(f"{len(entries)} kernels for {', '.join(archs)}, compiled by {', '.join(compilers)}.")


@app.command(cls=Command)
def verify(
    place: Place,
    manifest: Annotated[
        list[Path] | None, typer.Option("--manifest", "-m", metavar="FILE", help="All of these must be there.")
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="sm_80,sm_90", help="For all of these. Default: those that are there."),
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="For the CPU backend too.")] = False,
    secret_file: SecretFile = None,
    json: Json = False,
) -> None:
    """Check seals, records, keys and images of all entries; and that nothing of a manifest is missing."""
    with ending(), _opened(place, secret_file) as (store, layer):
        entries = store.entries(notes=True)
        with screen.progress("checking", len(entries)) as advance:
            bad = []
            for number, entry in enumerate(entries, 1):
                if (wrong := entry.wrong()) is not None:
                    bad.append((entry.key, entry.function, wrong))
                advance(number)
        there = {entry.kernel.arch for entry in entries if entry.kernel}
        asked = [name.strip() for names in arch or () for name in names.split(",")]
        missing = _missing(layer, manifest or [], asked, host, there)
        absent = [name for name in (*asked, *(("host",) if host else ())) if not _has(there, name)]
        if json:
            screen.emit(
                bundle=str(place),
                checked=len(entries),
                archs=sorted(there),
                toolchains=toolchains(layer),
                bad=[{"key": key, "function": function, "wrong": wrong} for key, function, wrong in bad],
                missing=[asdict(row) for row in missing],
                missing_archs=absent,
            )
        else:
            if bad:
                screen.table(("KEY", "FUNCTION", "WRONG"), [(key[:16], name, wrong) for key, name, wrong in bad])
            for row in missing:
                print(f"missing for {row.arch}: {row.wanted}" + (f"\n  {row.reason}" if row.reason else ""))
            for name in absent:
                print(f"missing: any kernel for {name}")
            what = f"{len(entries)} entries checked, {len(bad)} wrong"
            print(f"{what}, {len(missing)} missing." if manifest else f"{what}.")
        if bad or missing or absent:
            raise Stop(Exit.FOUND)


def _missing(layer: Layer, manifests: list[Path], asked: list[str], host: bool, there: set[str]) -> list[Lacking]:
    if not manifests:
        return []
    from cuplate.build import check_archs, lacking
    from cuplate.manifest import Manifest

    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    named = asked or sorted(name for name in there if name.startswith("sm_"))
    archs = check_archs(named, host=host or (not asked and "host" in there))
    return lacking(Manifest.read(*manifests), archs, lambda key: layer.get(key)[0])


def _has(there: set[str], arch: str) -> bool:
    """Whether there is a kernel for a device; a suffix is each function's own affair."""
    return arch.rstrip("af") in {name.rstrip("af") for name in there}


@app.command(cls=Command)
def diff(
    first: Place,
    second: Annotated[Path, typer.Argument(metavar="BUNDLE", exists=True)],
    secret_file: SecretFile = None,
    json: Json = False,
) -> None:
    """What the second has that the first has not, what it lacks, and what has changed and why; 1 if they differ."""
    with ending():
        found = []
        for place in (first, second):
            with _opened(place, secret_file) as (store, layer):
                store.entries()  # which tells what is wrong
                found.append(kernels_of(layer.all()))
        compared = compare(*found)
        if json:
            _emit(compared)
        else:
            _print(compared)
        if compared.differs:
            raise Stop(Exit.FOUND)


def _emit(compared: Comparison) -> None:
    screen.emit(
        added=[{"key": key, **_names(cubin)} for key, cubin in compared.added],
        removed=[{"key": key, **_names(cubin)} for key, cubin in compared.removed],
        changed=[
            {
                "key": change.key,
                "other": change.other,
                **_names(change.kernel),
                "ingredients": [{"name": name, "from": a, "to": b} for name, a, b in change.ingredients],
                "resources": [{"name": name, "from": a, "to": b} for name, a, b in change.resources],
            }
            for change in compared.changed
        ],
        same=compared.same,
    )


def _names(cubin: Cubin) -> dict[str, str]:
    return {"function": cubin.function, "parameters": cubin.parameters_text, "arch": cubin.arch}


def _print(compared: Comparison) -> None:
    rows = [("+", cubin.arch, _called(cubin), "") for _, cubin in compared.added]
    rows += [("-", cubin.arch, _called(cubin), "") for _, cubin in compared.removed]
    rows += [("~", change.kernel.arch, _called(change.kernel), _why(change)) for change in compared.changed]
    if rows:
        screen.table(("", "ARCH", "KERNEL", "WHY"), rows)
    print(
        f"{len(compared.added)} added, {len(compared.removed)} removed, {len(compared.changed)} changed, "
        f"{compared.same} the same."
    )


def _called(cubin: Cubin) -> str:
    return f"{cubin.function}({cubin.parameters_text})"


def _why(change: Change) -> str:
    """The ingredients that differ, and what the kernel takes: with the values where they are short."""
    told = [
        name if len(a) + len(b) > 80 else f"{name} {a.replace(chr(10), ' ')} -> {b.replace(chr(10), ' ')}"
        for name, a, b in change.ingredients
    ]
    told += [f"{name} {'?' if a is None else a} -> {'?' if b is None else b}" for name, a, b in change.resources]
    return ", ".join(told) or "other code of the same key"
