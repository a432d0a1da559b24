"""What the link predictors without a training loop share: whole histories in, one formula, scores out."""

import dataclasses

import numpy as np
import torch
from scipy.sparse import csr_array

from ..train.fit import FitResult
from ..train.link import Recommender, events_of


@dataclasses.dataclass(kw_only=True, eq=False)
class ClosedForm(Recommender):
    """Base: a subclass gives ``_model(num_items, …)`` with buffers, ``_solve(R)`` and ``_recover(Y)``.

    ``fit`` has no epochs, so ``valid`` and the run's settings are not looked at. A user is all their items, each
    counted once, however long ago; the time asked about does not matter.
    """

    def fit(self, data, valid=None, **run):
        """Compute what there is to compute from an event log."""
        if len(data) == 0:
            raise ValueError("data has no events, so there is nothing to learn")
        self._solve(signals(data))
        self._remember(data, len(data))
        self.result_ = FitResult([], 0, None, "closed form")
        self.model_.eval()
        return self

    def _answer(self, log, users, at):
        row, item = events_of(log, users)
        shape = users.stop - users.start, self.sizes_["num_items"]
        return torch.as_tensor(self._recover(ones(row, item, shape)))


def signals(log):
    """Who has what, R (users with events, items) of ones: a sparse matrix."""
    return ones(np.searchsorted(log.users, log.user), log.item, (len(log.users), log.num_items))


def ones(row, column, shape):
    """A sparse matrix of ones at these places, however often each is named."""
    matrix = csr_array((np.ones(len(row)), (row, column)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix
