r"""TiSASREC: SASREC whose attention knows how much time lies between two items (Li et al., WSDM 2020).

Time between two events is counted in units of the user's own shortest interval and clipped; each count has an embedding
that is added to the keys and values, and so has each position.

.. math::
    r_{ji} &= \min\Big(\big\lfloor (t_j - t_i) / \tau_j \big\rfloor,\, k\Big), \qquad
    e_{ji} = \mathbf q_j^\top \big(\mathbf k_i + \mathbf R^K_{r_{ji}} + \mathbf P^K_i\big) / \sqrt d \\
    \mathbf z_j &= \sum_{i \le j} \operatorname{softmax}_i(e_{ji})
        \big(\mathbf v_i + \mathbf R^V_{r_{ji}} + \mathbf P^V_i\big)

Simplified here: :math:`\tau_j` is the shortest interval *up to* j (the original's is over the whole history, and tells
a position something of the future); the loss is the full softmax's, as for SASREC; keys and values are normalised like
queries, and the residual adds what came in (the authors' code takes them as they come, and adds the normalised input).
As in the original, times between the items count and the time of asking does not.
"""

import dataclasses

import torch
from torch import nn

from ..encode.models import places
from ..train.link import ItemModel, Recommender, before
from .blocks import allow
from .registry import register


def intervals(time, mask, span):
    """Whole intervals :math:`r_{ji}` (B, T, T) between events j and i ≤ j, from times (B, T); 0 where there is none.

    >>> intervals(torch.tensor([[0.0, 4.0, 6.0, 20.0]]), torch.ones(1, 4, dtype=torch.bool), 5)[0]
    tensor([[0, 0, 0, 0],
            [1, 0, 0, 0],
            [3, 1, 0, 0],
            [5, 5, 5, 0]])
    """
    gap = time - before(time, 0.0)
    gap = torch.where(mask & before(mask, False) & (gap > 0), gap, torch.inf)
    shortest = gap.cummin(1).values.unsqueeze(-1)  # inf while no time has passed
    between = (time.unsqueeze(-1) - time.unsqueeze(-2)).clamp_min(0)
    real = mask.unsqueeze(-1) & mask.unsqueeze(-2)
    whole = (between / shortest + 1e-6).floor()  # times divided by a unit are not exact, whole multiples must stay so
    return torch.where(real, whole.clamp_max(span), 0).long()


class TimeBlock(nn.Module):
    """Attention with embedded intervals and places, then a feed-forward map, normalised before each."""

    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got {dim} and {num_heads}")
        self.num_heads = num_heads
        self.query, self.keys = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.mixer = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim))
        self.norms, self.dropout = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)]), nn.Dropout(dropout)

    def heads(self, x):
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(-2, -3)  # (…, H, T, d)

    def forward(self, x, place, spans, between, allowed):
        """``place`` (T, 2 dim) and ``spans`` (k + 1, 2 dim) are added to keys and values; ``between`` is (B, T, T)."""
        normed = self.norms[0](x)
        q = self.heads(self.query(normed))
        k, v = (self.heads(part) for part in (self.keys(normed) + place).chunk(2, -1))
        span_k, span_v = (self.heads(part) for part in spans.chunk(2, -1))  # (H, k + 1, d)
        index = between.unsqueeze(1).expand(-1, self.num_heads, -1, -1)
        e = q @ k.transpose(-1, -2) + (q @ span_k.transpose(-1, -2)).gather(-1, index)
        e = (e / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
        weights = self.dropout(torch.softmax(e, -1))
        by_span = weights.new_zeros(*q.shape[:-1], len(spans)).scatter_add(-1, index, weights)  # weight of each r
        z = weights @ v + by_span @ span_v.to(weights.dtype)
        x = x + self.dropout(z.transpose(1, 2).reshape(x.shape))
        return x + self.dropout(self.mixer(self.norms[1](x)))


class TiSASRECModel(ItemModel):
    """Item j from items before j and their times: ``model(rows, hidden) -> h`` (B, T, dim)."""

    def __init__(self, num_items, dim, num_layers, num_heads, max_len, span, dropout):
        super().__init__(num_items, dim, dropout)
        self.places = nn.Embedding(max(max_len - 1, 1), 2 * dim)  # P^K and P^V side by side
        self.spans = nn.Embedding(span + 1, 2 * dim)  # R^K and R^V
        self.blocks = nn.ModuleList(TimeBlock(dim, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        for table in (self.places, self.spans):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, rows, hidden):
        item, time = before(rows.item, -1), before(rows.time, 0.0)
        there = item >= 0
        place = places(item.shape[1], self.places.num_embeddings).to(item.device)
        place, spans = self.dropout(self.places(place)), self.dropout(self.spans.weight)
        x = self.dropout(self.embed(item))
        allowed, between = allow(there, causal=True), intervals(time, there, len(spans) - 1)
        for block in self.blocks:
            x = block(x, place, spans, between, allowed)
        return self.norm(x)


@register("tisasrec", "TiSASREC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class TiSASREC(Recommender):
    """Rank items by self-attention over the items so far and the times between them.

    Parameters
    ----------
    num_heads : int
        Eight, with two blocks and length 30: the paper's.
    span : int
        The longest interval that is told from longer ones; 256 is the original's.
    **rest
        See :class:`easydgl_mini.train.Recommender`.
    """

    num_heads: int = 8
    span: int = 256

    objective = "causal"

    def __post_init__(self):
        super().__post_init__()
        if int(self.span) != self.span or self.span < 1:
            raise ValueError(f"span must be a whole number of at least 1, got {self.span!r}")

    def _model(self, num_items):
        sizes = self.dim, self.num_layers, self.num_heads, self.max_len, self.span
        return TiSASRECModel(num_items, *sizes, self.dropout)
