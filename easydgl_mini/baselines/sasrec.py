r"""SASREC: self-attention over the items so far names the next one (Kang and McAuley, ICDM 2018).

A decoder-only transformer on a user's items: each position looks back at all items before it, whatever their distance,
and its output, compared with every item's embedding, ranks what comes next.

.. math::
    \mathbf X_j &= \sqrt d\, \mathbf E_{i_{j-1}} + \mathbf P_{T-j} \\
    \mathbf h_j &= \operatorname{Block}_L(\cdots \operatorname{Block}_1(\mathbf X))_j
        \quad\text{with keys } \le j, \qquad \hat y_{j,i} = \mathbf h_j^\top \mathbf E_i + b_i

Simplified here: the loss is the cross-entropy of a softmax over *all* items (the original's binary one samples one
negative per event; the full softmax is the stronger of the two); keys and values are normalised like queries, what is
attended to passes a linear map, and residual sums take the input as it was (the authors' code leaves keys and values
raw, has no such map, and adds the normalised input); items have a bias, which starts at their popularity.
"""

import dataclasses

from torch import nn

from ..encode.models import places
from ..train.link import ItemModel, Recommender, before
from .blocks import Block, allow
from .registry import register


class SASRECModel(ItemModel):
    """Item j from items before j: ``model(rows, hidden) -> h`` (B, T, dim); see the module for the equations."""

    def __init__(self, num_items, dim, num_layers, num_heads, max_len, dropout):
        super().__init__(num_items, dim, dropout)
        self.places = nn.Embedding(max(max_len - 1, 1), dim)  # a window's first event has none before it
        self.blocks = nn.ModuleList(
            Block(dim, num_heads, dim, nn.Sequential(nn.ReLU(), nn.Dropout(dropout)), dropout, True)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, rows, hidden):
        item = before(rows.item, -1)
        place = places(item.shape[1], self.places.num_embeddings).to(item.device)
        x = self.dropout(self.embed(item) + self.places(place))
        allowed = allow(item >= 0, causal=True)
        for block in self.blocks:
            x = block(x, allowed)
        return self.norm(x)


@register("sasrec", "SASREC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class SASREC(Recommender):
    """Rank items by self-attention over the items so far.

    Parameters
    ----------
    num_heads : int
        Eight: the paper's on Tmall and Netflix (four on Koubei).
    **rest
        See :class:`easydgl_mini.train.Recommender`; two blocks, length 30.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> log = em.EventLog(user=[0, 0, 0, 1, 1, 1], item=[0, 1, 2, 0, 1, 2], time=[0.0, 1.0, 2.0, 0.0, 2.0, 5.0])
    >>> SASREC(dim=8, epochs=1).fit(log, valid=log).predict(([0, 1], [0.0, 1.0]), at=2.0).shape
    torch.Size([3])
    """

    num_heads: int = 8

    objective = "causal"

    def _model(self, num_items):
        return SASRECModel(num_items, self.dim, self.num_layers, self.num_heads, self.max_len, self.dropout)
