r"""GREC: convolutions fill the gaps of a history, from both sides and then from the left (Yuan et al., WWW 2020).

An encoder of dilated convolutions reads the history with some items hidden, looking both ways; a decoder of *causal*
ones reads what the encoder says together with the items before each position, and names the hidden ones in turn.

.. math::
    p(\text{hidden} \mid \text{told}) &= \prod_{j\ \mathrm{hidden}}
        p\big(i_j \mid i_{<j},\ \text{told items on both sides}\big) \\
    \mathbf x &\leftarrow \mathbf x + \operatorname{ReLU}\big(\operatorname{LN}(\mathbf W *_{d} \mathbf x)\big), \qquad
        d = 1, 2, 2, 4, 4, 8

Simplified here: one convolution per residual block (the original has two, with a bottleneck), a linear map as projector
between encoder and decoder, and positions hidden anew in each epoch.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ..train.link import ItemModel, Recommender, before
from .registry import register

DILATIONS = (1, 2, 2, 4, 4, 8)


class DilatedConv(nn.Module):
    """A residual block with a convolution of three taps, ``dilation`` apart; causal ones look back only."""

    def __init__(self, dim, dilation, causal, dropout):
        super().__init__()
        self.pad = (2 * dilation, 0) if causal else (dilation, dilation)
        self.conv, self.norm = nn.Conv1d(dim, dim, 3, dilation=dilation), nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        """x (B, T, dim) -> (B, T, dim); what is not in ``mask`` (B, T) is silent."""
        heard = self.conv(F.pad((x * mask.unsqueeze(-1)).transpose(1, 2), self.pad)).transpose(1, 2)
        return x + self.dropout(F.relu(self.norm(heard)))


class GRECModel(ItemModel):
    """Hidden items from told ones on both sides and all before: ``model(rows, hidden) -> h`` (B, T, dim)."""

    def __init__(self, num_items, dim, dropout, dilations=DILATIONS):
        super().__init__(num_items, dim, dropout)
        self.token = nn.Parameter(torch.empty(dim))
        self.encoder = nn.ModuleList(DilatedConv(dim, d, False, dropout) for d in dilations)
        self.decoder = nn.ModuleList(DilatedConv(dim, d, True, dropout) for d in dilations)
        self.projector, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)
        nn.init.normal_(self.token, std=0.02)

    def forward(self, rows, hidden):
        told = self.embed(torch.where(hidden, -1, rows.item))
        x = self.dropout(torch.where(hidden.unsqueeze(-1), self.token, told))
        for layer in self.encoder:
            x = layer(x, rows.mask)
        x = self.projector(x) + self.dropout(self.embed(before(rows.item, -1)))
        for layer in self.decoder:
            x = layer(x, rows.mask)
        return self.norm(x)


@register("grec", "GREC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class GREC(Recommender):
    """Rank items by convolutions that were trained to fill gaps; six layers each way, length 30: the paper's.

    Parameters
    ----------
    mask_rate : float
        Share of positions that are hidden; the paper's 0.2.
    **rest
        See :class:`easydgl_mini.train.Recommender`; ``num_layers`` and ``num_heads`` mean nothing here.
    """

    mask_rate: float = 0.2

    def _model(self, num_items):
        return GRECModel(num_items, self.dim, self.dropout)
