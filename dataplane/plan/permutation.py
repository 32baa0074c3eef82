"""Seeded permutations that can be reached without replaying what came before.

The generator is counter-based: number i of the stream named by a key is a hash of (key, i). The hash is the finaliser
of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014), so orders are the
same on every machine and with every version of NumPy.
"""

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def derive_key(*parts: int) -> int:
    """A 64-bit key for the stream that the parts name; every part and its place matter."""
    key = 0
    for part in parts:
        key = _mix((_mix((key + _GOLDEN) & _MASK) + part) & _MASK)
    return key


def random_words(key: int, count: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """Numbers `[first, first + count)` of a stream, shape (count,)."""
    words = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    words *= np.uint64(_GOLDEN)
    words += np.uint64(key)
    words ^= words >> np.uint64(30)
    words *= np.uint64(_FIRST)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_SECOND)
    words ^= words >> np.uint64(31)
    return words


def permutation(count: int, key: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` in the order that the key decides, shape (count,)."""
    # Each number rides in the low bits of its random word: a plain sort is several times as fast as an argsort, and
    # equal random bits are ordered alike by every sorting algorithm.
    low_bits = np.uint64((1 << count.bit_length()) - 1)
    words = random_words(key, count)
    words &= ~low_bits
    words |= np.arange(count, dtype=np.uint64)
    words.sort()
    words &= low_bits
    return words.view(np.int64)


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)
