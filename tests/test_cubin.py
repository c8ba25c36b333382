"""The record of a kernel, and its seal."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplate.cache.files import FOLDER
from cuplate.cache.folder import Folder
from cuplate.cache.policy import FORMAT
from cuplate.cubin import SEAL_BYTES, Cubin, Resources, decode, encode, seal, unseal

CODE = b"\x7fELF" + bytes(range(256))
CUBIN = Cubin(
    code=CODE,
    entry="_Z5sgemmILi16EEvv",
    arch="sm_90a",
    function="sgemm",
    resources=Resources(registers=40, static_shared_bytes=0),
    ingredients=(("source", "ab" * 32), ("arch", "sm_90a")),
    log="warning: none\n",
    compile_s=0.25,
    toolchain="nvrtc 13.5.37",
    parameters_text="tile=16",
)

TEXT = st.text(max_size=20)
COUNT = st.none() | st.integers(0, 2**40)


@given(
    st.builds(
        Cubin,
        code=st.binary(max_size=50).map(lambda tail: b"\x7fELF" + tail),
        entry=TEXT,
        arch=TEXT,
        function=TEXT,
        resources=st.builds(Resources, registers=COUNT, stack_bytes=COUNT, constant_bytes=COUNT),
        ingredients=st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple),
        log=TEXT,
        compile_s=st.floats(0, 1e6),
        toolchain=TEXT,
        parameters_text=TEXT,
    )
)
def test_a_record_gives_back_what_went_in(cubin: Cubin) -> None:
    """Any kernel, with any text in its names, comes back equal."""
    assert decode(encode(cubin)) == cubin


def test_text_that_is_not_unicode_survives() -> None:
    """A path in a log may hold a lone surrogate (a byte that was no UTF-8)."""
    odd = Cubin(code=CODE, entry="k", arch="sm_80", function="f", log="bad \udcff path")
    assert decode(encode(odd)).log == odd.log


def test_equal_kernels_give_equal_bytes() -> None:
    """The record is canonical: two processes store the same bytes."""
    assert encode(CUBIN) == encode(decode(encode(CUBIN)))


@pytest.mark.parametrize("code", [b"", b"\x7fEL", b"// ptx"])
def test_what_is_no_elf_image_is_never_a_record(code: bytes) -> None:
    """The empty result of a failed compile cannot be stored (B22)."""
    with pytest.raises(ValueError, match="not an ELF image"):
        encode(Cubin(code=code, entry="k", arch="sm_80", function="f"))


def test_every_cut_of_a_record_is_refused() -> None:
    """A record cut at any byte is a ValueError, never another kernel (B21)."""
    record = encode(CUBIN)
    for end in range(len(record)):
        with pytest.raises(ValueError):
            decode(record[:end])
    with pytest.raises(ValueError, match="longer than it says"):
        decode(record + b"x")


@given(st.binary(max_size=200))
def test_noise_behind_the_magic_is_refused(noise: bytes) -> None:
    """Bytes that only begin like a record raise ValueError and nothing else."""
    with pytest.raises(ValueError):
        decode(b"CUPLATE\x01" + noise)


LENGTHS = struct.Struct("<IIIIQ")


def with_meta(text: bytes) -> bytes:
    """The record of CUBIN with other metadata, and its length made right."""
    record = encode(CUBIN)
    *names, about, code = LENGTHS.unpack_from(record, 8)
    start = 8 + LENGTHS.size + sum(names)
    return (
        record[:8]
        + LENGTHS.pack(*names, len(text), code)
        + record[8 + LENGTHS.size : start]
        + text
        + record[start + about :]
    )


def meta() -> bytes:
    """The metadata of CUBIN's record."""
    record = encode(CUBIN)
    *names, about, _ = LENGTHS.unpack_from(record, 8)
    start = 8 + LENGTHS.size + sum(names)
    return record[start : start + about]


def meta_record(change: dict[str, object]) -> bytes:
    """A record whose metadata has been tampered with."""
    return with_meta(json.dumps({**json.loads(meta()), **change}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"log": 3},
        {"compile_s": "1"},
        {"compile_s": float("nan")},
        {"compile_s": True},
        {"ingredients": "ab"},
        {"ingredients": [["a"]]},
        {"ingredients": [["a", 1]]},
        {"resources": {}},
        {"resources": {**{n: None for n in Resources.__slots__}, "registers": -1}},
        {"resources": {**{n: None for n in Resources.__slots__}, "registers": True}},
        {"extra": 1},
    ],
)
def test_metadata_of_the_wrong_type_is_refused(change: dict[str, object]) -> None:
    """Each field is checked; a planted value never reaches the code behind."""
    assert decode(meta_record({})) == CUBIN
    with pytest.raises(ValueError, match="metadata"):
        decode(meta_record(change))


