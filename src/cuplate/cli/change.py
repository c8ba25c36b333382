"""Commands that change a store, or carry kernels to another place: prune, clear, export, import."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cuplate.cache.layers import Layer
from cuplate.cache.listing import is_kernel
from cuplate.cache.packing import Exported, merge
from cuplate.cache.packing import export as export_from
from cuplate.cli import screen
from cuplate.cli.exits import Exit, Stop
from cuplate.cli.store import (
    Archs,
    Choice,
    Directory,
    Json,
    Kernels,
    LargerThan,
    NewerThan,
    OlderThan,
    Opened,
    SealFile,
    SecretFile,
    SmallerThan,
    UnusedFor,
    chosen,
    opened,
    read_secret,
)

__all__ = ["clear", "export", "import_", "prune"]


def prune(directory: Directory = None, secret_file: SecretFile = None, json: Json = False) -> None:
    """Make the files fit the limit: what is expired, orphans and free pages go first, then entries by the policy."""
    with opened(directory, secret_file, on_error="raise") as store:
        _writable(store)
        with screen.progress("pruning"):
            done = store.tier.prune()
        if json:
            screen.emit(**asdict(done), within=done.within)
        else:
            print(done)
        if not done.within:
            raise Stop(Exit.FOUND, "the files still take more than the limit, a tenth of it and 1 MB.")


def clear(
    directory: Directory = None,
    secret_file: SecretFile = None,
    kernel: Kernels = None,
    arch: Archs = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    unused_for: UnusedFor = None,
    larger_than: LargerThan = None,
    smaller_than: SmallerThan = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Remove entries: those that are chosen, or all. Running processes go on, and compile again what they miss."""
    with opened(directory, secret_file, on_error="raise") as store:
        choice = Choice.of(kernel, arch, older_than, newer_than, unused_for, larger_than, smaller_than)
        _writable(store)
        some = choice != Choice()
        entries = store.entries(notes=not some)
        if some:
            with screen.progress("reading", len(entries)) as advance:
                entries = chosen(entries, choice, advance)
            if not entries:
                raise Stop(Exit.FOUND, "no entry meets the choice.")
        total_bytes = sum(entry.listed.size_bytes for entry in entries)
        what = f"{len(entries)} entries ({screen.size(total_bytes)})"
        if entries and not yes:
            _ask(f"Remove {what} from {store.policy.directory}?")
        if some:
            removed = 0
            with screen.progress("removing", len(entries)) as advance:
                for number, entry in enumerate(entries, 1):
                    removed += store.own.delete(entry.listed.key)
                    advance(number)
        else:
            removed = store.own.clear()
        if json:
            screen.emit(directory=store.policy.directory, removed_entries=removed)
        else:
            print(f"removed {removed} entries from {store.policy.directory}.")


def _writable(store: Opened) -> None:
    if store.own.directory is None:
        raise Stop(Exit.STORE, "layers are only read.")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise Stop(Exit.USAGE, f"{question} There is no terminal to ask at: --yes.")
    print(f"{question} [y/N]", end=" ", file=sys.stderr, flush=True)  # typer's own prompt writes to stdout
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Stop(Exit.FOUND, "nothing was removed.")


def export(
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A directory, made if need be, or file.cuplate."),
    ],
    directory: Directory = None,
    secret_file: SecretFile = None,
    kernel: Kernels = None,
    arch: Archs = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    unused_for: UnusedFor = None,
    larger_than: LargerThan = None,
    smaller_than: SmallerThan = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="These entries.", rich_help_panel="Which entries")
    ] = None,
    sources: Annotated[bool, typer.Option("--sources", help="The rendered sources too; others may read them.")] = False,
    seal_file: SealFile = None,
    json: Json = False,
) -> None:
    """Write kernels, those of the layers too, to a directory or a bundle that serves as a read-only layer anywhere."""
    with opened(directory, secret_file) as store:
        choice = Choice.of(kernel, arch, older_than, newer_than, unused_for, larger_than, smaller_than)
        keys = {store.find(prefix).listed.key for prefix in key or ()} if key else None
        entries = [e for e in store.entries(layers=True) if keys is None or e.listed.key in keys]
        with screen.progress("reading", len(entries)) as advance:
            entries = chosen(entries, choice, advance)
        if not entries:
            raise Stop(Exit.FOUND, "there is nothing to export.")
        secret = store.policy.secret if seal_file is None else read_secret(seal_file)
        with screen.progress("exporting", len(entries)) as advance:
            wanted = {entry.listed.key for entry in entries}
            done = export_from(store.tier, target, secret=secret, keys=wanted, sources=sources, progress=advance)
        _tell(done, len(entries), json)


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", exists=True, help="As export or build made it, or a copy.")
    ],
    directory: Directory = None,
    secret_file: SecretFile = None,
    seal_file: SealFile = None,
    json: Json = False,
) -> None:
    """Merge an exported directory, a bundle, or a copy of a cache directory into the cache; equal keys stay."""
    with opened(directory, secret_file, made=False) as store:
        if store.own.directory is None:
            raise Stop(Exit.STORE, f"there is no disk cache ({store.own.state()}).")
        secret = store.policy.secret if seal_file is None else read_secret(seal_file)
        layer = Layer(source, secret=secret, on_error="ignore")
        total = sum(is_kernel(listed.tag) for listed in layer.listing())
        with screen.progress("importing", total) as advance:
            done = merge(layer, store.tier, progress=advance)
        _tell(done, total, json)


def _tell(done: Exported, total: int, json: bool) -> None:
    """Say what was carried; exit code 1 if some of it was not."""
    unread = max(0, total - done.kernels - done.present - done.failed)
    if json:
        screen.emit(**asdict(done), unread=unread)
    else:
        print(done)
    if unread:
        raise Stop(Exit.FOUND, f"{unread} of {total} cannot be read: damaged, evicted meanwhile, or of another secret.")
    if done.failed:
        raise Stop(Exit.FOUND)
