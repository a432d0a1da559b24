r"""Graph WaveNet: dilated gated convolutions in time, diffusion in space, on the given graph and on a learned one.

Eight temporal layers with kernel 2 and dilations 1, 2, 1, 2, … see thirteen rows at little cost; after each comes a
diffusion convolution along the edges, against them, and along an *adaptive* graph that nobody gave,

.. math::
    \tilde{\mathbf A} = \operatorname{softmax}\big(\operatorname{ReLU}(\mathbf E_1 \mathbf E_2^\top)\big), \qquad
    \mathbf Z = \sum_{k=0}^{K} \mathbf P_f^k \mathbf X \mathbf W_{k1} + \mathbf P_b^k \mathbf X \mathbf W_{k2}
    + \tilde{\mathbf A}^k \mathbf X \mathbf W_{k3},

whose rows sum to one: who listens to whom is learned from two embeddings of each road. A temporal layer is
:math:`\tanh(\mathbf F) \odot \sigma(\mathbf G)`; the last rows of all layers, added up, give the twelve forecasts.

Simplified here: layer normalisation instead of batch normalisation, so that a forecast does not depend on what else is
in the batch. Skip connections are computed for the last row alone, the only one that is read. The window's twelve rows
are padded with an empty one in front. Marks of missing readings are an input.

Reference: Wu, Pan, Long, Jiang and Zhang, *Graph WaveNet for deep spatial-temporal graph modeling*, IJCAI 2019.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ..train.traffic import STEPS, Forecaster, RoadModel
from .dcrnn import DiffusionConv, both_walks, channels
from .registry import register
from .stgcn import taps

DILATIONS = (1, 2) * 4
FIELD = 1 + sum(DILATIONS)
"""Rows that the last row of the last layer has seen: 13."""


def adaptive_walk(sources, targets):
    """The learned graph as chances of one step, (N, N), from two embeddings (N, d) of each road."""
    return torch.softmax(F.relu(sources @ targets.t()), -1)


class Layer(nn.Module):
    """Time, then space, then what came in is added: (B, T, N, dim) -> (B, T - dilation, N, dim); and the last row."""

    def __init__(self, dim, order, dilation, dropout):
        super().__init__()
        self.dilation = dilation
        self.time, self.space = nn.Linear(2 * dim, 2 * dim), DiffusionConv(dim, dim, order, num_walks=3)
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

    def forward(self, walks, x):
        f, g = self.time(taps(x, 2, self.dilation)).chunk(2, -1)
        z = torch.tanh(f) * torch.sigmoid(g)
        return self.norm(self.dropout(self.space(walks, z)) + x[:, self.dilation :]), z[:, -1]


class WaveNet(RoadModel):
    """Eight layers, skip connections, two linear maps."""

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        dim, wide = settings.dim, 8 * settings.dim
        self.sources, self.targets = (nn.Parameter(torch.randn(num_nodes, settings.place_dim)) for _ in range(2))
        self.start = nn.Linear(3, dim)
        self.layers = nn.ModuleList(Layer(dim, settings.order, d, settings.dropout) for d in DILATIONS)
        self.skips = nn.ModuleList(nn.Linear(dim, wide) for _ in DILATIONS)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(wide, 2 * wide), nn.ReLU(), nn.Linear(2 * wide, STEPS))

    def walks(self):
        """Along the edges, against them, and the learned one: (3, N, N)."""
        return torch.cat([both_walks(self.adjacency()), adaptive_walk(self.sources, self.targets).unsqueeze(0)])

    def forward(self, seen, there, clock):
        x = channels(self, seen, there, clock)[:, -FIELD:]
        x = self.start(F.pad(x, (0, 0, 0, 0, FIELD - x.shape[1], 0)))  # (B, 13, N, dim)
        walks, total = self.walks(), 0
        for layer, skip in zip(self.layers, self.skips, strict=True):
            x, last = layer(walks, x)
            total = total + skip(last)
        return self.head(total).transpose(1, 2)


@register("graph_wavenet", "Graph WaveNet", "traffic")
@dataclasses.dataclass(kw_only=True, eq=False)
class GraphWaveNet(Forecaster):
    """Dilated convolutions and an adaptive graph; see the module's text.

    Parameters
    ----------
    order : int
        K, the longest walk.
    place_dim : int
        Width of each road's two embeddings.
    **forecaster
        Those of :class:`easydgl_mini.train.traffic.Forecaster`.
    """

    order: int = 2
    place_dim: int = 10
    dropout: float = 0.3
    net = WaveNet
