"""``cuplate build``, and ``cuplate manifest``: from what a program used to a bundle that another one mounts.

What renders and compiles is imported by the command that needs it, and not by those that only look.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuplate.cli import screen
from cuplate.cli.exits import Exit, Stop, ending
from cuplate.cli.flags import Command, Group
from cuplate.cli.store import Json, SecretFile, read_secret

if TYPE_CHECKING:
    from cuplate.build import Built

__all__ = ["build", "manifest_commands"]

Manifests = Annotated[
    list[Path], typer.Argument(metavar="MANIFEST", help="As cuplate.record or CUPLATE_RECORD has written it.")
]


def build(
    manifests: Manifests,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="TARGET", help="file.cuplate, or a directory; replaced.")
    ],
    arch: Annotated[
        list[str] | None, typer.Option("--arch", metavar="sm_80,sm_90", help="Devices; several times for several.")
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="For the CPU backend too, and CPUs like this one.")] = False,
    sources: Annotated[bool, typer.Option("--sources", help="The rendered sources too; others may read them.")] = False,
    secret_file: SecretFile = None,
    json: Json = False,
) -> None:
    """Compile a manifest where no GPU is, and write a bundle; where something fails nothing is written."""
    with ending():
        from cuplate.build import build as build_manifest
        from cuplate.manifest import Manifest

        sys.path.insert(0, os.getcwd())  # as `python -m` has it
        done = build_manifest(
            Manifest.read(*manifests),
            [name.strip() for names in arch or () for name in names.split(",")],
            output,
            host=host,
            secret=read_secret(secret_file) if secret_file is not None else b"",
            sources=sources,
        )
        _tell(done, json)


def _tell(done: Built, json: bool) -> None:
    failed = done.warmed.failed
    if json:
        screen.emit(
            target=done.target,
            rows=[asdict(row) for row in done.warmed],
            written=done.exported is not None,
            **(asdict(done.exported) if done.exported is not None else {}),
        )
    else:
        from cuplate.wanted import Wanted

        archs: dict[tuple[str, str], list[str]] = {}
        for row in failed:
            archs.setdefault((row.wanted, row.error), []).append(row.arch)
        for (wanted, error), names in archs.items():
            print(screen.clean(f"{Wanted.parse(wanted)} for {', '.join(names)}:"))
            print("\n".join(f"  {screen.clean(line)}" for line in error.splitlines()))
        if not failed:
            print(done)
    if failed:
        raise Stop(Exit.FOUND, str(done))


manifest_commands = typer.Typer(
    cls=Group, help="Manifests: which specializations a program uses.", no_args_is_help=True
)


@manifest_commands.callback()
def _manifest() -> None:
    """Manifests: which specializations a program uses."""


@manifest_commands.command(cls=Command)
def merge(
    manifests: Manifests,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: stdout. May be one of them.")
    ] = None,
) -> None:
    """One manifest of several: each specialization once, in a fixed order."""
    with ending():
        from cuplate.manifest import Manifest

        merged = Manifest.read(*manifests, imports=False)
        if output is None:
            print(merged.text(), end="")
        else:
            merged.write(output)
            print(f"{output}: {len(merged)} specializations")
