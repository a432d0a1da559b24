r"""Correlation-adjusted masking: what is hidden, and how the hidden ones ask (chapter *Correlation-adjusted masking*).

A masked node is removed as a key and asks with an embedding of its *label* (the paper's eq:camask):

.. math:: \mathbf h_u = \sum_{i \in \mathcal N_u \setminus \mathcal M}
    \operatorname{softmax}_i\big(e_{ui}(\mathbf q(y_u), \mathbf k_i)\big)\, \mathbf v_i

The residual path never carries :math:`\mathbf q(y_u)`; that the attention weights carry the label all the same is what
the chapter measures, and why masked and unmasked losses are reported apart.
"""

import numpy as np
import torch
from torch import nn


def uniform(ids, seed, epoch, width=None):
    """Numbers in [0, 1) that depend on the seed, the epoch and the id alone: not on batches, processes or devices.

    Parameters
    ----------
    ids : int tensor, shape (n,)
    seed, epoch : int
    width : int, optional
        How many numbers per id.

    Returns
    -------
    float64 tensor on the CPU, shape (n,) or (n, width)

    Examples
    --------
    >>> a, b = uniform(torch.tensor([3, 7]), seed=0, epoch=1, width=5), uniform(torch.tensor([7]), 0, 1, 5)
    >>> bool((a[1] == b[0]).all()), bool((a == uniform(torch.tensor([3, 7]), 0, 2, 5)).any())
    (True, False)
    """
    key = _scramble(_scramble(np.array([seed], dtype=np.uint64)) ^ np.uint64(epoch))
    key = _scramble(key ^ torch.as_tensor(ids).cpu().numpy().astype(np.uint64))
    if width is not None:
        key = _scramble(key[:, None] ^ np.arange(width, dtype=np.uint64))
    return torch.from_numpy((key >> np.uint64(11)).astype(np.float64) / 2**53)


def pick_nodes(rate, ids, seed, epoch, allowed=None):
    """Hide each node with probability ``rate``: bool (n,). Where ``allowed`` (n,) is False nothing is hidden."""
    picked = uniform(ids, seed, epoch) < rate
    return picked if allowed is None else picked.to(allowed.device) & allowed


def pick_positions(rate, ids, mask, seed, epoch):
    """Hide each real position of each sequence with probability ``rate``, but leave at least one to attend to.

    Parameters
    ----------
    rate : float
    ids : int tensor, shape (B,)
        Which sequences these are.
    mask : bool tensor, shape (B, T)
        True at real positions.
    seed, epoch : int

    Returns
    -------
    bool tensor, shape (B, T)
        True where hidden. A sequence of one event hides nothing. Positions are counted from the *end* of the sequence,
        so wider padding hides the same events.
    """
    draw = uniform(ids, seed, epoch, mask.shape[1]).flip(1).to(mask.device)
    draw = draw.masked_fill(~mask, -1.0)
    spared = draw == draw.max(1, keepdim=True).values  # the last to be hidden is never hidden
    return mask & (draw < rate) & ~spared


class CaM(nn.Module):
    r"""Masking whose queries know their label, for nodes and roads.

    Parameters
    ----------
    rate : float
        Probability that a node is masked; the paper's best is 0.2.
    dim : int
        Width of the queries.
    num_labels : int, optional
        Number of classes; None for a label that is a real number.
    detach : bool
        No gradient flows through the attention weights of masked queries, so that nothing can learn to pass the label
        on *through them* (what their values happen to tell can still be read). It is kept here and heeded by whoever
        calls the layer, ``conv(…, detach=masked)``.

    Examples
    --------
    >>> from easydgl_mini import TemporalGraph
    >>> cam = CaM(rate=0.5, dim=4, num_labels=3)
    >>> masked = cam.pick(torch.arange(3), seed=0, epoch=0)
    >>> masked.tolist()
    [True, True, False]
    >>> cam.keys(TemporalGraph([0, 1, 2], [1, 2, 1], 3), masked).edges()
    (tensor([2]), tensor([1]))
    """

    def __init__(self, rate, dim, num_labels=None, detach=False):
        super().__init__()
        self.rate, self.dim, self.num_labels, self.detach = check_rate("rate", rate), dim, num_labels, detach
        self.embed = nn.Linear(1, dim) if num_labels is None else nn.Embedding(num_labels, dim)

    def pick(self, ids, seed, epoch, allowed=None):
        """Which of the nodes ``ids`` (n,) are masked; see :func:`pick_nodes`."""
        return pick_nodes(self.rate, ids, seed, epoch, allowed)

    def pick_positions(self, ids, mask, seed, epoch):
        """Which positions of the sequences ``ids`` (B,) are masked; see :func:`pick_positions`."""
        return pick_positions(self.rate, ids, mask, seed, epoch)

    def keys(self, graph, masked):
        """The graph without what masked nodes would say: fewer edges, less work."""
        return graph.without_sources(masked)

    def query(self, labels, masked):
        r""":math:`\mathbf q(y_u)` where ``masked``, zeros elsewhere: labels (n,) -> (n, dim).

        Labels of nodes that are not masked are not looked at. One out of range raises a ``ValueError``.
        """
        if self.num_labels is None:
            known = torch.where(masked, labels, 0).to(self.embed.weight.dtype)
            q = self.embed(known.unsqueeze(-1))
        else:
            bad = masked & ((labels < 0) | (labels >= self.num_labels))
            if bad.any():
                first = int(bad.nonzero()[0, 0])
                raise ValueError(f"labels[{first}] is {labels[first].item()}; expected 0 … {self.num_labels - 1}")
            q = self.embed(torch.where(masked, labels, 0))
        return torch.where(masked.unsqueeze(-1), q, 0)


class TokenMask(nn.Module):
    """Typical masking, for comparison: masked nodes keep their place as keys, with one shared token for features.

    Parameters
    ----------
    rate : float
    in_feats : int
        Width of the features that the token replaces.
    """

    def __init__(self, rate, in_feats):
        super().__init__()
        self.rate = check_rate("rate", rate)
        self.token = nn.Parameter(torch.zeros(in_feats))
        nn.init.normal_(self.token, std=0.02)

    def pick(self, ids, seed, epoch, allowed=None):
        """Which of the nodes ``ids`` (n,) are masked; see :func:`pick_nodes`."""
        return pick_nodes(self.rate, ids, seed, epoch, allowed)

    def forward(self, feat, masked):
        """Features (n, in_feats) with the token in the masked rows."""
        return torch.where(masked.unsqueeze(-1), self.token, feat)


def check_rate(name, rate):
    """A share from 0 up to, but not including, 1."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {rate!r}")
    return float(rate)


def _scramble(x):
    """A bijection of 64-bit numbers in which every bit of the input moves half the bits of the output (SplitMix64)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
