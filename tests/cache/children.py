"""Forked processes whose words come in order: what the tests of many processes share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60


class Children:
    """Forked processes; each writes lines to one file, whose order is the order of events."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.log.touch()
        self.pids: list[int] = []

    def start(self, work: Callable[[], object]) -> int:
        """Fork, run, and write down what came of it."""
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(WAIT_S)
                self.say(f"done {work()!r}")
            except BaseException as error:
                self.say(f"raised {error!r}")
            os._exit(0)
        self.pids.append(pid)
        return pid

    def say(self, line: str) -> None:
        """One line, whole, after all that are there."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def lines(self) -> list[str]:
        """All that was said so far."""
        return self.log.read_text().splitlines()

    def until(self, line: str, count: int = 1) -> None:
        """Wait until a line was said so often."""
        end = time.monotonic() + WAIT_S
        while self.lines().count(line) < count:
            assert time.monotonic() < end, self.lines()
            time.sleep(0.005)

    def finish(self) -> list[str]:
        """Wait for all; what they said."""
        while self.pids:
            os.waitpid(self.pids.pop(), 0)
        return self.lines()

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait for the end."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.pids.remove(pid)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in list(self.pids):
            self.kill(pid)
