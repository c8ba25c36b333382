"""The record of a kernel."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplate.cache.directory import FORMAT
from cuplate.cache.files import FOLDER
from cuplate.cache.folder import Folder
from cuplate.cubin import Cubin, Resources, decode, encode
from cuplate.seal import seal

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
    source="__global__ void sgemm() {}\n",
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
        source=TEXT,
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
        decode(b"CUPLATE\x02" + noise)


LENGTHS = struct.Struct("<IIIIIQ")


def parts(record: bytes) -> list[bytes]:
    """Names, metadata, deflated source and code of a record."""
    found, at = [], 8 + LENGTHS.size
    for length in LENGTHS.unpack_from(record, 8):
        found.append(record[at : at + length])
        at += length
    return found


def with_part(number: int, content: bytes) -> bytes:
    """The record of CUBIN with another part, and its length made right."""
    made = parts(encode(CUBIN))
    made[number] = content
    return b"CUPLATE\x02" + LENGTHS.pack(*map(len, made)) + b"".join(made)


def with_meta(text: bytes) -> bytes:
    """The record of CUBIN with other metadata."""
    return with_part(3, text)


def meta() -> bytes:
    """The metadata of CUBIN's record."""
    return parts(encode(CUBIN))[3]


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
        decode(b"CUPLATE\x03" + encode(CUBIN)[8:])


def test_a_record_of_the_first_version_is_read_and_has_no_source() -> None:
    """Version 1 had neither source nor its length; such an entry is a hit, and written anew it is of this version."""
    entry, arch, function, about, _, code = parts(encode(CUBIN))
    old = [entry, arch, function, about, code]
    record = b"CUPLATE\x01" + struct.pack("<IIIIQ", *map(len, old)) + b"".join(old)
    assert decode(record) == CUBIN.without_source()
    assert decode(encode(decode(record))).source == ""
    for end in range(len(record)):
        with pytest.raises(ValueError):
            decode(record[:end])


@pytest.mark.parametrize(
    "packed",
    [b"no deflate", zlib.compress(b"text")[:-1], zlib.compress(b"text") + b"more", zlib.compress(b"\xff")],
    ids=["noise", "cut", "longer", "no text"],
)
def test_a_source_that_cannot_be_read_leaves_the_kernel(packed: bytes) -> None:
    """The source is read when it is asked for: a fault in it is a ValueError then, and no miss."""
    cubin = decode(with_part(4, packed))
    assert cubin.code == CUBIN.code
    with pytest.raises(ValueError, match="source"):
        _ = cubin.source


def test_a_planted_source_does_not_fill_the_memory() -> None:
    """What inflates to more than 64 MiB is refused."""
    with pytest.raises(ValueError, match="longer than it may be"):
        _ = decode(with_part(4, zlib.compress(bytes((1 << 26) + 1)))).source


def test_a_kernel_can_leave_its_source_behind() -> None:
    """All else stays, read or not read yet."""
    bare = decode(encode(CUBIN), lazily=True).without_source()
    assert (bare.source, bare.resources, bare.code) == ("", CUBIN.resources, CUBIN.code)
    assert parts(encode(bare))[4] == b""
    assert bare != CUBIN


def test_what_lies_on_the_disk_is_that_of_this_format(tmp_path: Path) -> None:
    """Two versions of the library share a directory: whoever changes these bytes raises the version in the magic.

    Another record is another ``CUPLATE`` magic, another seal or table another folder (`FORMAT`), another file another
    ``CUPFILE`` magic. Then, and only then, the digests here change.
    """
    key = bytes(range(32))
    record = encode(CUBIN.without_source())  # what deflates to which bytes is up to zlib
    blob = seal(key, record, b"secret")
    Folder(str(tmp_path)).write(key, "sgemm", blob)
    file = (tmp_path / key.hex()[:2] / key.hex()).read_bytes()
    parts = (record, blob, file[:16] + file[24:])  # without the time of the put
    assert (FORMAT, FOLDER, *(hashlib.sha256(part).hexdigest()[:16] for part in parts)) == (
        "v1",
        "v1.files",
        "ba9d3f53142486af",
        "c38ce14019c8cf3f",
        "8a3a230d8bfaf5e9",
    )


def test_resources_tell_unknown_from_zero() -> None:
    """None is unknown, 0 is none, and both survive."""
    found = decode(encode(CUBIN)).resources
    assert found.static_shared_bytes == 0
    assert found.spill_store_bytes is None
