r"""STGCN: gated convolutions in time around a Chebyshev filter in space, twice, and no recurrence.

A temporal layer with kernel 3 sees three consecutive rows and gates what it found, :math:`(\mathbf P + \mathbf X) \odot
\sigma(\mathbf Q)`; a spatial layer filters each row on the graph with a polynomial of the rescaled Laplacian,

.. math::
    \boldsymbol\Theta \star \mathbf X = \sum_{k=0}^{K-1} T_k(\tilde{\mathbf L}) \mathbf X \boldsymbol\Theta_k, \qquad
    \tilde{\mathbf L} = \frac{2}{\lambda_{\max}} \mathbf L - \mathbf I, \qquad
    T_k(x) = 2 x T_{k-1}(x) - T_{k-2}(x), \quad T_0 = 1, \quad T_1 = x .

Blocks are time, space, time, norm. No layer pads, so each temporal one makes the sequence two rows shorter, each block
four (12, 8, 4), and a last one as long as what is left makes it a single row.

Simplified here: all twelve steps come from the last row at once (the authors forecast one step and repeat).
Normalisation is over the features of each road alone, so that no road has parameters of its own, and all layers have
one width. Edges count both ways (their mean weight), as the Laplacian has to be symmetric. Marks of missing readings
are an input. The order of layers is the authors', time, space, time, norm, twice, and the head has two layers; the
paper's supplement describes TNTSTNTST (T time, S space, N norm) and one linear map.

Reference: Yu, Yin and Zhu, *Spatio-temporal graph convolutional networks: a deep learning framework for traffic
forecasting*, IJCAI 2018.
"""

import dataclasses

import torch
from torch import nn

from ..train.traffic import STEPS, Forecaster, RoadModel
from .registry import register


def rescaled_laplacian(adjacency):
    r""":math:`2 \mathbf L / \lambda_{\max} - \mathbf I`, eigenvalues in [-1, 1], of the symmetrised graph (N, N).

    :math:`\mathbf L = \mathbf I - \mathbf D^{-1/2} \mathbf W \mathbf D^{-1/2}`; a road without edges has zeros.
    """
    W = (adjacency + adjacency.t()) / 2
    root = W.sum(1).clamp_min(0).sqrt()
    scale = torch.where(root > 0, 1 / root.clamp_min(1e-12), 0.0)
    L = torch.diag((root > 0).to(W)) - scale.unsqueeze(1) * W * scale
    largest = torch.linalg.eigvalsh(L.double())[-1].clamp_min(1e-6)
    return 2 * L / largest.to(L) - torch.eye(len(L), dtype=L.dtype, device=L.device)


def chebyshev(laplacian, x, order):
    """T_0 x, …, T_(order - 1) x side by side: (N, N), (…, N, F) -> (…, N, order F)."""
    wide = x.movedim(-2, 0)  # (N, …, F): large products instead of many small ones
    terms = [wide.flatten(1), laplacian @ wide.flatten(1)]
    while len(terms) < order:
        terms.append(2 * (laplacian @ terms[-1]) - terms[-2])
    return torch.cat([term.view(wide.shape).movedim(0, -2) for term in terms[:order]], -1)


def taps(x, kernel, dilation=1):
    """What a temporal kernel sees, without padding: (B, T, N, F) -> (B, T - (kernel - 1) dilation, N, kernel F).

    Row j of the result is rows j, j + dilation, … of ``x``, oldest first.
    """
    length = x.shape[1] - (kernel - 1) * dilation
    return torch.cat([x[:, n * dilation : n * dilation + length] for n in range(kernel)], -1)


class GatedConv(nn.Module):
    """Gated linear unit over ``kernel`` rows; the input, in the output's width, is added before the gate."""

    def __init__(self, in_feats, out_feats, kernel):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Linear(kernel * in_feats, 2 * out_feats)
        self.align = nn.Identity() if in_feats == out_feats else nn.Linear(in_feats, out_feats, bias=False)

    def forward(self, x):
        p, q = self.conv(taps(x, self.kernel)).chunk(2, -1)
        return (p + self.align(x[:, self.kernel - 1 :])) * torch.sigmoid(q)


class Block(nn.Module):
    """Time, space, time, norm: (B, T, N, in_feats) -> (B, T - 4, N, dim)."""

    def __init__(self, in_feats, dim, order, dropout):
        super().__init__()
        self.order = order
        self.before, self.after = GatedConv(in_feats, dim, 3), GatedConv(dim, dim, 3)
        self.space = nn.Linear(order * dim, dim)
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

    def forward(self, laplacian, x):
        x = self.before(x)
        x = torch.relu(x + self.space(chebyshev(laplacian, x, self.order)))
        return self.dropout(self.norm(self.after(x)))


class SpaceTimeConv(RoadModel):
    """Two blocks, a last temporal layer, a linear map."""

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        if self.window < 9:
            raise ValueError(f"window must be at least 9, what two blocks need; got {self.window}")
        dim, order = settings.dim, settings.order
        self.blocks = nn.ModuleList(Block(dim if n else 2, dim, order, settings.dropout) for n in range(2))
        self.last, self.norm = GatedConv(dim, dim, self.window - 8), nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, STEPS))
        self.register_buffer("laplacian", torch.zeros(num_nodes, num_nodes))

    def learn(self, graph, readings, times, settings):
        super().learn(graph, readings, times, settings)
        self.laplacian.copy_(rescaled_laplacian(self.adjacency()))

    def forward(self, seen, there, clock):
        x = torch.stack([seen, there], -1)  # (B, window, N, 2)
        for block in self.blocks:
            x = block(self.laplacian, x)
        return self.head(self.norm(self.last(x))[:, 0]).transpose(1, 2)


@register("stgcn", "STGCN", "traffic")
@dataclasses.dataclass(kw_only=True, eq=False)
class STGCN(Forecaster):
    """Spatio-temporal graph convolutions; see the module's text.

    Parameters
    ----------
    order : int
        Number of Chebyshev terms.
    **forecaster
        Those of :class:`easydgl_mini.train.traffic.Forecaster`; ``window`` is at least 9.
    """

    order: int = 3
    net = SpaceTimeConv
