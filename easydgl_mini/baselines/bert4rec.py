r"""BERT4REC: hidden items of a history are named from both sides (Sun et al., CIKM 2019).

Some items are replaced by one token, a bidirectional transformer reads what is left, and its output at each token names
the item that was there (the Cloze task); to rank what comes next, a token is put at the end.

.. math::
    \mathbf X_j &= \begin{cases} \mathbf E_{i_j} & \text{told} \\ \mathbf m & \text{hidden} \end{cases}
        \;+\; \mathbf P_{T-j}, \qquad
    \mathbf H = \operatorname{Block}_L(\cdots \operatorname{Block}_1(\mathbf X)) \\
    \hat y_{j,i} &= \operatorname{LN}\big(\operatorname{GELU}(\mathbf W \mathbf h_j + \mathbf b)\big)^\top \mathbf E_i
        + b_i

The last line is its head: a linear map, GELU and layer normalisation stand between the blocks and the items.

Simplified here: positions are hidden anew in every epoch (the original prepares a fixed number of copies, and one more
with the last item hidden); a hidden position always shows the token; the bias starts at the items' popularity.
"""

import dataclasses

import torch
from torch import nn

from ..encode.models import places
from ..train.link import ItemModel, Recommender
from .blocks import Block, allow
from .registry import register


class BERT4RECModel(ItemModel):
    """Hidden items from all others: ``model(rows, hidden) -> h`` (B, T, dim); see the module for the equations."""

    def __init__(self, num_items, dim, num_layers, num_heads, max_len, dropout):
        super().__init__(num_items, dim, dropout)
        self.token = nn.Parameter(torch.empty(dim))
        self.places = nn.Embedding(max_len, dim)
        self.norm = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(
            Block(dim, num_heads, 4 * dim, nn.GELU(), dropout, False) for _ in range(num_layers)
        )
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        for parameter in (self.places.weight, self.token):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, rows, hidden):
        place = places(hidden.shape[1], self.places.num_embeddings).to(hidden.device)
        told = self.items(torch.where(hidden, 0, rows.item.clamp_min(0)))
        x = torch.where(hidden.unsqueeze(-1), self.token, told) + self.places(place)
        x, allowed = self.dropout(self.norm(x)), allow(rows.mask)
        for block in self.blocks:
            x = block(x, allowed)
        return x

    def naming(self, h):
        """As in :class:`ItemModel`, after the head: linear map, GELU, layer normalisation."""
        return super().naming(self.head(h))


@register("bert4rec", "BERT4REC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class BERT4REC(Recommender):
    """Rank items by a bidirectional transformer that was trained to fill gaps.

    Parameters
    ----------
    num_layers, num_heads : int
        Three blocks with eight heads: the paper's.
    mask_rate : float
        Share of positions that are hidden; the paper's 0.2.
    **rest
        See :class:`easydgl_mini.train.Recommender`; length 30.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> log = em.EventLog(user=[0, 0, 0, 1, 1, 1], item=[0, 1, 2, 0, 1, 2], time=[0.0, 1.0, 2.0, 0.0, 2.0, 5.0])
    >>> BERT4REC(dim=8, epochs=1).fit(log, valid=log).predict(([0, 1], [0.0, 1.0]), at=2.0).shape
    torch.Size([3])
    """

    num_layers: int = 3
    num_heads: int = 8
    mask_rate: float = 0.2

    def _model(self, num_items):
        return BERT4RECModel(num_items, self.dim, self.num_layers, self.num_heads, self.max_len, self.dropout)
