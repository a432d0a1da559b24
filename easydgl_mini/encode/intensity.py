"""Conditional intensities: how many events of each cluster a node expects now (chapter *Modulated attention*)."""

import math

import torch
from torch import nn


def softplus(x, phi):
    r"""The paper's eq:splus, :math:`f(x) = \phi \log(1 + \exp(x / \phi))`, for any :math:`\phi > 0`.

    Never overflows, and never returns zero: far to the left it stays at the smallest positive number of the dtype.

    >>> softplus(torch.tensor([-1e4, 0.0, 1e4]), torch.tensor(1.0)) > 0
    tensor([True, True, True])
    """
    z = x / phi
    value = phi * torch.logaddexp(z, torch.zeros_like(z))
    return value.clamp_min(torch.finfo(value.dtype).tiny)


class Intensity(nn.Module):
    r"""From a node's state and the time since its last event to one rate per cluster.

    .. math::
        \mathbf g_k &= \sigma\big(\mathbf W^G_k \mathbf s + \mathbf b^G_k\, \Delta\big)
            && \text{endogenous, and exogenous: the paper's eqn:att\_g} \\
        \lambda^*_k &= \phi_k \log\Big(1 + \exp\big((\mathbf w_k^\top \mathbf g_k + \mu_k) / \phi_k\big)\Big)
            && \text{eqn:att\_l and eq:splus}

    with :math:`\sigma` the logistic function and :math:`\phi_k = \exp(\cdot) > 0`. A fresh module gives rates near
    one per unit of time, so a fresh modulated attention is close to a plain one. :math:`\mathbf b^G` starts away from
    zero: at zero the layer would be blind to time in its first step.

    Parameters
    ----------
    in_feats : int
        Width of the state s (of each head's, where there are heads).
    num_clusters : int
        K.
    num_heads : int, optional
        Heads with parameters of their own; the state then has a head dimension.
    head_axis : int
        Where that dimension stands, counted from the end of the state's shape.
    endogenous : bool
        False drops :math:`\mathbf W^G_k \mathbf s`: the ablation in which rates don't know the neighbourhood.

    Examples
    --------
    >>> rate = Intensity(in_feats=4, num_clusters=3)
    >>> rate(torch.zeros(2, 4), torch.tensor([0.0, 1.5])).shape
    torch.Size([2, 3])
    """

    def __init__(self, in_feats, num_clusters, num_heads=None, head_axis=-2, endogenous=True):
        super().__init__()
        self.in_feats, self.num_clusters, self.num_heads = in_feats, num_clusters, num_heads
        self.head_axis, self.endogenous = head_axis, endogenous
        heads = num_heads or 1
        self.W = nn.Parameter(torch.empty(heads, num_clusters, in_feats, in_feats))  # W^G, out x in
        self.b = nn.Parameter(torch.empty(heads, num_clusters, in_feats))  # b^G
        self.w = nn.Parameter(torch.empty(heads, num_clusters, in_feats))
        self.mu = nn.Parameter(torch.empty(heads, num_clusters))
        self.log_phi = nn.Parameter(torch.empty(heads, num_clusters))
        self.reset_parameters()

    def reset_parameters(self):
        bound = 1 / math.sqrt(self.in_feats)
        for parameter in (self.W, self.b, self.w):
            nn.init.uniform_(parameter, -bound, bound)
        nn.init.constant_(self.mu, math.log(math.e - 1))  # softplus of this is 1
        nn.init.zeros_(self.log_phi)

    def forward(self, s, elapsed):
        """Rates at ``elapsed`` after the last event.

        Parameters
        ----------
        s : tensor, shape (…, in_feats), or with heads e.g. (…, heads, in_feats)
        elapsed : tensor, shape (…)
            Not negative, without a head dimension; broadcasts, so one state can be asked at many times.

        Returns
        -------
        tensor, shape (…, K), or (…, heads, K) with the heads where the state has them
        """
        check_elapsed(elapsed)
        s = s.unsqueeze(-2) if self.num_heads is None else s.movedim(self.head_axis, -2)  # (…, H, d)
        elapsed = elapsed.to(s.dtype)
        lead = torch.broadcast_shapes(s.shape[:-2], elapsed.shape)
        heads = self.w.shape[0]
        flat_s = s.expand(*lead, heads, self.in_feats).reshape(-1, heads, self.in_feats)
        x = _Drive.apply(flat_s, elapsed.expand(lead).reshape(-1), self.W, self.b, self.w, self.endogenous)
        lam = softplus(x + self.mu, self.log_phi.exp()).reshape(*lead, heads, self.num_clusters)
        return lam.squeeze(-2) if self.num_heads is None else lam.movedim(-2, self.head_axis)


