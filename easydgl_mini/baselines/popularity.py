r"""Popularity: everybody is shown what most events were about; what any other system has to beat.

.. math:: \hat y_i = \log \frac{n_i + 1}{\sum_j (n_j + 1)}, \qquad n_i \text{ the events of item } i

Simplified here: nothing; ties are broken against the item asked about, as for every system.
"""

import dataclasses

import torch
from torch import nn

from ..train.link import log_popularity
from .closed import ClosedForm
from .registry import register


@register("popularity", "Popularity", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class Popularity(ClosedForm):
    """Rank items by their number of events in the training log.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> log = em.EventLog(user=[0, 0, 1, 1], item=[0, 1, 1, 2], time=[0.0, 1.0, 0.0, 1.0])
    >>> Popularity().fit(log).predict(([0], [0.0]), at=1.0).exp().round(decimals=3)
    tensor([0.2860, 0.4290, 0.2860])
    """

    def fit(self, data, valid=None, **run):
        """Count the items of an event log."""
        self._counts = log_popularity(data)
        return super().fit(data)

    def _solve(self, R):
        self._build(num_items=R.shape[1]).bias.copy_(self._counts)

    def _recover(self, Y):
        return self.model_.bias.expand(Y.shape)

    def _model(self, num_items):
        model = nn.Module()
        model.register_buffer("bias", torch.zeros(num_items))
        return model
