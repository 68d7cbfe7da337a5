"""Values that show one part of the carry."""

import numpy as np

from softcarry.auditing.problems import one_hot_values, random_sign_values, reading_size, spread_positions


def test_one_hot_columns_read_weights():
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    assert np.array_equal(weights @ one_hot_values([3, 0, 3], 4, 2.0), [0.8, 0.2, 0.8])


def test_reading_size_keeps_a_mean_weight_near_one_and_within_float16():
    for keys in (1, 2, 3, 64, 1000, 65536, 2**20):
        size = reading_size(keys)
        assert np.float16(size) == size
        assert 2.0 ** np.log2(size).round() == size
        assert 0.5 <= size / keys < 2.0 or (keys > 2**15 and size == 2**15)


def test_positions_hold_both_ends_and_one_of_each_stretch():
    positions = spread_positions(np.random.default_rng(0), 1000, 10)
    assert positions[0] == 0
    assert positions[-1] == 999
    assert ((positions // 100) == np.arange(10)).all()
    assert set(spread_positions(np.random.default_rng(0), 1, 4)) == {0}


def test_signs_are_both_and_nothing_else():
    values = random_sign_values(np.random.default_rng(0), 100, 3)
    assert set(np.unique(values)) == {-1.0, 1.0}
    assert (np.abs(values.sum(axis=0)) < 100).all()
