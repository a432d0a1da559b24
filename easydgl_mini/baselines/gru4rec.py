r"""GRU4REC: a recurrent network reads the items one by one and names the next (Hidasi et al., ICLR 2016).

What a user did so far is one vector, and each new item changes it through gates; two such layers on top of each other.

.. math::
    \mathbf z &= \sigma(\mathbf W_z \mathbf x + \mathbf U_z \mathbf h), \quad
    \mathbf r = \sigma(\mathbf W_r \mathbf x + \mathbf U_r \mathbf h), \quad
    \tilde{\mathbf h} = \tanh(\mathbf W \mathbf x + \mathbf r \odot \mathbf U \mathbf h) \\
    \mathbf h_j &= (1 - \mathbf z) \odot \tilde{\mathbf h} + \mathbf z \odot \mathbf h_{j-1},
        \qquad \mathbf x = \sqrt d\, \mathbf E_{i_{j-1}}, \qquad \hat y_{j,i} = \mathbf h_j^\top \mathbf E_i + b_i

The gates are torch's: the reset gate acts on U h, and z keeps the state. The original has tanh(W x + U (r ⊙ h)), and
its z lets the new in: (1 - z) ⊙ h + z ⊙ h̃.

Simplified here: windows of one length in batches (the original feeds whole sessions side by side), cross-entropy over
all items (the original: pairwise losses over the batch's items), and the embeddings serve at both ends.
"""

import dataclasses

import torch
from torch import nn

from ..train.link import ItemModel, Recommender, before
from .registry import register


class GRU4RECModel(ItemModel):
    """Item j from items before j: ``model(rows, hidden) -> h`` (B, T, dim); see the module for the equations."""

    def __init__(self, num_items, dim, num_layers, dropout):
        super().__init__(num_items, dim, dropout)
        between = dropout if num_layers > 1 else 0.0
        self.gru = nn.GRU(dim, dim, num_layers, batch_first=True, dropout=between)

    def forward(self, rows, hidden):
        x = self.dropout(self.embed(before(rows.item, -1)))
        length = x.shape[1]
        shift = (~rows.mask).sum(1, keepdim=True)  # padding comes first: move it to the end, where nobody looks
        there = (torch.arange(length, device=x.device) + shift) % length
        back = (torch.arange(length, device=x.device) - shift) % length
        h, _ = self.gru(_pick(x, there))
        return self.dropout(_pick(h, back))


def _pick(x, position):
    """x (B, T, dim) at positions (B, T)."""
    return x.gather(1, position.unsqueeze(-1).expand_as(x))


@register("gru4rec", "GRU4REC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class GRU4REC(Recommender):
    """Rank items by a recurrent network over the items so far; two layers, length 30: the paper's.

    Parameters
    ----------
    **rest
        See :class:`easydgl_mini.train.Recommender`.
    """

    objective = "causal"

    def _model(self, num_items):
        return GRU4RECModel(num_items, self.dim, self.num_layers, self.dropout)
