r"""CTSMA: EasyDGL's conference version, in which positions see the past alone (Chen et al., ICML 2021).

The same attention-intensity-attention layer on a user's history, with keys up to each position only, so that its rates
are those of a true point process.

.. math:: \mathbf h_j = \sum_{i \le j} Q_{ji}\, \lambda^*_{j, k_i}\, \mathbf v_i

Simplified here: it is :class:`easydgl_mini.LinkPredictor` with ``causal=True``, so what is hidden, the clusters and the
loss are EasyDGL's; and since items are hidden in training, TPPLE is a regulariser there. It would be a likelihood of
histories that are told whole, as the original, which is autoregressive, has them.
"""

import dataclasses

from ..train.link import LinkPredictor
from .registry import register


@register("ctsma", "CTSMA", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class CTSMA(LinkPredictor):
    """Rank items by causal modulated attention; two layers, four heads, length 30: the paper's.

    Parameters
    ----------
    **rest
        See :class:`easydgl_mini.LinkPredictor`.
    """

    causal: bool = True
    num_heads: int = 4