def test_metadata_nested_without_end_is_refused() -> None:
    """JSON deeper than the interpreter's stack is a ValueError."""
    text = b"[" * 200_000
    with pytest.raises(ValueError, match="metadata is not JSON"):
        decode(with_meta(text))


def test_a_record_read_lazily_shows_its_faults_when_they_are_asked_for() -> None:
    """A disk hit reads code and names only; the rest is checked when it is looked at, and equal to what was put."""
    assert decode(encode(CUBIN), lazily=True) == CUBIN
    damaged = decode(meta_record({"log": 3}), lazily=True)
    assert (damaged.code, damaged.entry) == (CUBIN.code, CUBIN.entry)
    with pytest.raises(ValueError, match="log is not text"):
        _ = damaged.resources


def test_a_cubin_cannot_be_changed_and_survives_pickling() -> None:
    """What is shared by threads and stores is immutable; a copy through pickle is equal."""
    with pytest.raises(AttributeError):
        CUBIN.entry = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(CUBIN)) == CUBIN


def test_a_record_of_another_version_is_refused() -> None:
    """The version is part of the magic."""
    with pytest.raises(ValueError, match="this version"):
        decode(b"CUPLATE\x02" + encode(CUBIN)[8:])


def test_what_lies_on_the_disk_is_that_of_this_format(tmp_path: Path) -> None:
    """Two versions of the library share a directory: whoever changes these bytes raises the version in the magic.

    Another record is another ``CUPLATE`` magic, another seal or table another folder (`FORMAT`), another file another
    ``CUPFILE`` magic. Then, and only then, the digests here change.
    """
    key = bytes(range(32))
    record = encode(CUBIN)
    blob = seal(key, record, b"secret")
    Folder(str(tmp_path)).write(key, "sgemm", blob)
    file = (tmp_path / key.hex()[:2] / key.hex()).read_bytes()
    parts = (record, blob, file[:16] + file[24:])  # without the time of the put
    assert (FORMAT, FOLDER, *(hashlib.sha256(part).hexdigest()[:16] for part in parts)) == (
        "v1",
        "v1.files",
        "01f8641e6b7c97c4",
        "a29146e3cedccfc1",
        "ccbfc8324458557c",
    )


def test_resources_tell_unknown_from_zero() -> None:
    """None is unknown, 0 is none, and both survive."""
    found = decode(encode(CUBIN)).resources
    assert found.static_shared_bytes == 0
    assert found.spill_store_bytes is None


@given(st.binary(), st.binary(), st.binary(max_size=8))
def test_a_sealed_payload_opens_with_its_key_and_secret(key: bytes, payload: bytes, secret: bytes) -> None:
    """The seal adds SEAL_BYTES and takes nothing away."""
    blob = seal(key, payload, secret)
    assert len(blob) == len(payload) + SEAL_BYTES
    assert unseal(key, blob, secret) == payload


def test_any_flipped_bit_breaks_the_seal() -> None:
    """One bit anywhere, in seal or payload, and the entry is refused (B21)."""
    blob = seal(b"key", b"payload")
    for position in range(len(blob)):
        flipped = bytearray(blob)
        flipped[position] ^= 1
        assert unseal(b"key", bytes(flipped)) is None


def test_the_seal_binds_key_and_secret() -> None:
    """Another key, another secret, or bytes moved between key and payload: refused."""
    blob = seal(b"ab", b"cd", b"secret")
    assert unseal(b"ac", blob, b"secret") is None
    assert unseal(b"ab", blob, b"Secret") is None
    assert unseal(b"ab", blob) is None
    assert unseal(b"a", blob[:SEAL_BYTES] + b"bcd", b"secret") is None


@pytest.mark.parametrize("blob", [None, 3, "text", b"", b"CUPSEAL\x01", bytearray(seal(b"k", b"p"))])
def test_only_bytes_are_unsealed(blob: object) -> None:
    """Whatever else a row may hold is refused without an error."""
    assert unseal(b"k", blob) is None
