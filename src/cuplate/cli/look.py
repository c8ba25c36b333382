"""Commands that look: info, path, ls, show, verify."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cuplate import cache
from cuplate.cache.layers import Layer
from cuplate.cache.listing import is_kernel
from cuplate.cache.packing import toolchains
from cuplate.cli import screen
from cuplate.cli.exits import Exit, Stop, say
from cuplate.cli.store import (
    Archs,
    Choice,
    Directory,
    Entry,
    Json,
    Kernels,
    LargerThan,
    Layers,
    NewerThan,
    OlderThan,
    Opened,
    SecretFile,
    SmallerThan,
    UnusedFor,
    chosen,
    opened,
)
from cuplate.cubin import Cubin, Resources
from cuplate.errors import CacheError

__all__ = ["entry_fields", "info", "list_", "path", "print_entries", "show", "verify"]

Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, or as many of its first digits as are unique.")]


# ---- info, path ------------------------------------------------------------------------------------------------------


def info(directory: Directory = None, secret_file: SecretFile = None, json: Json = False) -> None:
    """Directory, state, sizes, limits, layers, shared tier, and the policy with the source of every value."""
    with opened(directory, secret_file, made=False) as store:
        trouble = _trouble(store)
        known = None if trouble else cache.info()
        result: dict[str, Any] = {
            "directory": store.policy.directory,
            "state": f"cannot be read: {trouble}" if trouble else store.tier.state(),
            "entries": known and known.disk_entries,
            "kernels": None if trouble else sum(is_kernel(listed.tag) for listed in store.own.listing()),
            "entry_bytes": known and known.disk_entry_bytes,
            "limit_bytes": store.policy.disk_bytes if store.policy.disk_bytes < cache.UNLIMITED else None,
            "file_bytes": store.tier.volume(),
            "orphans": store.tier.orphans(),
            "layers": [_about_layer(layer) for layer in getattr(store.tier, "layers", ())],
            "shared": _about_shared(),
        }
        if json:
            screen.emit(**result, policy=_policy(store))
        else:
            _print_info(result)
            print()
            rows = [(name, source, value) for name, value, source in store.policy.rows()]
            screen.table(("POLICY", "SOURCE", "VALUE"), rows)
        if trouble:
            raise Stop(Exit.STORE)


def _trouble(store: Opened) -> str | None:
    """Why the store cannot be read, asked in a way that changes nothing."""
    try:
        next(iter(store.own.listing()), None)
    except CacheError as error:
        return error.summary
    return None


def _about_layer(layer: Layer) -> dict[str, Any]:
    try:
        kernels = [listed for listed in layer.listing() if is_kernel(listed.tag)]
    except CacheError as error:
        return {"directory": layer.directory, "state": error.summary, "kernels": None, "entry_bytes": None}
    return {
        "directory": layer.directory,
        "state": "on",
        "kernels": len(kernels),
        "entry_bytes": sum(listed.size_bytes for listed in kernels),
        "toolchains": toolchains(layer),
    }


def _about_shared() -> dict[str, Any] | None:
    """The shared tier, asked for something that is not there; None for none."""
    tier = cache.shared_tier(cache.CachePolicy(on_error="ignore"))
    return None if tier is None else {"place": tier.place, "state": tier.check()}


def _print_info(result: dict[str, Any]) -> None:
    rows = [("directory", result["directory"] or "none (memory only)"), ("state", result["state"])]
    if result["entries"] is not None:
        limit = "unlimited" if result["limit_bytes"] is None else screen.size(result["limit_bytes"])
        rows.append(
            (
                "entries",
                f"{result['entries']}, {result['kernels']} of them kernels: "
                f"{screen.size(result['entry_bytes'])} of {limit}",
            )
        )
    rows.append(("files", f"{screen.size(result['file_bytes'])} on disk, {result['orphans']} orphans"))
    for layer in result["layers"]:
        what = layer["state"]
        if layer["kernels"] is not None:
            what = f"{layer['kernels']} kernels, {screen.size(layer['entry_bytes'])}: {', '.join(layer['toolchains'])}"
        rows.append(("layer", f"{layer['directory']} ({what})"))
    if result["shared"] is not None:
        rows.append(("shared", f"{result['shared']['place']} ({result['shared']['state']})"))
    screen.table(("", ""), rows)


def _policy(store: Opened) -> dict[str, dict[str, Any]]:
    """What JSON says of the policy: None for no limit, and of a secret whether there is one."""
    found = {}
    for name, _, source in store.policy.rows():
        value = getattr(store.policy, name)
        if name == "secret":
            value = bool(value)
        elif name == "shared":
            value = store.policy.shared_place() or None
        elif name == "layers":
            value = [str(layer) for layer in value]
        elif type(value) in (int, float) and value >= cache.UNLIMITED:
            value = None
        found[name] = {"value": value, "source": source}
    return found


def path(directory: Directory = None, secret_file: SecretFile = None) -> None:
    """The cache directory and nothing else, for $(cuplate cache path)."""
    with opened(directory, secret_file, made=False) as store:
        if store.policy.directory is None:
            raise Stop(Exit.STORE, f"there is no cache directory ({store.own.state()}).")
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(store.policy.directory) + b"\n")  # a name need not be text


# ---- ls --------------------------------------------------------------------------------------------------------------


class Sort(StrEnum):
    """What `ls` sorts by: numbers and times from the largest down, names from the first up."""

    STORED = "stored"
    USED = "used"
    USES = "uses"
    SIZE = "size"
    REGISTERS = "registers"
    FUNCTION = "function"
    ARCH = "arch"
    KEY = "key"


_ORDERS: dict[Sort, tuple[Callable[[Entry], Any], bool]] = {
    Sort.STORED: (lambda entry: entry.listed.stored_s, True),
    Sort.USED: (lambda entry: entry.listed.used_s, True),
    Sort.USES: (lambda entry: entry.listed.uses, True),
    Sort.SIZE: (lambda entry: entry.listed.size_bytes, True),
    Sort.REGISTERS: (lambda entry: (entry.kernel and entry.kernel.about.resources.registers) or 0, True),
    Sort.FUNCTION: (lambda entry: entry.function, False),
    Sort.ARCH: (lambda entry: entry.kernel.arch if entry.kernel else "", False),
    Sort.KEY: (lambda entry: entry.key, False),
}


def list_(
    directory: Directory = None,
    secret_file: SecretFile = None,
    kernel: Kernels = None,
    arch: Archs = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    unused_for: UnusedFor = None,
    larger_than: LargerThan = None,
    smaller_than: SmallerThan = None,
    layers: Layers = False,
    notes: Annotated[bool, typer.Option("--notes", help="What the library keeps beside the kernels too.")] = False,
    sort: Annotated[Sort, typer.Option(help="Numbers and times from the largest down.")] = Sort.STORED,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    json: Json = False,
) -> None:
    """The stored kernels; with a choice that no entry meets, the exit code is 1."""
    with opened(directory, secret_file) as store:
        choice = Choice.of(kernel, arch, older_than, newer_than, unused_for, larger_than, smaller_than)
        entries = store.entries(layers=layers, notes=notes)
        with screen.progress("reading", len(entries)) as advance:
            found = chosen(entries, choice, advance)
        order, downwards = _ORDERS[sort]
        found.sort(key=order, reverse=downwards != reverse)
        shown = found[:limit]
        if json:
            screen.emit(directory=store.policy.directory, entries=[entry_fields(entry) for entry in shown])
        elif shown:
            print_entries(shown, layers=layers)
        if not json and limit is not None and len(found) > limit:
            say(f"{len(found) - limit} more.")
        if unread := sum(entry.is_kernel and entry.kernel is None for entry in shown):
            say(f"{unread} of these cannot be read: cuplate cache verify says why.")
        if not found and choice != Choice():
            raise Stop(Exit.FOUND, "" if json else "no entry meets the choice.")
        if not found and not json:
            say(f"nothing is stored in {store.policy.directory or 'the layers'}.")


def entry_fields(entry: Entry) -> dict[str, Any]:
    """What JSON says of an entry."""
    listed, kernel = entry.listed, entry.kernel
    about = kernel and kernel.about
    resources = asdict(about.resources) if about else dict.fromkeys(f.name for f in fields(Resources))
    return {
        "key": entry.key,
        "kind": "kernel" if entry.is_kernel else "note",
        "function": entry.function,
        "parameters": about and about.parameters_text,
        "kernel": kernel and kernel.entry,
        "arch": kernel and kernel.arch,
        "toolchain": about and about.toolchain,
        "compile_s": about and about.compile_s,
        "size_bytes": listed.size_bytes,
        "code_bytes": kernel and kernel.code_bytes,
        "stored_unix_s": listed.stored_s,
        "used_unix_s": listed.used_s,
        "uses": listed.uses,
        "layer": entry.layer,
        **resources,
    }


def print_entries(entries: list[Entry], *, layers: bool) -> None:
    """A table of entries."""
    now = time.time()
    rows = []
    for entry in entries:
        listed, kernel = entry.listed, entry.kernel
        registers = kernel.about.resources.registers if kernel else None
        rows.append(
            (
                entry.key[:16],
                kernel.arch if kernel else "?" if entry.is_kernel else "",
                "" if registers is None else registers,
                screen.size(listed.size_bytes),
                screen.age(now - listed.stored_s),
                screen.age(now - listed.used_s) if listed.uses else "never",
                *((entry.layer or "",) if layers else ()),
                f"{entry.function} {kernel.about.parameters_text if kernel else ''}",
            )
        )
    columns = ("KEY", "ARCH", "REGS", "SIZE", "STORED", "USED", *(("LAYER",) if layers else ()), "KERNEL")
    screen.table(columns, rows, numbers=("REGS", "SIZE", "STORED", "USED"))


# ---- show ------------------------------------------------------------------------------------------------------------

_NO_SOURCE = (
    "the record holds no source: it was exported without --sources, or stored by an earlier version. "
    "The function's own f.inspect(...).source renders it."
)


def show(
    key: Key,
    directory: Directory = None,
    secret_file: SecretFile = None,
    source: Annotated[
        bool, typer.Option("--source", help="The rendered CUDA C++ and nothing else; --json has it in its object.")
    ] = False,
    cubin_file: Annotated[
        Path | None,
        typer.Option("--cubin", metavar="FILE", help="Write the code there, for nvdisasm and cuobjdump; - is stdout."),
    ] = None,
    json: Json = False,
) -> None:
    """One kernel: what its key is made of, what it takes, and its source."""
    with opened(directory, secret_file) as store:
        entry = store.find(key)
        cubin = entry.read()
        if cubin is None:
            wrong = entry.wrong()
            kind = "is no kernel" if wrong is None else f"cannot be read: {wrong}"
            raise Stop(Exit.FOUND, f"{entry.key} ({entry.function}) {kind}.")
        if cubin_file is not None:
            _write(cubin_file, cubin.code)
        if source and not cubin.source:
            raise Stop(Exit.FOUND, _NO_SOURCE)
        if json:  # which has the source too
            ingredients = [{"name": name, "value": value} for name, value in cubin.ingredients]
            screen.emit(**entry_fields(entry), ingredients=ingredients, log=cubin.log, source=cubin.source or None)
        elif source:
            _print_source(cubin.source)
        elif cubin_file is None:
            _print_entry(entry, cubin)


def _write(file: Path, code: bytes) -> None:
    if str(file) == "-":
        sys.stdout.buffer.write(code)
        return
    file.write_bytes(code)
    say(f"{len(code)} bytes in {file}.")


def _print_source(source: str) -> None:
    shown = screen.console()
    if not shown.is_terminal:
        print(source, end="" if source.endswith("\n") else "\n")
        return
    from rich.syntax import Syntax

    lines = "\n".join(map(screen.clean, source.expandtabs(4).splitlines()))
    shown.print(Syntax(lines, "cuda", theme="ansi_dark", background_color="default", word_wrap=True))


def _print_entry(entry: Entry, cubin: Cubin) -> None:
    listed = entry.listed
    print(screen.clean(f"{entry.function}({cubin.parameters_text})"))
    used = f", last used {_moment(listed.used_s)}, uses: {listed.uses}" if listed.uses else ", not used since"
    screen.table(
        ("", ""),
        [
            ("  key", entry.key),
            ("  arch", f"{cubin.arch}, {cubin.toolchain}"),
            ("  kernel", f"{cubin.entry}, {len(cubin.code)} bytes of code, {listed.size_bytes} bytes stored"),
            ("  compiled", f"in {cubin.compile_s * 1e3:.1f} ms"),
            ("  stored", f"{_moment(listed.stored_s)}{used}"),
            ("  in", listed.directory),
            ("  source", f"{len(cubin.source.splitlines())} lines: --source" if cubin.source else _NO_SOURCE),
        ],
    )
    resources = [(f"  {name}", value) for name, value in asdict(cubin.resources).items() if value is not None]
    for title, rows in (("resources", resources), ("ingredients", [(f"  {n}", v) for n, v in cubin.ingredients])):
        if rows:
            print(title)
            screen.table(("", ""), rows)
    # What ptxas reports of a kernel stands above.
    log = [line for line in cubin.log.splitlines() if line.strip() and not re.match(r"ptxas (info| +\.)", line)]
    for line in ("log", *(f"  {line}" for line in log)) if log else ():
        print(screen.clean(line))


def _moment(unix_s: float) -> str:
    ago = screen.age(time.time() - unix_s)
    return f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M:%S} ({ago}{'' if ago == 'now' else ' ago'})"


# ---- verify ----------------------------------------------------------------------------------------------------------


def verify(
    directory: Directory = None,
    secret_file: SecretFile = None,
    layers: Layers = False,
    repair: Annotated[bool, typer.Option("--repair", help="Drop what is wrong; layers are never changed.")] = False,
    json: Json = False,
) -> None:
    """Read every entry, and check seal, record, key, source, architecture and image; exit code 1 if one is wrong."""
    with opened(directory, secret_file) as store:
        entries: list[Entry] = []
        bad: list[tuple[Entry | None, str]] = []  # None for the whole store
        try:
            entries = store.entries(layers=layers, notes=True)
        except CacheError as error:
            if error.cause != "damaged":
                raise
            bad.append((None, error.summary))
        with screen.progress("checking", len(entries)) as advance:
            for number, entry in enumerate(entries, 1):
                if (wrong := entry.wrong()) is not None:
                    bad.append((entry, wrong))
                advance(number)
        dropped = _repair(store, bad) if repair else 0
        if json:
            rows = [
                {"key": e and e.key, "function": e and e.function, "layer": e and e.layer, "wrong": wrong}
                for e, wrong in bad
            ]
            screen.emit(directory=store.policy.directory, checked=len(entries), bad=rows, dropped=dropped)
        else:
            if bad:
                named = [(e.key[:16], e.function, wrong) if e else ("(all)", "", wrong) for e, wrong in bad]
                screen.table(("KEY", "FUNCTION", "WRONG"), named)
            print(f"{len(entries)} entries checked, {len(bad)} wrong{f', {dropped} dropped' if repair else ''}.")
        if bad:
            raise Stop(Exit.FOUND)


def _repair(store: Opened, bad: list[tuple[Entry | None, str]]) -> int:
    """Drop bad entries; a damaged database is set aside by the tier itself, as a look-up would do it."""
    dropped = 0
    for entry, _ in bad:
        if entry is None:
            for _ in store.own.all():
                pass
            dropped += store.own.counters()["quarantines"]
        elif entry.layer is None and entry.wrong() is not None:  # not written anew meanwhile
            dropped += store.own.delete(entry.listed.key)
    return dropped