class _Drive(torch.autograd.Function):
    r""":math:`\mathbf w_k^\top \sigma(\mathbf W_k \mathbf s + \mathbf b_k \Delta)`: (M, H, d), (M,) -> (M, H, K).

    The gates :math:`\mathbf g` are (M, H, K, d), far larger than what goes in or out, so they are made a block at a
    time, small enough to stay in cache, and made again for the gradient instead of being kept.
    """

    BLOCK = 1 << 18  # numbers in a block of gates

    @staticmethod
    def gates(s, elapsed, W, b, endogenous):
        heads, clusters, d = b.shape
        x = (elapsed[:, None] * b.reshape(-1)).reshape(len(s), heads, clusters * d)  # (m, H, K d)
        if endogenous:
            inner = torch.bmm(s.transpose(0, 1), W.reshape(heads, clusters * d, d).transpose(1, 2))  # (H, m, K d)
            x += inner.transpose(0, 1)
        return x.sigmoid_().reshape(len(s), heads, clusters, d)

    @staticmethod
    def blocks(count, b):
        size = max(1, _Drive.BLOCK // b.numel())
        return [slice(a, min(a + size, count)) for a in range(0, count, size)]

    @staticmethod
    def forward(ctx, s, elapsed, W, b, w, endogenous):
        ctx.save_for_backward(s, elapsed, W, b, w)
        ctx.endogenous = endogenous
        out = s.new_empty(len(s), *b.shape[:2])
        for part in _Drive.blocks(len(s), b):
            gates = _Drive.gates(s[part], elapsed[part], W, b, endogenous)
            out[part] = gates.mul_(w).sum(-1)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        s, elapsed, W, b, w = ctx.saved_tensors
        heads, clusters, d = b.shape
        ds, d_elapsed = torch.zeros_like(s), torch.zeros_like(elapsed)
        dW, db, dw = torch.zeros_like(W), torch.zeros_like(b), torch.zeros_like(w)
        flat_W = W.reshape(heads, clusters * d, d)
        for part in _Drive.blocks(len(s), b):
            g = _Drive.gates(s[part], elapsed[part], W, b, ctx.endogenous)
            upstream = grad[part].unsqueeze(-1)  # (m, H, K, 1)
            dw += (g * upstream).sum(0)
            dx = (g - g * g).mul_(w).mul_(upstream)  # derivative of the logistic function, times what multiplies it
            flat = dx.reshape(len(dx), -1)
            db += (elapsed[part] @ flat).reshape(b.shape)
            d_elapsed[part] = flat @ b.reshape(-1)
            if ctx.endogenous:
                by_head = dx.reshape(len(dx), heads, clusters * d).transpose(0, 1)  # (H, m, K d)
                ds[part] = torch.bmm(by_head, flat_W).transpose(0, 1)
                dW += torch.bmm(by_head.transpose(1, 2), s[part].transpose(0, 1)).reshape(W.shape)
        return ds, d_elapsed, dW, db, dw, None


def check_elapsed(elapsed):
    """Refuse elapsed times that are negative or not finite, naming the first."""
    if not torch.is_tensor(elapsed):
        raise ValueError(f"elapsed must be a tensor, got {type(elapsed).__name__}")
    bad = ~((elapsed >= 0) & torch.isfinite(elapsed))
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        where = f"[{', '.join(map(str, first))}]" if first else ""
        raise ValueError(f"elapsed{where} is {elapsed[first].item()}; expected finite times that are not negative")
