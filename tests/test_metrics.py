"""Metrics by hand and against scikit-learn (and torchmetrics, where it is installed)."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from easydgl_mini.train import accuracy, f1_of, hit_rate, macro_f1, mae, mape, ndcg, rank_of, rmse


def test_ranks_by_hand():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.5, 0.3]] * 5)
    target = torch.tensor([1, 2, 3, 4, 0])
    assert rank_of(scores, target).tolist() == [1, 3, 3, 4, 5]  # the two at 0.5 count against each other


def test_what_is_excluded_does_not_compete_but_the_target_always_does():
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 3)
    target = torch.tensor([2, 2, 2])
    ids = torch.tensor([[0, -1], [-1, 2], [0, 1]])
    assert rank_of(scores, target, exclude=ids).tolist() == [2, 3, 1]
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 0] = mask[1, 2] = mask[2, 0] = mask[2, 1] = True
    assert rank_of(scores, target, exclude=mask).tolist() == [2, 3, 1]


def test_constant_scores_are_the_worst_ranking():
    assert rank_of(torch.zeros(2, 7), torch.tensor([0, 6])).tolist() == [7, 7]


def test_infinities_are_scores_but_nan_is_not():
    assert rank_of(torch.tensor([[math.inf, 1.0, -math.inf]]), torch.tensor([1])).item() == 2
    with pytest.raises(ValueError, match=r"scores\[0, 2\] is nan"):
        rank_of(torch.tensor([[0.0, 1.0, math.nan]]), torch.tensor([1]))


@pytest.mark.parametrize("target", [[-1], [3]])
def test_a_target_out_of_range_is_named(target):
    with pytest.raises(ValueError, match=r"target\[0\] is"):
        rank_of(torch.zeros(1, 3), torch.tensor(target))


def test_hit_rate_and_ndcg_by_hand():
    ranks = torch.tensor([1, 2, 3, 11])
    assert hit_rate(ranks, 1) == 0.25 and hit_rate(ranks, 10) == 0.75 and hit_rate(ranks, 11) == 1.0
    assert ndcg(ranks, 1) == 0.25
    assert ndcg(ranks, 10) == pytest.approx((1 + 1 / math.log2(3) + 0.5) / 4)


def test_ndcg_equals_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    scores = torch.rand(50, 30, generator=draw, dtype=torch.float64)
    target = torch.randint(0, 30, (50,), generator=draw)
    relevance = torch.nn.functional.one_hot(target, 30).numpy()
    ranks = rank_of(scores, target)
    for k in (1, 5, 10, 29):
        assert ndcg(ranks, k) == pytest.approx(sk.ndcg_score(relevance, scores.numpy(), k=k))
        assert hit_rate(ranks, k) == pytest.approx(sk.top_k_accuracy_score(target, scores, k=k, labels=range(30)))


def test_one_ranking_keeps_the_bound_between_hit_rate_and_ndcg():
    """A target ranked 11 … 50 adds between 1/log2(51) and 1/log2(12) to NDCG@50 - NDCG@10, and 1 to the hit rates."""
    ranks = torch.randint(1, 120, (300,), generator=torch.Generator().manual_seed(1))
    for low, high in ((10, 50), (50, 100)):
        gain, hits = ndcg(ranks, high) - ndcg(ranks, low), hit_rate(ranks, high) - hit_rate(ranks, low)
        assert hits / math.log2(high + 1) <= gain <= hits / math.log2(low + 2)


def test_errors_by_hand_with_missing_readings():
    truth = torch.tensor([[10.0, 0.0], [math.nan, 20.0]])
    guess = torch.tensor([[12.0, 99.0], [99.0, 16.0]])
    assert mae(guess, truth) == 3.0 and rmse(guess, truth) == pytest.approx(math.sqrt(10))
    assert mape(guess, truth) == pytest.approx(0.2)
    assert mae(guess, truth, missing=-1.0) == pytest.approx((2 + 99 + 4) / 3)  # then zero is a reading
    assert mape(guess, truth, missing=-1.0) == pytest.approx(0.2)  # but can't be divided by


def test_errors_are_ratios_of_sums_not_means_of_means():
    truth, guess = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0], [5.0, 9.0, 9.0]])
    assert mae(guess, truth) == 1.0  # 4 / 4 readings, not (0 + 4) / 2 rows


def test_errors_equal_scikit_learn():
    draw = np.random.default_rng(0)
    truth, guess = draw.uniform(1, 70, (40, 5)), draw.uniform(1, 70, (40, 5))
    for ours, theirs in (
        (mae, sk.mean_absolute_error),
        (rmse, sk.root_mean_squared_error),
        (mape, sk.mean_absolute_percentage_error),
    ):
        assert ours(torch.from_numpy(guess), torch.from_numpy(truth)) == pytest.approx(
            theirs(truth.ravel(), guess.ravel())
        )


def test_no_valid_reading_and_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="no valid reading"):
        mae(torch.ones(3), torch.zeros(3))
    with pytest.raises(ValueError, match="one shape"):
        rmse(torch.ones(3), torch.ones(1, 3))


def test_class_metrics_equal_scikit_learn():
    draw = np.random.default_rng(0)
    truth = draw.choice(3, 200, p=[0.2, 0.05, 0.75])
    guess = np.where(draw.random(200) < 0.6, truth, draw.integers(0, 3, 200))
    t, g = torch.from_numpy(truth), torch.from_numpy(guess)
    assert accuracy(g, t) == pytest.approx(sk.accuracy_score(truth, guess))
    each = sk.f1_score(truth, guess, average=None)
    assert [f1_of(c, g, t) for c in range(3)] == pytest.approx(each.tolist())
    assert macro_f1(g, t, 3) == pytest.approx(each.mean())
    assert len(set(each)) == 3  # the classes can be told apart, so a swapped label would show


def test_f1_by_hand_and_of_an_absent_class():
    guess, truth = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 1])
    assert f1_of(1, guess, truth) == pytest.approx(2 * 1 / (2 + 3))
    assert f1_of(2, guess, truth) == 0.0
    assert macro_f1(guess, truth, 4) == pytest.approx((f1_of(0, guess, truth) + 0.4) / 4)


def test_torchmetrics_agrees_on_classes_and_errors():
    functional = pytest.importorskip("torchmetrics").functional
    draw = torch.Generator().manual_seed(0)
    guess, truth = torch.randint(0, 3, (2, 100), generator=draw)
    theirs = functional.f1_score(guess, truth, task="multiclass", num_classes=3, average="macro")
    assert macro_f1(guess, truth, 3) == pytest.approx(theirs.item())
    each = functional.f1_score(guess, truth, task="multiclass", num_classes=3, average="none")
    assert [f1_of(k, guess, truth) for k in range(3)] == pytest.approx(each.tolist())
    micro = functional.accuracy(guess, truth, task="multiclass", num_classes=3, average="micro")
    assert accuracy(guess, truth) == pytest.approx(micro.item())
    guess, truth = torch.rand(2, 50, generator=draw) + 0.5
    assert mae(guess, truth) == pytest.approx(functional.mean_absolute_error(guess, truth).item())
    assert rmse(guess, truth) == pytest.approx(functional.mean_squared_error(guess, truth, squared=False).item())
    assert mape(guess, truth) == pytest.approx(functional.mean_absolute_percentage_error(guess, truth).item())


@pytest.mark.parametrize("k", [1, 5, 20])
def test_torchmetrics_agrees_on_rankings(k):
    retrieval = pytest.importorskip("torchmetrics.functional.retrieval")
    scores = torch.rand(40, 30, generator=torch.Generator().manual_seed(1))
    target = torch.arange(40) % 30
    ranks, relevant = rank_of(scores, target), torch.nn.functional.one_hot(target, 30)
    pairs = list(zip(scores, relevant, strict=True))
    hits = [retrieval.retrieval_hit_rate(s, r, top_k=k).item() for s, r in pairs]
    gains = [retrieval.retrieval_normalized_dcg(s, r, top_k=k).item() for s, r in pairs]
    assert hit_rate(ranks, k) == pytest.approx(sum(hits) / 40)
    assert ndcg(ranks, k) == pytest.approx(sum(gains) / 40, rel=1e-5)
