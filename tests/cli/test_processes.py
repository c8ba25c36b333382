"""Commands beside processes that read and write: nobody fails, nobody reads a mixture, nothing is set aside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cuplate.cache import DiskTier
from cuplate.cache.files import FilesTier
from cuplate.cubin import encode
from tests.cache.children import Children
from tests.cache.entries import kernel
from tests.cli.conftest import Command

pytest.importorskip("cuplate.cache.engine")  # imported before the forks below: they start with it loaded
if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

KERNELS = [kernel(number, function=f"f{number % 3}", arch=f"sm_{80 + number % 2 * 10}") for number in range(40)]


def work(kind: type[DiskTier | FilesTier], directory: Path, stop: Path, children: Children) -> tuple[bool, int]:
    """Put and get until told to stop; whether all puts were stored and all that was read was right, and the errors."""
    tier = kind(str(directory), write_wait_s=20.0)
    fine, rounds = True, 0
    while not stop.exists():
        for key, cubin in KERNELS:
            record = encode(cubin)
            fine &= tier.put(key, record, tag=cubin.function)
            fine &= tier.get(key) in (None, record)
            time.sleep(0.001)  # others want to write as well
        rounds += 1
        if rounds == 1:
            children.say("busy")
    counters = tier.counters()
    return fine, counters["errors"] + counters["quarantines"] + counters["bad"]


@pytest.mark.parametrize("kind", [DiskTier, FilesTier], ids=["diskcache", "files"])
def test_every_command_works_beside_writers(command: Command, tmp_path: Path, kind: type[DiskTier | FilesTier]) -> None:
    """Two rounds of all commands while two processes put and get; both go on without an error."""
    directory, stop = tmp_path / "cache", tmp_path / "stop"
    with Children(tmp_path / "log") as children:
        for _ in range(2):
            children.start(lambda: work(kind, directory, stop, children))
        children.until("busy", 2)
        for number in range(2):
            ended = {
                "ls": command("ls", "-d", directory, "--json"),
                "info": command("info", "-d", directory),
                "verify": command("verify", "-d", directory),
                "repair": command("verify", "--repair", "-d", directory),
                "export": command("export", tmp_path / f"layer{number}", "-d", directory),
                "prune": command("prune", "-d", directory),
                "clear some": command("clear", "--kernel", "f1", "--yes", "-d", directory),
                "clear": command("clear", "--yes", "-d", directory),
            }
            # A choice, or an export, may meet an entry that has just been cleared.
            wrong = {name: done for name, done in ended.items() if done.code not in (0, *(1,) * (name in MAY_MISS))}
            assert not wrong
            assert all(entry["arch"] in ("sm_80", "sm_90", None) for entry in ended["ls"].json["entries"])
        stop.touch()
        said = children.finish()
    assert said.count("done (True, 0)") == 2, said
    assert command("verify", "-d", directory).code == 0
    assert not list(directory.glob("*.bad-*"))


MAY_MISS = ("export", "clear some")
