r"""TGAT: attention whose keys say how long ago their edge appeared (Xu et al., ICLR 2020), for nodes.

A node listens to its neighbours with the age of each edge written next to the neighbour's features, in an encoding with
learned frequencies; so an old edge can be heard differently from a fresh one. With :math:`\Delta_{ui} = t - t_{ui}`:

.. math::
    \Phi(\Delta) &= \sqrt{1/d}\, \cos(\boldsymbol\omega \Delta + \boldsymbol\varphi) \\
    \tilde{\mathbf h}_u &= \sum_i \operatorname{softmax}_i\!\Big(
        \tfrac1{\sqrt d} [\mathbf h_u \| \Phi(0)] \mathbf W^Q \cdot [\mathbf h_i \| \Phi(\Delta_{ui})] \mathbf W^K\Big)
        [\mathbf h_i \| \Phi(\Delta_{ui})] \mathbf W^V, \qquad
    \mathbf h_u \leftarrow \operatorname{FFN}([\tilde{\mathbf h}_u \| \mathbf h_u])

Simplified here: all layers look from the time asked about (the original recurses, and embeds a neighbour as of its
edge's time), and all edges are heard (the original samples twenty).
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ..encode import attention_scores
from ..graph import aggregate, edge_softmax
from ..train.node import Classifier, graph_of
from .registry import register
from .static import full


class TimeCode(nn.Module):
    r""":math:`\Phi(\Delta)` with learned frequencies; at first one turn in 2π units, or in up to 10,000 times that."""

    def __init__(self, dim):
        super().__init__()
        self.frequency = nn.Parameter(10.0 ** -torch.linspace(0, 4, dim))
        self.phase = nn.Parameter(torch.zeros(dim))

    def forward(self, elapsed):
        """Times (…) -> (…, dim)."""
        angle = elapsed.to(self.frequency).unsqueeze(-1) * self.frequency + self.phase
        return angle.cos() / len(self.phase) ** 0.5


class TemporalConv(nn.Module):
    """One layer of TGAT on a graph; see the module.

    Parameters
    ----------
    dim, num_heads : int
        Heads are as wide as it takes for all of them together to be ``dim`` wide or wider.
    dropout : float
        On attention weights.
    """

    def __init__(self, dim, num_heads, dropout=0.0):
        super().__init__()
        self.heads = num_heads, -(-dim // num_heads)
        width = num_heads * self.heads[1]
        self.clock, self.dropout = TimeCode(dim), nn.Dropout(dropout)
        self.query = nn.Linear(2 * dim, width, bias=False)
        self.of_node = nn.Linear(dim, 2 * width, bias=False)  # keys and values are sums of a node's part …
        self.of_time = nn.Linear(dim, 2 * width, bias=False)  # … and an edge's
        self.mixer = nn.Sequential(nn.Linear(width + dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, graph, x, elapsed):
        """Embeddings (N, dim) and ages of edges (E,) -> (N, dim)."""
        now = self.clock(elapsed.new_zeros(1)).expand_as(x)
        q = full(self.query(torch.cat([x, now], -1))).reshape(-1, *self.heads)
        k, v = full(self.of_node(x)).reshape(-1, 2, *self.heads).unbind(1)  # (N, H, d)
        edge_k, edge_v = full(self.of_time(self.clock(elapsed))).reshape(-1, 2, *self.heads).unbind(1)  # (E, H, d)
        weights = self.dropout(edge_softmax(graph, attention_scores("sa", q, k, None, graph, edge_key=edge_k)))
        heard = aggregate(graph, v, weights) + into_dst(graph, weights.unsqueeze(-1) * edge_v)
        return full(self.mixer(torch.cat([heard.flatten(1), x], -1)))


def into_dst(graph, edge_values):
    """Sum of what the edges into each node say: (E, …) -> (N, …)."""
    return edge_values.new_zeros(graph.num_nodes, *edge_values.shape[1:]).index_add(0, graph.dst, edge_values)


def ages(snapshot, dtype):
    """How long ago each edge of a snapshot appeared, (E,), at the time asked about."""
    return (snapshot["at"][snapshot["dst"]] - snapshot["times"]).to(dtype)


class TGATModel(nn.Module):
    """``model(snapshot) -> logits`` (n, C)."""

    def __init__(self, in_feats, dim, num_layers, num_heads, dropout, num_classes):
        super().__init__()
        self.enter = nn.Linear(in_feats, dim)
        self.layers = nn.ModuleList(TemporalConv(dim, num_heads, dropout) for _ in range(num_layers))
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(dim, num_classes)

    def forward(self, snapshot):
        return self.head(self.attend(snapshot, full(self.enter(snapshot["features"]))))

    def attend(self, snapshot, x):
        """All layers on embeddings (n, dim)."""
        graph, age = graph_of(snapshot), ages(snapshot, x.dtype)
        for layer in self.layers:
            x = self.dropout(F.relu(layer(graph, x, age)))
        return x


@register("tgat", "TGAT", "node")
@dataclasses.dataclass(kw_only=True, eq=False)
class TGATClassifier(Classifier):
    """Classify nodes by attention over time-stamped edges; three layers, one head: the paper's.

    Parameters
    ----------
    num_layers : int
    **rest
        See :class:`easydgl_mini.train.node.Classifier`.
    """

    num_layers: int = 3
    num_heads: int = 1

    @property
    def hops(self):
        return self.num_layers

    def _model(self, in_feats):
        return TGATModel(in_feats, self.dim, self.num_layers, self.num_heads, self.dropout, self.num_classes)
