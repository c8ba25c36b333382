"""``cuplate cache explain``: why two kernels are two entries, or what a call would miss."""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cuplate.cache.listing import nearest
from cuplate.cli import screen
from cuplate.cli.exits import Exit, Stop
from cuplate.cli.store import Directory, Entry, Json, Opened, SecretFile, opened
from cuplate.cubin import Cubin
from cuplate.dtypes import DTYPES
from cuplate.key import difference

__all__ = ["explain"]


def explain(
    what: Annotated[str, typer.Argument(metavar="KEY|MODULE:FUNCTION", help="A stored kernel, or a function.")],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY|NAME=VALUE", help="Another kernel, or the arguments of the call."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Of the call: sm_90.")] = None,
    directory: Directory = None,
    secret_file: SecretFile = None,
    json: Json = False,
) -> None:
    """KEY: what its key has that the nearest entry of its function has not, or another KEY.

    MODULE:FUNCTION: whether such a call would be a hit, and what differs from the nearest entry if not (exit code 1).
    """
    with opened(directory, secret_file, made=":" not in what) as store:
        if ":" in what:
            _explain_call(what, more or [], arch, json)
        elif len(more or ()) > 1 or arch is not None:
            raise Stop(Exit.USAGE, "an entry is compared with one other: explain KEY [KEY].")
        else:
            _explain_entries(store, what, more[0] if more else None, json)


# ---- a call ----------------------------------------------------------------------------------------------------------


def _explain_call(what: str, arguments: list[str], arch: str | None, json: bool) -> None:
    function = _function(what)
    given = dict(map(_argument, arguments))
    if "arch" in given:
        raise Stop(Exit.USAGE, f"the architecture is an option: --arch {given['arch']}.")
    said = str(function.explain(arch=arch, **given))
    hit = ": hit: " in said
    if json:
        screen.emit(hit=hit, text=said)
    else:
        print(said)
    if not hit:
        raise Stop(Exit.FOUND)


def _function(what: str) -> Any:
    name, _, attribute = what.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    try:
        value = importlib.import_module(name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:  # a module runs whatever it holds
        raise Stop(Exit.USAGE, f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(value, "explain", None)):
        raise Stop(Exit.USAGE, f"{what} is not a specialized function.")
    return value


_DESCRIBED = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")


def _argument(text: str) -> tuple[str, Any]:
    """``tile=16`` as Python's value, ``a=float32`` as text, ``a=float32[33,70]`` as an array of that shape."""
    name, separator, value = text.partition("=")
    if not separator:
        raise Stop(Exit.USAGE, f"{text!r} is no NAME=VALUE.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        described = _DESCRIBED.fullmatch(value)
        if described is None or described["dtype"] not in DTYPES:
            return name, value
        shape = tuple(int(size) for size in described["shape"].split(",") if size.strip())
        from cuplate.arguments import ArraySpec  # which needs jinja2, as looking must not

        return name, ArraySpec(shape, described["dtype"])


# ---- entries ---------------------------------------------------------------------------------------------------------


def _explain_entries(store: Opened, first: str, second: str | None, json: bool) -> None:
    entry = store.find(first)
    other = store.find(second) if second is not None else _neighbour(store, entry)
    a, b = _kernel(entry), _kernel(other)
    names = difference(b.ingredients, a.ingredients)
    values = [(name, _value(b, name), _value(a, name)) for name in names]
    source = "\n".join(_source_difference(b, a)) if "source" in names else ""
    if json:
        rows = [{"name": name, "other": theirs, "value": ours} for name, theirs, ours in values]
        screen.emit(key=entry.key, other=other.key, differences=rows, source_diff=source or None)
        return
    if not names:
        print(f"{entry.key[:16]} and {other.key[:16]} have the same ingredients.")
        return
    if a.parameters_text != b.parameters_text:
        values.insert(0, ("parameters", b.parameters_text, a.parameters_text))
    screen.table(("DIFFERS", other.key[:16], entry.key[:16]), values)
    if source:
        print()
        _print_difference(source)


def _neighbour(store: Opened, entry: Entry) -> Entry:
    mine = _kernel(entry).ingredients
    others = {
        other.listed.key: other
        for other in store.entries(layers=True)
        if other.function == entry.function and other.key != entry.key
    }
    found = nearest(mine, ((key, other.record() or b"") for key, other in others.items()))
    if found is None:
        raise Stop(Exit.FOUND, f"{entry.key} is the only entry of {entry.function}.")
    return others[found[0]]


def _kernel(entry: Entry) -> Cubin:
    cubin = entry.read()
    if cubin is None:
        raise Stop(Exit.FOUND, f"{entry.key} is no kernel, or cannot be read.")
    return cubin


def _value(cubin: Cubin, name: str) -> str:
    """Of an ingredient that may be there several times, or not at all."""
    return ", ".join(value for found, value in cubin.ingredients if found == name) or "nothing"


def _source_difference(a: Cubin, b: Cubin) -> Iterator[str]:
    if a.source and b.source:
        lines = difflib.unified_diff(a.source.splitlines(), b.source.splitlines(), n=2, lineterm="")
        yield from list(lines)[2:]  # without the names of two files that are none


def _print_difference(source: str) -> None:
    shown = screen.console()
    for line in source.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        shown.print(screen.clean(line), style=style, soft_wrap=True)
