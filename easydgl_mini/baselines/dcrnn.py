r"""DCRNN: a recurrent network whose matrix products are random walks on the road graph.

Traffic spreads along the roads like a diffusion, downstream and upstream. A *diffusion convolution* mixes what a walker
finds after 0, 1, … K steps along the edges and after as many against them,

.. math::
    \boldsymbol\Theta \star \mathbf X = \sum_{k=0}^{K}
        \big(\mathbf D_O^{-1} \mathbf W\big)^k \mathbf X \boldsymbol\Theta_{k1}
        + \big(\mathbf D_I^{-1} \mathbf W^\top\big)^k \mathbf X \boldsymbol\Theta_{k2},

and takes the place of the linear maps in a GRU:

.. math::
    \mathbf r, \mathbf u = \sigma(\boldsymbol\Theta_{ru} \star [\mathbf X \| \mathbf H] + \mathbf b), \quad
    \mathbf C = \tanh(\boldsymbol\Theta_C \star [\mathbf X \| \mathbf r \odot \mathbf H] + \mathbf b_C), \quad
    \mathbf H' = \mathbf u \odot \mathbf H + (1 - \mathbf u) \odot \mathbf C .

An encoder reads the window, a decoder writes twelve forecasts, each fed with the one before.

Simplified here: the decoder is fed its own forecasts in training too, as it is in use (the authors start with true
readings and move over: scheduled sampling). One layer, as the paper's supplement has it (the authors: two). Otherwise
this is the authors' diffusion; the supplement describes one-layer ChebConv with two hops inside a GraphRNN. Marks of
missing readings are an input. The walks are dense matrices.

Reference: Li, Yu, Shahabi and Liu, *Diffusion convolutional recurrent neural network: data-driven traffic forecasting*,
ICLR 2018.
"""

import dataclasses

import torch
from torch import nn

from ..train.traffic import STEPS, Forecaster, RoadModel
from .registry import register


def random_walk(adjacency):
    """The chances of one step along the edges, (N, N): each row divided by its sum; rows of zeros stay so."""
    total = adjacency.sum(1, keepdim=True)
    return torch.where(total > 0, adjacency / total.clamp_min(1e-12), 0.0)


def both_walks(adjacency):
    """One step along the edges, and one against them: (2, N, N)."""
    return torch.stack([random_walk(adjacency), random_walk(adjacency.t())])


def diffuse(walks, x, order):
    """What walkers find: x, then P x, …, P^order x for each walk P, side by side.

    Parameters
    ----------
    walks : tensor, shape (W, N, N)
    x : tensor, shape (…, N, F)
    order : int

    Returns
    -------
    tensor, shape (…, N, (1 + W order) F)
    """
    reach = [torch.linalg.matrix_power(walk, k) for walk in walks for k in range(1, order + 1)]
    if not reach:
        return x
    wide = x.movedim(-2, 0)  # (N, …, F): one large product instead of many small ones
    far = (torch.cat(reach) @ wide.flatten(1)).view(-1, *wide.shape)
    return torch.cat([x.to(far), *far.movedim(1, -2)], -1)


class DiffusionConv(nn.Module):
    r""":math:`\boldsymbol\Theta \star \mathbf X + \mathbf b`: (…, N, in_feats) -> (…, N, out_feats)."""

    def __init__(self, in_feats, out_feats, order, num_walks=2):
        super().__init__()
        self.order, self.linear = order, nn.Linear(in_feats * (1 + num_walks * order), out_feats)

    def forward(self, walks, x):
        return self.linear(diffuse(walks, x, self.order))


class DCGRUCell(nn.Module):
    """One step of the recurrent network: input (B, N, in_feats) and state (B, N, dim) -> state."""

    def __init__(self, in_feats, dim, order):
        super().__init__()
        self.gates = DiffusionConv(in_feats + dim, 2 * dim, order)
        self.candidate = DiffusionConv(in_feats + dim, dim, order)
        nn.init.ones_(self.gates.linear.bias)  # start by keeping the state

    def forward(self, walks, x, h):
        r, u = torch.sigmoid(self.gates(walks, torch.cat([x, h], -1))).chunk(2, -1)
        c = torch.tanh(self.candidate(walks, torch.cat([x, r * h], -1)))
        return u * h + (1 - u) * c


def channels(model, seen, there, clock):
    """Three inputs per row and road, (B, window, N, 3): reading, whether it is there, share of the day."""
    lag = torch.arange(model.window - 1, -1, -1, device=seen.device) * (model.minutes / 1440)
    share = (clock[:, :1] - lag) % 1  # (B, window)
    return torch.stack([seen, there, share.unsqueeze(-1).expand_as(seen)], -1)


class DiffusionRNN(RoadModel):
    """Encoder and decoder of DCGRU cells."""

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        dim, order, layers = settings.dim, settings.order, settings.num_layers
        self.encoder = nn.ModuleList(DCGRUCell(dim if n else 3, dim, order) for n in range(layers))
        self.decoder = nn.ModuleList(DCGRUCell(dim if n else 1, dim, order) for n in range(layers))
        self.dropout, self.head = nn.Dropout(settings.dropout), nn.Linear(dim, 1)

    def forward(self, seen, there, clock):
        walks, inputs = both_walks(self.adjacency()), channels(self, seen, there, clock)
        state = [seen.new_zeros(len(seen), self.num_nodes, cell.candidate.linear.out_features) for cell in self.encoder]
        for x in inputs.unbind(1):
            state = self._step(self.encoder, walks, x, state)
        forecast, forecasts = torch.zeros_like(inputs[:, 0, :, :1]), []
        for _ in range(STEPS):
            state = self._step(self.decoder, walks, forecast, state)
            forecast = self.head(self.dropout(state[-1]))
            forecasts.append(forecast.squeeze(-1))
        return torch.stack(forecasts, 1)

    def _step(self, cells, walks, x, state):
        new = []
        for cell, h in zip(cells, state, strict=True):
            x = cell(walks, x, h)
            new.append(x)
        return new


@register("dcrnn", "DCRNN", "traffic")
@dataclasses.dataclass(kw_only=True, eq=False)
class DCRNN(Forecaster):
    """Diffusion convolutional recurrent network; see the module's text.

    Parameters
    ----------
    num_layers : int
        Of the encoder and of the decoder.
    order : int
        K, the longest walk.
    lr, dropout : float
        Ours: the supplement searches both on grids and does not say what it found.
    **forecaster
        Those of :class:`easydgl_mini.train.traffic.Forecaster`.
    """

    num_layers: int = 1
    order: int = 2
    dropout: float = 0.0
    lr: float = 3e-3
    net = DiffusionRNN
