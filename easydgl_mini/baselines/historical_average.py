r"""Historical average: what this road usually reads at this time of the week.

.. math:: \hat x_{t+h} = \text{mean of the training readings at the time of week of } t + h

Where a road has no training reading at that time of the *week* (the training data may be shorter than one), the mean is
over that time of the *day*; where it has none of that either, it is the road's mean. The current readings are not
looked at, so the error hardly depends on how far ahead one asks.

Simplified here: the average is over the training data once and for all, not over the weeks just before the forecast.

Reference: Li, Yu, Shahabi and Liu, *Diffusion convolutional recurrent neural network*, ICLR 2018, compare with one (HA)
that, by their text, averages the weeks before.
"""

import dataclasses

import torch

from ..train.traffic import STEPS, Forecaster, RoadModel
from .registry import register


class UsualReading(RoadModel):
    """No parameters: a table of standardised means, one row per time of the week."""

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        self.slots = max(1, round(1440 / minutes))  # of a day
        self.register_buffer("usual", torch.zeros(7 * self.slots, num_nodes))

    def slot(self, clock):
        """Time of the week (…) as a row of the table, of clocks (…, 2)."""
        return clock[..., 1].long() * self.slots + (clock[..., 0] * self.slots + 1e-3).long().clamp_max(self.slots - 1)

    def learn(self, graph, readings, times, settings):
        super().learn(graph, readings, times, settings)
        scaled, valid, _, _, times = self.prepare(readings, times)
        slot = self.slot(self.clock(times))
        totals, counts = (torch.zeros_like(self.usual).index_add_(0, slot, x.to(scaled)) for x in (scaled, valid))
        week = lambda x: x.view(7, self.slots, -1)  # noqa: E731
        day = (week(totals).sum(0) / week(counts).sum(0).clamp_min(1)).repeat(7, 1)  # 0, the mean, where none
        self.usual.copy_(torch.where(counts > 0, totals / counts.clamp_min(1), day))

    def forward(self, seen, there, clock):
        ahead = torch.arange(1, STEPS + 1, device=seen.device)
        return self.usual[(self.slot(clock).unsqueeze(1) + ahead) % len(self.usual)]


@register("historical_average", "Historical average", "traffic")
@dataclasses.dataclass(kw_only=True, eq=False)
class HistoricalAverage(Forecaster):
    """The mean at the time of the week, else of the day; see the module's text. Nothing is trained."""

    net = UsualReading
