r"""Label propagation: the labels of earlier nodes flow along the edges until they settle (Zhou et al., NeurIPS 2003).

Features are not looked at. A node hears the known labels of nodes of earlier steps, through as many edges as it takes;
where none arrives, it gets the shares of the classes in training.

.. math:: \mathbf F^{(k+1)} = \alpha\, \mathbf D^{-1/2} \mathbf A \mathbf D^{-1/2} \mathbf F^{(k)}
    + (1 - \alpha)\, \mathbf Y, \qquad \hat{\mathbf y}_u = \mathbf F_u / \textstyle\sum_c F_{uc}

with :math:`\mathbf Y` the known labels, one-hot, and zeros elsewhere; :math:`\mathbf F` tends to
:math:`(1 - \alpha)(\mathbf I - \alpha \mathbf D^{-1/2} \mathbf A \mathbf D^{-1/2})^{-1} \mathbf Y`.

Simplified here: a fixed number of rounds. On data whose steps have no edges between them (Elliptic, *ledger*) no label
ever arrives, and this is :mod:`.majority`.
"""

import dataclasses

import torch
import torch.nn.functional as F

from ..graph import aggregate
from ..train.node import graph_of
from .majority import Majority, Shares
from .registry import register
from .static import edge_norm


class Propagation(Shares):
    """``model(snapshot)`` -> logarithms of shares (n, C)."""

    def __init__(self, num_classes, alpha, rounds):
        super().__init__(num_classes)
        self.alpha, self.rounds = alpha, rounds
        self.register_buffer("until", torch.zeros((), dtype=torch.int64))

    def spread(self, snapshot):
        """F (n, C)."""
        graph, step = graph_of(snapshot), snapshot["step"]
        labels = torch.where((step < snapshot["now"]) & (step <= self.until), snapshot["labels"], -1)
        known, norm = F.one_hot(labels + 1, len(self.share) + 1)[:, 1:].float(), edge_norm(graph)
        f = known
        for _ in range(self.rounds):
            f = self.alpha * aggregate(graph, f, norm) + (1 - self.alpha) * known
        return f

    def forward(self, snapshot):
        return torch.log(self.spread(snapshot) + 1e-12 * self.share)


@register("label_propagation", "Label propagation", "node")
@dataclasses.dataclass(kw_only=True, eq=False)
class LabelPropagation(Majority):
    """Spread known labels along the edges there are by now; ``predict`` looks at labels, but only at those.

    Parameters
    ----------
    alpha : float
        Share of a node's answer that its neighbours give, in each round.
    rounds : int
    known_until : int, optional
        The last step whose labels are known, by default the last of training. Those of the step asked about, and of
        later ones, never are. (With ``predict(at=...)`` that step is the one of the time given: a node of an earlier
        step then has its own label among the known ones.)
    **rest
        See :class:`easydgl_mini.train.node.Classifier`.
    """

    alpha: float = 0.9
    rounds: int = 50
    known_until: int | None = None

    @property
    def hops(self):
        return self.rounds + 1

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {self.alpha!r}")

    def _start(self, train):
        super()._start(train)
        last = max(s["now"].max() for s in train) if self.known_until is None else self.known_until
        self.model_.until.fill_(int(last))

    def _model(self, in_feats):
        return Propagation(self.num_classes, self.alpha, self.rounds)
