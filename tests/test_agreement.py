"""Rank correlations and gaps between predicted and true costs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from neuroshard_fast.agreement import Agreement, kendall, spearman


@pytest.mark.parametrize("distinct", [3, 10, 10_000])
def test_rank_correlations_are_those_of_scipy_with_and_without_ties(distinct: int) -> None:
    generator = np.random.default_rng(distinct)
    a = generator.integers(0, distinct, 200).astype(float)
    b = a + generator.integers(0, distinct, 200).astype(float)
    assert kendall(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)


def test_rank_correlations_of_the_same_and_of_the_opposite_order_are_1_and_minus_1() -> None:
    a = np.array([3.0, 1.0, 2.0, 8.0])
    assert (kendall(a, a**3), spearman(a, a**3)) == (1.0, 1.0)
    assert (kendall(a, -a), spearman(a, -a)) == (-1.0, -1.0)


def test_there_is_no_rank_correlation_with_a_constant_or_of_one_pair() -> None:
    a, constant = np.array([1.0, 2.0]), np.array([5.0, 5.0])
    for x, y in ((a, constant), (constant, a), (a[:1], a[:1])):
        assert kendall(x, y) is None
        assert spearman(x, y) is None


def test_gaps_are_shares_of_the_true_cost() -> None:
    agreement = Agreement.of([1.1, 1.6, 4.0], [1.0, 2.0, 4.0])
    assert agreement.mean_gap == pytest.approx(0.1)
    assert agreement.worst_gap == pytest.approx(0.2)
    assert agreement.bias == pytest.approx(-0.1 / 3)
