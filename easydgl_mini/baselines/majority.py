r"""Majority: every node gets the shares of the classes among the training steps' labelled nodes.

What any other system has to beat: its guess is always the commonest class, and the macro-F1 of that is low by design.

.. math:: \hat y_{uc} = \frac{|\{v : y_v = c\}|}{|\{v : y_v \ne -1\}|}

Simplified here: nothing.
"""

import dataclasses

import torch
from torch import nn

from ..train.node import Classifier
from .registry import register


class Shares(nn.Module):
    """The logarithm of the classes' shares, for every node of a snapshot."""

    def __init__(self, num_classes):
        super().__init__()
        self.register_buffer("share", torch.full((num_classes,), 1 / num_classes))

    def forward(self, snapshot):
        return self.share.log().expand(len(snapshot["nodes"]), -1)


@register("majority", "Majority", "node")
@dataclasses.dataclass(kw_only=True, eq=False)
class Majority(Classifier):
    """Guess the commonest class.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> world = em.simulate.ledger("tiny")
    >>> Majority().fit(world).predict(world)[0].argmax().item()  # unknown
    2
    """

    hops = 0

    def _start(self, train):
        super()._start(train)
        self.model_.share.copy_(self.extra_["share"])

    def _model(self, in_feats):
        return Shares(self.num_classes)
