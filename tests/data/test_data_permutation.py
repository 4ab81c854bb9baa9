import collections

import pytest

from hf_pretrain.data.permutation import Permutation, derive_seed, mix64


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 511, 512, 513, 1000, 4097])
def test_is_a_bijection_with_an_inverse(size):
    for seed in (0, 1):
        permutation = Permutation(size, seed)
        image = [permutation[index] for index in range(size)]
        assert sorted(image) == list(range(size))
        assert [permutation.index_of(value) for value in image] == list(range(size))


def test_large_domain_is_computed_without_a_table():
    permutation = Permutation(10**12, 7)
    image = {permutation[index] for index in range(1000)}
    assert len(image) == 1000
    assert all(0 <= value < 10**12 for value in image)
    assert permutation.index_of(permutation[123456789]) == 123456789


@pytest.mark.parametrize("size", [200, 300])
def test_first_element_is_uniform_over_seeds(size):
    draws = 200 * size // 4
    counts = collections.Counter(Permutation(size, mix64(seed))[0] for seed in range(draws))
    expected = draws / size
    chi_square = sum((counts[value] - expected) ** 2 / expected for value in range(size))
    # Mean size - 1, standard deviation sqrt(2 size): five of them is one in millions.
    assert chi_square < size + 5 * (2 * size) ** 0.5


def test_neighbours_are_uncorrelated_and_seeds_differ():
    size = 4000
    first, second = ([Permutation(size, seed)[i] for i in range(size)] for seed in (1, 2))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    mean = (size - 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(first, first[1:], strict=False)) / size
    assert abs(covariance) / (size**2 / 12) < 0.08


def test_derive_seed_depends_on_every_part_and_order():
    seeds = {derive_seed(0, "web", 0), derive_seed(1, "web", 0), derive_seed(0, "books", 0), derive_seed(0, "web", 1)}
    assert len(seeds) == 4
    assert derive_seed(1, 2) != derive_seed(2, 1)
    # Names are hashed without Python's own hash, which changes from process to process.
    assert derive_seed(0, "web", 0) == 17795489409905918497


def test_bad_arguments():
    with pytest.raises(ValueError, match="size = 0"):
        Permutation(0, 0)
    with pytest.raises(IndexError, match="index 5 of a permutation of 5"):
        Permutation(5, 0)[5]
