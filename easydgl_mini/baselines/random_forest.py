r"""Random forest on the nodes' own features, without the graph: what Elliptic's authors found hard to beat.

Trees that each see a bootstrap sample of the labelled nodes, and a few random features at each split, vote by the
shares of the classes in the leaf that a node falls into (Breiman, 2001; Weber et al., 2019, on Elliptic).

.. math:: \hat{\mathbf y}_u = \frac1B \sum_{b=1}^{B} \mathbf p_b\big(\operatorname{leaf}_b(\mathbf x_u)\big)

Training needs scikit-learn (``pip install scikit-learn``; it comes with the package's ``test`` extra). The trees are
then kept as tensors: asking, saving and loading need torch only.

Simplified here: defaults are scikit-learn's but for the number of trees, 50 as in Weber et al.; so a split looks at the
square root of the number of features (at 50 there).
"""

import dataclasses

import numpy as np
import torch
from torch import nn

from ..train.node import Classifier
from .registry import register


class Forest(nn.Module):
    """Trees as tables: node n of tree b asks whether feature[b, n] is at most threshold[b, n], and goes left if so."""

    def __init__(self, trees, nodes, depth, num_classes):
        super().__init__()
        self.depth = depth
        for name in ("feature", "left", "right"):
            self.register_buffer(name, torch.zeros(trees, nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(trees, nodes, dtype=torch.float64))
        self.register_buffer("value", torch.zeros(trees, nodes, num_classes, dtype=torch.float64))

    def forward(self, snapshot):
        """Logarithms of the classes' mean shares, (n, C)."""
        x = snapshot["features"].double()
        tree = torch.arange(len(self.feature), device=x.device)
        at = torch.zeros(len(x), len(tree), dtype=torch.int64, device=x.device)  # (n, trees): all start at the root
        for _ in range(self.depth):  # a leaf's branches lead to itself
            low = x.gather(1, self.feature[tree, at]) <= self.threshold[tree, at]
            at = torch.where(low, self.left[tree, at], self.right[tree, at])
        return self.value[tree, at].mean(1).clamp_min(1e-12).log()


@register("random_forest", "Random forest", "node")
@dataclasses.dataclass(kw_only=True, eq=False)
class RandomForest(Classifier):
    """Classify nodes by a forest of decision trees on their features.

    Parameters
    ----------
    trees : int
    **rest
        See :class:`easydgl_mini.train.node.Classifier`; ``balance`` weighs the classes here too.
    """

    trees: int = 50

    hops = 0

    def _start(self, train):
        try:
            from sklearn.ensemble import RandomForestClassifier
        except ImportError:
            raise ImportError("fitting a random forest needs scikit-learn: pip install scikit-learn") from None
        features, labels = (torch.cat([s[name][s["asked"]] for s in train]) for name in ("features", "labels"))
        features, labels = features[labels >= 0].numpy(), labels[labels >= 0].numpy()
        weights = self.extra_["share"].clamp_min(1e-6).numpy() ** -self.balance
        forest = RandomForestClassifier(self.trees, random_state=self.seed)
        forest.fit(features, labels, sample_weight=weights[labels])
        tables = [tree.tree_ for tree in forest.estimators_]
        nodes, depth = max(t.node_count for t in tables), max(t.max_depth for t in tables)
        model = self._build(trees=self.trees, nodes=nodes, depth=depth)
        for b, t in enumerate(tables):
            leaf, own = t.children_left < 0, np.arange(t.node_count)
            model.feature[b, own] = torch.from_numpy(np.where(leaf, 0, t.feature))
            model.left[b, own] = torch.from_numpy(np.where(leaf, own, t.children_left))
            model.right[b, own] = torch.from_numpy(np.where(leaf, own, t.children_right))
            model.threshold[b, own] = torch.from_numpy(t.threshold.copy())
            share = t.value[:, 0] / t.value[:, 0].sum(1, keepdims=True)
            model.value[b][:, forest.classes_] = nn.functional.pad(
                torch.from_numpy(share), (0, 0, 0, nodes - t.node_count)
            )

    def _model(self, trees, nodes, depth):
        return Forest(trees, nodes, depth, self.num_classes)
