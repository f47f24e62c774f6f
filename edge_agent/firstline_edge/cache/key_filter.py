"""A Bloom filter: has every key that was added, and lacks nearly all others (Bloom, CACM 1970)."""

from __future__ import annotations

_BITS_PER_KEY = 16


class KeyFilter:
    """A set of keys that needs two to four bytes for each key of its capacity.

    It has every key that was added. Once it is full, it also seems to have up to 1.4 % of all other keys. One thread
    may add keys while another one looks them up.

    Args:
        capacity: number of keys, at least 1.

    Attributes:
        room: number of keys until the filter is full; below 0, it seems to have more of the other keys.
    """

    def __init__(self, capacity: int) -> None:
        self.room = capacity
        size_bits = 1 << (_BITS_PER_KEY * capacity - 1).bit_length()
        self._bits = bytearray(size_bits // 8)
        self._mask = size_bits - 1

    def add(self, key: bytes) -> None:
        """Adds a key."""
        self.room -= 1
        for position in self._positions(key):
            self._bits[position >> 3] |= 1 << (position & 7)

    def __contains__(self, key: bytes) -> bool:
        first, second = self._positions(key)
        bits = self._bits
        return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)

    def _positions(self, key: bytes) -> tuple[int, int]:
        digest = hash(key)  # 64 bits, of which each half is one hash
        return digest & self._mask, digest >> 32 & self._mask
