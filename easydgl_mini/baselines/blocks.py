r"""The transformer block under SASREC and BERT4REC.

.. math:: \operatorname{Att}(\mathbf X)_j = \sum_{i\ \mathrm{allowed}}
    \operatorname{softmax}_i\big(\mathbf q_j^\top \mathbf k_i / \sqrt{d}\big)\, \mathbf v_i, \qquad
    \operatorname{FFN}(\mathbf x) = \mathbf W_2\, \operatorname{act}(\mathbf W_1 \mathbf x + \mathbf b_1) + \mathbf b_2

each with a residual connection, and layer normalisation before (SASREC) or after it (BERT4REC).
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Self-attention and a feed-forward map: (B, T, dim) -> (B, T, dim).

    Parameters
    ----------
    dim, num_heads : int
    width : int
        Of the feed-forward map inside.
    act : nn.Module
    dropout : float
        On attention weights and before both residual sums; ``act`` may have more inside the feed-forward map.
    pre : bool
        Normalise what goes in (then nothing normalises the residual path), or what comes out.
    """

    def __init__(self, dim, num_heads, width, act, dropout, pre):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got {dim} and {num_heads}")
        self.num_heads, self.rate, self.pre = num_heads, dropout, pre
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mixer = nn.Sequential(nn.Linear(dim, width), act, nn.Linear(width, dim))
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.dropout = nn.Dropout(dropout)

    def attend(self, x, allowed):
        B, T, dim = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        h = F.scaled_dot_product_attention(q, k, v, allowed, self.rate if self.training else 0.0)
        return self.out(h.transpose(1, 2).reshape(B, T, dim))

    def forward(self, x, allowed):
        """``allowed`` (B, 1, T, T): which keys (last axis) a query may see; at least one each."""
        first, second = self.norms
        if self.pre:
            x = x + self.dropout(self.attend(first(x), allowed))
            return x + self.dropout(self.mixer(second(x)))
        x = first(x + self.dropout(self.attend(x, allowed)))
        return second(x + self.dropout(self.mixer(x)))


def allow(keys, causal=False):
    """Which keys each query may see, (B, 1, T, T), from keys (B, T) that are there; each position sees itself."""
    length = keys.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=keys.device)
    seen = keys[:, None, :] & square.tril() if causal else keys[:, None, :].expand(-1, length, -1)
    return (seen | torch.eye(length, dtype=torch.bool, device=keys.device)).unsqueeze(1)
