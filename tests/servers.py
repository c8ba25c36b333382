"""Servers for the tests of the shared tier: a real one on a free loopback port, and ones that do what none should."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["BlackHole", "Liar", "Served", "free_port", "missing_server", "server_program"]

WAIT_S = 20


def server_program() -> str | None:
    """The server that is installed here."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


def missing_server() -> str | None:
    """Why the tests with a real server cannot run here; None if they can."""
    if server_program() is None:
        return "neither redis-server nor valkey-server is on PATH"
    try:
        import redis  # noqa: F401
    except ImportError as error:
        return f"redis cannot be imported: {error}"
    return None


class Served:
    """A server of the test's own, on loopback and on a socket in its folder; it keeps nothing.

    Parameters
    ----------
    folder : Path
    *options : str
        More of its command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.port = free_port()
        self.socket = folder / "socket"
        self.password = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Its first database, by TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """Its first database, by the socket."""
        return f"unix://{self.socket}?db=0"

    def start(self) -> None:
        """Start it, again where it has ended."""
        program = server_program()
        assert program is not None and self.process is None
        for _ in range(5):
            places = ("--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", str(self.socket))
            still = ("--save", "", "--appendonly", "no", "--dir", str(self.folder), *self.options)
            self.process = subprocess.Popen([program, *places, *still], stdout=subprocess.DEVNULL)
            until = time.monotonic() + WAIT_S
            while self.process.poll() is None:
                if self.answers():
                    return
                assert time.monotonic() < until, "the server does not answer"
                time.sleep(0.005)
            self.port = free_port()  # somebody else was quicker
        raise AssertionError("the server does not start")

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def ask(self, *command: Any) -> Any:
        """What it says to a command, through a connection of its own."""
        import redis

        with redis.Redis(port=self.port, password=self.password or None, protocol=2) as client:
            return client.execute_command(*command)

    def calls(self, command: str) -> int:
        """How often a command was sent since the start."""
        return int(self.ask("INFO", "commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))

    def connections(self) -> int:
        """Connections so far; each question of this kind is one itself."""
        return int(self.ask("INFO", "stats")["total_connections_received"])

    def freeze(self) -> None:
        """It takes connections and never answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, frozen or not."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Liar:
    """Takes connections, reads, and says what it is told to.

    Parameters
    ----------
    answer : callable
        Called with the connection and what came first, in a thread of its own; what it raises ends the connection.
    """

    def __init__(self, answer: Callable[[socket.socket, bytes], object]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.connections = 0
        self.asked: list[bytes] = []
        self.over = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                self.asked.append(data)
                self._answer(connection, data)
        except OSError:
            return

    def close(self) -> None:
        """End every connection and every thread."""
        self.over.set()
        for open_ in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                open_.shutdown(socket.SHUT_RDWR)
            open_.close()
        for thread in self._threads:
            thread.join()


class BlackHole:
    """A port at which a connection is neither made nor refused: its queue is full, and nobody takes from it."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._waiting: list[socket.socket] = []
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._waiting.append(filler)

    def close(self) -> None:
        """Let go of it."""
        for open_ in (self._listener, *self._waiting):
            open_.close()
