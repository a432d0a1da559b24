r"""Last value: tomorrow is like today, so the next hour is like this minute.

Every step ahead gets the road's latest reading in the window, :math:`\hat x_{t+h} = x_{t'}`, where :math:`t' \le t` is
the latest row that has one. A road without any gets its mean. Whoever trains a model has to beat this one first.

Simplified here: nothing.
"""

import dataclasses

import torch

from ..train.traffic import STEPS, Forecaster, RoadModel
from .registry import register


class LatestReading(RoadModel):
    """No parameters: the latest reading in the window, twelve times."""

    def forward(self, seen, there, clock):
        row = torch.arange(1, seen.shape[1] + 1, device=seen.device).view(1, -1, 1)
        latest = (row * there).argmax(1, keepdim=True)  # the first row, a zero, where there is no reading
        return seen.gather(1, latest).expand(-1, STEPS, -1)


@register("last_value", "Last value", "traffic")
@dataclasses.dataclass(kw_only=True, eq=False)
class LastValue(Forecaster):
    """The latest reading goes on; see the module's text. Nothing is trained."""

    net = LatestReading
