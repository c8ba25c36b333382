"""The seal on stored bytes."""

from __future__ import annotations

import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplate.seal import SEAL_BYTES, seal, unseal


@given(st.binary(), st.binary(), st.binary(max_size=8))
def test_a_sealed_payload_opens_with_its_key_and_secret(key: bytes, payload: bytes, secret: bytes) -> None:
    """The seal adds SEAL_BYTES and takes nothing away."""
    blob = seal(key, payload, secret)
    assert len(blob) == len(payload) + SEAL_BYTES
    assert unseal(key, blob, secret) == payload


@given(st.binary(), st.binary(), st.binary(min_size=1, max_size=200))
def test_the_seal_is_the_hmac_of_the_standard_library(key: bytes, payload: bytes, secret: bytes) -> None:
    """Written out for speed, not another function; secrets longer than a block of SHA-256 included."""
    message = b"CUPSEAL\x01" + struct.pack("<Q", len(key)) + key + payload
    assert seal(key, payload, secret)[8:SEAL_BYTES] == hmac.digest(secret, message, "sha256")


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
