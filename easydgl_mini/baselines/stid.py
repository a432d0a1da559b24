r"""STID: a multilayer perceptron that is told which road it is on, and what time it is.

Two windows may look alike and go on differently, because they are of different roads or times. STID gives each road,
each time of the day and each day of the week a learned vector, an *identity*, and does without any graph:

.. math::
    \mathbf z^0_{tu} = \mathbf W \mathbf x_{t-11:t, u} + \mathbf b \;\|\; \mathbf e_u
        \;\|\; \mathbf d_{\text{time}(t)} \;\|\; \mathbf w_{\text{day}(t)}, \qquad
    \mathbf z^{l+1} = \mathbf z^l + \mathbf W^l_2 \operatorname{ReLU}(\mathbf W^l_1 \mathbf z^l), \qquad
    \hat{\mathbf x}_{t+1:t+12, u} = \mathbf W' \mathbf z^3_{tu} + \mathbf b'

Simplified here: the window holds readings and marks of missing ones, not the time of each row (the identities know it).

Reference: Shao, Zhang, Wang, Wei and Xu, *Spatial-temporal identity: a simple yet effective baseline for multivariate
time series forecasting*, CIKM 2022.
"""

import dataclasses

import torch
from torch import nn

from ..train.traffic import STEPS, Forecaster, RoadModel
from .registry import register


class Identities(RoadModel):
    """History, road, time of day and weekday side by side, then residual perceptrons."""

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        dim, self.slots = settings.dim, max(1, round(1440 / minutes))
        self.history = nn.Linear(2 * self.window, dim)
        self.roads, self.times, self.days = (nn.Embedding(n, dim) for n in (num_nodes, self.slots, 7))
        for table in (self.roads, self.times, self.days):
            nn.init.xavier_uniform_(table.weight)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(4 * dim, 4 * dim), nn.ReLU(), nn.Dropout(settings.dropout), nn.Linear(4 * dim, 4 * dim)
            )
            for _ in range(settings.num_layers)
        )
        self.head = nn.Linear(4 * dim, STEPS)

    def forward(self, seen, there, clock):
        time = (clock[:, 0] * self.slots + 1e-3).long().clamp_max(self.slots - 1)
        history = self.history(torch.cat([seen, there], 1).transpose(1, 2))  # (B, N, dim)
        moment = torch.cat([self.times(time), self.days(clock[:, 1].long())], -1).unsqueeze(1)
        z = [history, self.roads.weight.expand(len(seen), -1, -1), moment.expand(-1, self.num_nodes, -1)]
        z = torch.cat(z, -1)  # (B, N, 4 dim)
        for layer in self.layers:
            z = z + layer(z)
        return self.head(z).transpose(1, 2)


@register("stid", "STID", "traffic")
@dataclasses.dataclass(kw_only=True, eq=False)
class STID(Forecaster):
    """Windows and identities, no graph; see the module's text.

    Parameters
    ----------
    num_layers : int
        Of the perceptron: 3, the authors', as the learning rate and dropout are.
    **forecaster
        Those of :class:`easydgl_mini.train.traffic.Forecaster`.
    """

    num_layers: int = 3
    dropout: float = 0.15
    lr: float = 2e-3
    net = Identities
