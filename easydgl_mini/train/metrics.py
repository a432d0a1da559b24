"""Ranking, regression and classification metrics, with ties, exclusions and missing readings defined."""

import torch


def rank_of(scores, target, exclude=None):
    """Rank of each target among all items; 1 is best.

    Parameters
    ----------
    scores : tensor, shape (U, items)
    target : int tensor, shape (U,)
    exclude : bool tensor, shape (U, items), or int tensor, shape (U, m), optional
        Items that do not compete (a user's history): a mask, or their ids with -1 as padding. The target itself is
        never excluded.

    Returns
    -------
    int tensor, shape (U,)
        One plus the number of competing items whose score is at least the target's: ties count against the target.

    Examples
    --------
    >>> rank_of(torch.tensor([[0.9, 0.5, 0.5, 0.1]]), torch.tensor([1]), exclude=torch.tensor([[0]]))
    tensor([2])
    """
    if scores.ndim != 2 or target.shape != scores.shape[:1]:
        raise ValueError(f"scores must be (U, items) and target (U,), got {tuple(scores.shape)}, {tuple(target.shape)}")
    bad = (target < 0) | (target >= scores.shape[1])
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        raise ValueError(f"target[{first}] is {target[first].item()}; expected an item in 0 … {scores.shape[1] - 1}")
    if torch.isnan(scores).any():
        first = torch.isnan(scores).nonzero()[0].tolist()
        raise ValueError(f"scores{first} is nan")
    target = target.long().unsqueeze(-1)
    competes = scores >= scores.gather(1, target)
    if exclude is not None:
        if exclude.dtype == torch.bool:
            competes = competes & ~exclude
        else:
            padded = torch.cat([competes, competes.new_zeros(len(scores), 1)], 1)  # -1 falls into the last column
            index = torch.where(exclude < 0, scores.shape[1], exclude.long())
            competes = padded.scatter(1, index, False)[:, :-1]
    competes = competes.scatter(1, target, False)
    return 1 + competes.sum(1)


def hit_rate(ranks, k):
    """Share of targets ranked k-th or better."""
    return (ranks <= k).double().mean().item()


def ndcg(ranks, k):
    """Mean of 1 / log2(1 + rank) for targets ranked k-th or better, 0 for the others: NDCG with one relevant item."""
    return torch.where(ranks <= k, 1 / torch.log2(1 + ranks.double()), 0).mean().item()


def _valid(prediction, truth, missing):
    if prediction.shape != truth.shape:
        raise ValueError(
            f"prediction and truth must have one shape, got {tuple(prediction.shape)}, {tuple(truth.shape)}"
        )
    valid = ~torch.isnan(truth) & (truth != missing)
    if not valid.any():
        raise ValueError("truth has no valid reading")
    return prediction[valid].double(), truth[valid].double()


def mae(prediction, truth, missing=0.0):
    """Mean absolute error over all valid readings; NaN and ``missing`` in ``truth`` are not readings."""
    p, y = _valid(prediction, truth, missing)
    return (p - y).abs().mean().item()


def rmse(prediction, truth, missing=0.0):
    """Root of the mean squared error over all valid readings."""
    p, y = _valid(prediction, truth, missing)
    return (p - y).square().mean().sqrt().item()


def mape(prediction, truth, missing=0.0):
    """Mean absolute error relative to the reading, over all valid readings that are not zero; 0.1 is ten percent."""
    p, y = _valid(prediction, truth, missing)
    p, y = p[y != 0], y[y != 0]
    return ((p - y) / y).abs().mean().item()


def accuracy(prediction, truth):
    """Share of labels that are right."""
    return (prediction == truth).double().mean().item()


def f1_of(label, prediction, truth):
    """F1 of one class; 0 where it is neither predicted nor there."""
    hit = ((prediction == label) & (truth == label)).sum().item()
    total = (prediction == label).sum().item() + (truth == label).sum().item()
    return 2 * hit / total if total else 0.0


def macro_f1(prediction, truth, num_classes):
    """Mean of the classes' F1."""
    return sum(f1_of(label, prediction, truth) for label in range(num_classes)) / num_classes
