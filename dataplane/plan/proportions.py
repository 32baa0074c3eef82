"""A sequence over several kinds in exact proportions, in which every place is found by arithmetic.

Amounts a and b are spread as evenly as whole numbers can be: of the first N places, `(N * a + (a + b) // 2) // (a + b)`
are of the first kind. More kinds are halves of halves. So any stretch of the sequence holds each kind's part to within
two or three places, a whole period holds each amount exactly, and counts, kinds and places follow from one another in
a few multiplications.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Amounts and periods below 2^40 and places below 2^42 keep `_scaled` within 64 bits.
MOST_PERIOD = 1 << 40
MOST_PLACES = 1 << 42
_DIGIT = 20


@dataclass(frozen=True)
class Proportions:
    """Kinds 0, 1, ... in proportion to their amounts; a kind whose amount is 0 never comes."""

    amounts: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.amounts) < 0 or not 0 < sum(self.amounts) < MOST_PERIOD:
            raise ValueError(f"amounts must not be negative and add up to less than {MOST_PERIOD}, got {self.amounts}")

    def counts(self, places: Ints) -> list[Ints]:
        """For each kind, how many of the first `places` places are of it; each of the shape of `places`."""
        found: dict[int, Ints] = {}

        def descend(node: _Node, count: Ints) -> None:
            if node.left is None or node.right is None:
                found[node.kind] = count
                return
            left = node.count_left(count)
            descend(node.left, left)
            descend(node.right, count - left)

        descend(self._root, places)
        return [found[kind] for kind in range(len(self.amounts))]

    def locate(self, places: Ints) -> tuple[Ints, Ints]:
        """The kind at each place, and how many of that kind come before it; each of the shape of `places`."""
        flat = places.ravel()
        kinds, numbers = np.empty_like(flat), np.empty_like(flat)

        def descend(node: _Node, number: Ints, where: Ints) -> None:
            if node.left is None or node.right is None:
                kinds[where], numbers[where] = node.kind, number
                return
            left = node.count_left(number)
            is_left = node.count_left(number + 1) > left
            descend(node.left, left[is_left], where[is_left])
            descend(node.right, (number - left)[~is_left], where[~is_left])

        descend(self._root, flat, np.arange(len(flat)))
        return kinds.reshape(places.shape), numbers.reshape(places.shape)

    def places(self, kind: int, numbers: Ints) -> Ints:
        """Where the kind's elements stand: the inverse of `locate`."""

        def ascend(node: _Node) -> Ints | None:
            if node.left is None or node.right is None:
                return numbers if node.kind == kind else None
            if (inside := ascend(node.left)) is not None:
                return node.place_of_left(inside)
            if (inside := ascend(node.right)) is not None:
                return node.place_of_right(inside)
            return None

        found = ascend(self._root)
        assert found is not None, "every kind is a leaf"
        return found

    @cached_property
    def _root(self) -> "_Node":
        return _tree(self.amounts, 0)


@dataclass(frozen=True, slots=True)
class _Node:
    """One kind, or two halves of the kinds spread over each other."""

    amount: int
    kind: int
    left: "_Node | None" = None
    right: "_Node | None" = None

    @property
    def _halves(self) -> tuple[int, int]:
        assert self.left is not None
        assert self.right is not None
        return self.left.amount, self.right.amount

    def count_left(self, count: Ints) -> Ints:
        left, _ = self._halves
        # A node of no amount is never reached with a count.
        return _scaled(count, left, self.amount, self.amount // 2) if self.amount else np.zeros_like(count)

    def place_of_left(self, number: Ints) -> Ints:
        # The first place after which one more is on the left: the least N with N * left + half >= (number + 1) * all.
        left, _ = self._halves
        return _scaled(number + 1, self.amount, left, left - 1 - self.amount // 2) - 1

    def place_of_right(self, number: Ints) -> Ints:
        # The right has N - count_left(N) = (N * right - half + all - 1) // all.
        _, right = self._halves
        return _scaled(number + 1, self.amount, right, right - self.amount + self.amount // 2) - 1


def _tree(amounts: Sequence[int], first: int) -> _Node:
    if len(amounts) == 1:
        return _Node(amounts[0], first)
    middle = len(amounts) // 2
    left, right = _tree(amounts[:middle], first), _tree(amounts[middle:], first + middle)
    return _Node(left.amount + right.amount, first, left, right)


def _scaled(number: Ints, factor: int, divisor: int, offset: int) -> Ints:
    """`(number * factor + offset) // divisor` without the product, which needs more than 64 bits."""
    high, low = number >> _DIGIT, number & ((1 << _DIGIT) - 1)
    quotient, rest = np.divmod(high * factor, divisor)
    return (quotient << _DIGIT) + ((rest << _DIGIT) + low * factor + offset) // divisor
