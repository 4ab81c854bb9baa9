"""A seeded permutation of `[0, n)` that needs no table: every index is computed alone, forwards and back.

A Feistel network (Luby and Rackoff, 1988) is a bijection on `2^b` numbers whatever its round function; walking along
its cycle until the value falls below `n` (Black and Rogaway, 2002) makes it one on `[0, n)`. With the smallest
even-handed `2^b >= n` the walk takes fewer than two steps on average. Below 256 a sorted table of hashes is used: a
Feistel network of a few bits reaches only few of the permutations.
"""

import numpy as np


_MASK = (1 << 64) - 1
_ROUNDS = 6
_SMALL = 256


def mix64(value: int) -> int:
    """Scrambles 64 bits (the finaliser of SplitMix64, Steele et al. 2014).

    Args:
        value (`int`): Any integer; only its low 64 bits count.

    Returns:
        `int`: A number in `[0, 2^64)`; distinct inputs below `2^64` give distinct outputs.
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derive_seed(*parts: int | str) -> int:
    """Makes one seed of several numbers and names.

    Args:
        parts (`int` or `str`): For example the run's seed, the source's name and the epoch.

    Returns:
        `int`: A number in `[0, 2^64)` that depends on every part and on their order.
    """
    state = 0
    for part in parts:
        if isinstance(part, str):
            # FNV-1a, because Python's own hash of a string differs from process to process.
            text = 0xCBF29CE484222325
            for byte in part.encode("utf-8"):
                text = ((text ^ byte) * 0x100000001B3) & _MASK
            part = text
        state = mix64(state ^ mix64(part))
    return state


class Permutation:
    """A seeded bijection on `[0, size)` in constant memory.

    Args:
        size (`int`): How many numbers are permuted.
        seed (`int`): Which permutation.

    Raises:
        ValueError: If `size` is below 1.
    """

    def __init__(self, size: int, seed: int):
        if size < 1:
            raise ValueError(f"size = {size}; a permutation needs at least one number")
        self.size = size
        self.seed = seed
        self._table: list[int] | None = None
        if size <= _SMALL:
            self._table = sorted(range(size), key=lambda index: (mix64(seed ^ mix64(index)), index))
            return
        bits = (size - 1).bit_length()
        self._low_bits = bits // 2
        self._high_bits = bits - self._low_bits
        self._keys = [mix64(seed + mix64(round_index + 1)) for round_index in range(_ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        """Gives the number at place `index`.

        Args:
            index (`int`): A number in `[0, size)`.

        Returns:
            `int`: Its image in `[0, size)`.

        Raises:
            IndexError: If `index` lies outside.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} of a permutation of {self.size}")
        if self._table is not None:
            return self._table[index]
        value = self._forward(index)
        while value >= self.size:
            value = self._forward(value)
        return value

    def block(self, start: int, stop: int) -> list[int]:
        """Gives the numbers at neighbouring places, much faster than one by one.

        Args:
            start (`int`): First place.
            stop (`int`): End, exclusive, at most `size`.

        Returns:
            `list[int]`: Their images.
        """
        if self._table is not None:
            return self._table[start:stop]
        values = self._forward_all(np.arange(start, stop, dtype=np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            values[outside] = self._forward_all(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.tolist()

    def index_of(self, value: int) -> int:
        """Finds the place of a number: the inverse permutation.

        Args:
            value (`int`): A number in `[0, size)`.

        Returns:
            `int`: The `index` with `self[index] == value`.

        Raises:
            IndexError: If `value` lies outside.
        """
        if not 0 <= value < self.size:
            raise IndexError(f"value {value} of a permutation of {self.size}")
        if self._table is not None:
            return self._table.index(value)
        index = self._backward(value)
        while index >= self.size:
            index = self._backward(index)
        return index

    def _forward(self, value: int) -> int:
        # The halves may differ by one bit, so they swap widths every round; an even number of rounds restores them.
        left_bits, right_bits = self._high_bits, self._low_bits
        left, right = value >> right_bits, value & ((1 << right_bits) - 1)
        for key in self._keys:
            left, right = right, left ^ (mix64(key ^ right) & ((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        return (left << right_bits) | right

    def _forward_all(self, values: np.ndarray) -> np.ndarray:
        left_bits, right_bits = self._high_bits, self._low_bits
        left, right = values >> np.uint64(right_bits), values & np.uint64((1 << right_bits) - 1)
        for key in self._keys:
            mixed = right ^ np.uint64(key)
            mixed += np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
            left, right = right, left ^ (mixed & np.uint64((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right

    def _backward(self, value: int) -> int:
        left_bits, right_bits = self._high_bits, self._low_bits
        left, right = value >> right_bits, value & ((1 << right_bits) - 1)
        for key in reversed(self._keys):
            left_bits, right_bits = right_bits, left_bits
            left, right = right ^ (mix64(key ^ left) & ((1 << left_bits) - 1)), left
        return (left << right_bits) | right
