r"""TGAT: attention whose keys say how long ago they happened (Xu et al., ICLR 2020), for links.

The layer of :mod:`tgat_node`, here on histories: a user at time t listens to the events before t, each with its age
:math:`t - t_i` written next to it, and an event listens to those before it. Ages never have to be made one by one: with
:math:`\cos(\omega(t_j - t_i) + \varphi) = \cos(\omega t_j + \varphi) \cos \omega t_i + \sin(\omega t_j + \varphi) \sin
\omega t_i` the sums over pairs become products of matrices (Bochner's theorem, read backwards).

.. math::
    \mathbf u_j &\leftarrow \operatorname{TGAT}\big(\mathbf u_j, \{(\mathbf z_i, t_j - t_i) : i < j\}\big), \qquad
    \mathbf z_j \leftarrow \operatorname{TGAT}\big(\mathbf z_j, \{(\mathbf z_i, t_j - t_i) : i < j\}\big) \\
    \mathbf z_j &= \sqrt d\, \mathbf E_{i_j}, \quad
        \mathbf u_j = \mathbf u + \sqrt d\, \mathbf E_{i_{j-1}} \quad \text{at first;} \qquad
    \hat y_{j,i} = \mathbf u_j^\top \mathbf E_i + b_i

Simplified here: an event's neighbourhood is its own user's past (the original also follows the item to other users);
a user starts from their last item, as nothing else is known of a new one; no sampling of neighbours; each layer has a
residual connection and layer normalisation around it.
"""

import dataclasses

import torch
from torch import nn

from ..train.link import ItemModel, Recommender, before
from .registry import register
from .static import full
from .tgat_node import TemporalConv


class TemporalAttention(TemporalConv):
    """One layer of TGAT on padded sequences; equal to :class:`TemporalConv` on the graph of what is allowed."""

    def forward(self, x, time, asks, at, allowed):
        """What listeners ``asks`` (B, T, dim) at times ``at`` (B, T) hear of ``x`` (B, S, dim) at ``time`` (B, S).

        ``allowed`` (B, T, S) says whom; who may hear nobody hears zero. Times are float64.
        """
        now = self.clock(torch.zeros(1, dtype=time.dtype, device=time.device)).expand_as(asks)
        q = self.split(self.query(torch.cat([asks, now], -1)))  # (B, H, T, d)
        k, v = (self.split(part) for part in self.of_node(x).chunk(2, -1))  # (B, H, S, d)
        to_k, to_v = (w.reshape(*self.heads, -1) for w in self.of_time.weight.to(q.dtype).chunk(2))  # (H, d, dim)
        phase, frequency = self.clock.phase.double(), self.clock.frequency.double()
        mine = (at.unsqueeze(-1) * frequency + phase).unsqueeze(1)  # (B, 1, T, dim)
        theirs = (time.unsqueeze(-1) * frequency).unsqueeze(1)
        waves = [(f(mine).to(q.dtype), f(theirs).to(q.dtype)) for f in (torch.cos, torch.sin)]
        scale = len(phase) ** -0.5
        w = scale * (q @ to_k)  # (B, H, T, dim): what each wave of a key's age is worth to this query
        e = q @ k.transpose(-1, -2) + sum((w * a) @ b.transpose(-1, -2) for a, b in waves)
        allowed = allowed.unsqueeze(1)
        e = (e / self.heads[1] ** 0.5).masked_fill(~allowed, torch.finfo(e.dtype).min)
        weights = self.dropout(torch.softmax(e, -1) * allowed)
        ages = scale * sum(a * (weights @ b) for a, b in waves)  # (B, H, T, dim)
        heard = weights @ v + ages @ to_v.transpose(-1, -2)
        return full(self.mixer(torch.cat([heard.transpose(1, 2).flatten(2), asks], -1)))

    def split(self, x):
        return full(x).reshape(*x.shape[:-1], *self.heads).transpose(1, 2)


class TGATLinkModel(ItemModel):
    """Item j from items before j and times up to its own: ``model(rows, hidden) -> h`` (B, T, dim)."""

    def __init__(self, num_items, dim, num_layers, num_heads, dropout):
        super().__init__(num_items, dim, dropout)
        self.user = nn.Parameter(torch.empty(dim))
        self.layers = nn.ModuleList(TemporalAttention(dim, num_heads, dropout) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))
        nn.init.normal_(self.user, std=0.02)

    def forward(self, rows, hidden):
        length = rows.item.shape[1]
        time = torch.where(rows.mask, rows.time - rows.time[:, -1:], 0.0)
        earlier = torch.ones(length, length, dtype=torch.bool, device=time.device).tril(-1)
        allowed = (earlier & rows.mask.unsqueeze(1)).repeat(1, 2, 1)
        events, users = self.embed(rows.item), self.user + self.embed(before(rows.item, -1))
        both = self.dropout(torch.cat([events, users], 1))  # (B, 2 T, dim)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            heard = layer(both[:, :length], time, both, time.repeat(1, 2), allowed)
            both = norm(both + self.dropout(heard))
        return both[:, length:]


@register("tgat", "TGAT", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class TGAT(Recommender):
    """Rank items by attention over time-stamped events; three layers, one head, length 30: the paper's.

    Parameters
    ----------
    **rest
        See :class:`easydgl_mini.train.Recommender`.
    """

    num_layers: int = 3
    num_heads: int = 1

    objective = "causal"

    def _model(self, num_items):
        return TGATLinkModel(num_items, self.dim, self.num_layers, self.num_heads, self.dropout)
