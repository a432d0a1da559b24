r"""EvolveGCN: a graph convolution whose weights are the state of a recurrent network (Pareja et al., AAAI 2020).

Not the nodes but the *model* remembers: from one step of time to the next a GRU turns the weights of each layer into
the next step's. This is the "-O" form, in which the weights are both the GRU's state and its input.

.. math::
    \mathbf H^{(l+1)} &= \operatorname{ReLU}\big(\hat{\mathbf A}_t \mathbf H^{(l)} \mathbf W_t^{(l)}\big), \qquad
        \mathbf W_t = (1 - \mathbf Z) \circ \mathbf W_{t-1} + \mathbf Z \circ \tilde{\mathbf W} \\
    \mathbf Z &= \sigma(\mathbf U_Z \mathbf W_{t-1} + \mathbf B_Z), \qquad
        \mathbf R = \sigma(\mathbf U_R \mathbf W_{t-1} + \mathbf B_R) \\
    \tilde{\mathbf W} &= \tanh\big(\mathbf U_W \mathbf W_{t-1} + \mathbf V_W (\mathbf R \circ \mathbf W_{t-1})
        + \mathbf B_W\big)

:math:`\mathbf W_0` is learned. Weights are unrolled from the first training step whenever they are needed: nothing is
kept between batches, so steps may come in any order.

Simplified here: state and input being the same, a gate needs one matrix, not two. :math:`\mathbf B_Z` starts at -4, so
that forty steps don't wash out :math:`\mathbf W_0` before anything is learned. The step's own graph is the only one
looked at (the paper says five, but in the "-O" form earlier graphs have no way to be heard).
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ..graph import aggregate
from ..train.node import Classifier, graph_of, with_loops
from .registry import register
from .static import edge_norm, full


class EvolvingWeight(nn.Module):
    """A matrix (in_feats, out_feats) that a GRU changes from step to step."""

    def __init__(self, in_feats, out_feats):
        super().__init__()
        self.start = nn.Parameter(torch.empty(in_feats, out_feats))
        self.U = nn.Parameter(torch.empty(3, in_feats, in_feats))  # Z, R, W
        self.V = nn.Parameter(torch.empty(in_feats, in_feats))
        self.B = nn.Parameter(torch.zeros(3, in_feats, out_feats))
        for matrix in (self.start, *self.U, self.V):
            nn.init.xavier_uniform_(matrix)
        nn.init.constant_(self.B[0], -4.0)

    def evolve(self, W):
        """One step of the GRU, (in_feats, out_feats) -> the same."""
        Z, R, heard = full(self.U @ W) + self.B
        Z, R = Z.sigmoid(), R.sigmoid()
        return (1 - Z) * W + Z * torch.tanh(heard + full(self.V @ (R * W)))

    def at(self, steps):
        """The weights after each number of steps in ``steps``, which ascends."""
        found, W, now = [], self.start, 0
        for step in steps:
            for _ in range(now, step):
                W = self.evolve(W)
            now = step
            found.append(W)
        return found


class EvolveGCNModel(nn.Module):
    """``model(snapshot) -> logits`` (n, C); each node's weights are those of the step it is asked about."""

    def __init__(self, in_feats, dim, num_layers, dropout, num_classes):
        super().__init__()
        self.weights = nn.ModuleList(EvolvingWeight(in_feats if n == 0 else dim, dim) for n in range(num_layers))
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(dim, num_classes)
        self.register_buffer("first", torch.zeros((), dtype=torch.int64))

    def forward(self, snapshot):
        graph, x = with_loops(graph_of(snapshot)), snapshot["features"]
        norm = edge_norm(graph, x.dtype)
        steps, which = (snapshot["now"] - self.first).clamp_min(0).unique(return_inverse=True)
        for layer in self.weights:
            mine = [which == n for n in range(len(steps))]
            mapped = x.new_zeros(len(x), layer.start.shape[1])
            for rows, weight in zip(mine, layer.at(steps.tolist()), strict=True):
                mapped = mapped.index_put((rows,), full(x[rows] @ weight))
            x = self.dropout(F.relu(aggregate(graph, mapped, norm)))
        return self.head(x)


@register("evolvegcn", "EvolveGCN", "node")
@dataclasses.dataclass(kw_only=True, eq=False)
class EvolveGCN(Classifier):
    """Classify nodes by a graph convolution whose weights evolve from step to step; two layers: the paper's.

    Parameters
    ----------
    num_layers : int
    **rest
        See :class:`easydgl_mini.train.node.Classifier`.
    """

    num_layers: int = 2

    @property
    def hops(self):
        return self.num_layers + 1  # one more for the degrees of the last ones

    def _start(self, train):
        super()._start(train)
        self.model_.first.copy_(min(s["now"].min() for s in train))

    def _model(self, in_feats):
        return EvolveGCNModel(in_feats, self.dim, self.num_layers, self.dropout, self.num_classes)
