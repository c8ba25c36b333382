"""A store of the user's behind the shared tier: two methods, and whatever they may do wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cuplate.cache import remote
from cuplate.cache.remote import LARGEST_BYTES, BadEntry, Foreign, Refused, SharedStore, Unusable


class Good:
    """A dictionary."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.held.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.held[key] = value


class Inner:
    Good = Good


class Answers:
    """Gives, or raises, what the test says."""

    answer: Any = None

    def get(self, key: bytes) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def put(self, key: bytes, value: bytes) -> None:
        if isinstance(self.answer, BaseException):
            raise self.answer


class Stuck:
    """Never answers, until the test ends."""

    gate = threading.Event()

    def get(self, key: bytes) -> bytes | None:
        self.gate.wait(30)
        return b"late"

    def put(self, key: bytes, value: bytes) -> None:
        return


class NoPut:
    def get(self, key: bytes) -> bytes | None:
        return None


def fails() -> SharedStore:
    """A constructor that cannot."""
    raise Answers.answer


@pytest.mark.parametrize("name", ["Good", "Inner.Good"])
def test_two_methods_are_enough(name: str) -> None:
    """Found by name, also inside a class; made once."""
    store = Foreign(f"{__name__}:{name}")
    assert store.get(b"k") is None
    assert store.put(b"k", b"v", time_to_live_s=1.0, replace=False) and store.get(b"k") == b"v"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no.such.module:Class", "ModuleNotFoundError"),
        (f"{__name__}:Missing", "AttributeError"),
        (f"{__name__}:NoPut", "two methods"),
    ],
)
def test_what_is_no_store_is_unusable(name: str, said: str) -> None:
    """For good, with the reason."""
    with pytest.raises(Unusable, match=said):
        Foreign(name)


class Panic(BaseException):
    """As an extension in Rust raises it; asyncio.CancelledError is of the same kind."""


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("no network"), OSError), (SystemExit(3), RuntimeError), (Panic(), RuntimeError)]
)
def test_a_constructor_that_fails_may_succeed_later(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[Exception]
) -> None:
    """That is a fault, and not the end."""
    monkeypatch.setattr(Answers, "answer", error)
    with pytest.raises(raised):
        Foreign(f"{__name__}:fails")


WRONG = {"str": "text", "int": 3, "bytearray": bytearray(b"x"), "memoryview": memoryview(b"x"), "list": [b"x"]}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_type_is_a_fault(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes or None."""
    monkeypatch.setattr(Answers, "answer", WRONG[kind])
    with pytest.raises(TypeError, match=kind):
        Foreign(f"{__name__}:Answers").get(b"k")


def test_what_it_raises_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a put a refusal, which leaves look-ups alone."""
    monkeypatch.setattr(Answers, "answer", ValueError("x"))
    store = Foreign(f"{__name__}:Answers")
    with pytest.raises(ValueError, match="x"):
        store.get(b"k")
    with pytest.raises(Refused, match="ValueError: x"):
        store.put(b"k", b"v", time_to_live_s=1.0, replace=False)
    monkeypatch.setattr(Answers, "answer", Panic("x"))
    with pytest.raises(RuntimeError, match="Panic"):
        store.get(b"k")
    with pytest.raises(Refused, match="Panic: x"):
        store.put(b"k", b"v", time_to_live_s=1.0, replace=False)


def test_a_value_that_is_too_large_is_a_bad_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is nothing of ours."""
    monkeypatch.setattr(Answers, "answer", bytes(LARGEST_BYTES + 1))
    with pytest.raises(BadEntry):
        Foreign(f"{__name__}:Answers").get(b"k")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Foreign]:
    """A store that hangs; let go at the end."""
    monkeypatch.setattr(Stuck, "gate", threading.Event())
    monkeypatch.setattr(remote, "WAIT_S", 0.01)
    monkeypatch.setattr(remote, "_LATE", 3)
    yield Foreign(f"{__name__}:Stuck")
    Stuck.gate.set()
    for thread in threading.enumerate():
        if thread.name == "cuplate-shared":
            thread.join(10)


def test_a_store_that_hangs_keeps_few_threads(stuck: Foreign) -> None:
    """A look-up is given up in time; when so many hang, no more are begun."""
    said = []
    for _ in range(6):
        with pytest.raises(TimeoutError) as caught:
            stuck.get(b"k")
        said.append("have not ended" in str(caught.value))
    assert said == [False] * 3 + [True] * 3
    assert sum(thread.name == "cuplate-shared" for thread in threading.enumerate()) == 3


def test_late_look_ups_that_end_make_room(stuck: Foreign) -> None:
    """The next one is asked again."""
    with pytest.raises(TimeoutError):
        stuck.get(b"k")
    Stuck.gate.set()
    for thread in threading.enumerate():
        if thread.name == "cuplate-shared":
            thread.join(10)
    for _ in range(5):
        assert stuck.get(b"k") == b"late"
