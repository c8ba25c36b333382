"""The command as a person runs it, in this process; and a cache of few kernels to look into."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cuplate.cache import DiskTier
from tests.cache.entries import put


@dataclass(frozen=True, slots=True)
class Done:
    """What came of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its result, with ``--json``."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """Lines of the result."""
        return self.out.splitlines()


Command = Callable[..., Done]


@pytest.fixture
def command(whole_command: Command) -> Command:
    """``command("ls", "--json")`` is ``cuplate cache ls --json`` with no terminal."""
    return partial(whole_command, "cache")


@pytest.fixture
def whole_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The same for all commands: ``whole_command("cache", "ls")``."""
    from cuplate.cli import main

    def run(*arguments: object, answer: str | None = None) -> Done:
        monkeypatch.setattr(sys, "argv", ["cuplate", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", sys.path.copy())
        if answer is not None:
            terminal = io.StringIO(answer)
            terminal.isatty = lambda: True  # type: ignore[method-assign]
            monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the cache of these tests lies; not made yet."""
    return tmp_path / "cache"


@pytest.fixture
def keys(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys of three kernels in a cache that the environment names: f for sm_90 and for the host, g for sm_80."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", str(directory))
    tier = DiskTier(str(directory), write_wait_s=20.0)
    found = {
        "f": put(tier, 40, source="// 16\n__global__ void k() {}\n"),
        "g": put(tier, 20, function="g", arch="sm_80"),
        "host": put(tier, 3, arch="host"),
    }
    tier.put(b"memo" * 8, b"13.5.37", tag="toolchain")
    tier.close()
    return found
