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


FEW = 4  # times asked of one state for which its products with W are kept


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
        many = elapsed.shape[: max(elapsed.ndim - (s.ndim - 2), 0)]  # the times at which each state is asked
        many = many if many.numel() <= FEW else torch.Size()  # of very many, each is a row of its own
        lead = torch.broadcast_shapes(s.shape[:-2], elapsed.shape[len(many) :])
        heads = self.w.shape[0]
        flat_s = s.expand(*lead, heads, self.in_feats).reshape(-1, heads, self.in_feats).transpose(0, 1)
        flat_elapsed = elapsed.expand((*many, *lead)).reshape(many.numel(), -1)
        x = _Drive.apply(flat_s.contiguous(), flat_elapsed, self.W, self.b, self.w, self.endogenous)
        lam = softplus(x.transpose(1, 2) + self.mu, self.log_phi.exp()).reshape(*many, *lead, heads, self.num_clusters)
        return lam.squeeze(-2) if self.num_heads is None else lam.movedim(-2, self.head_axis)


class _Drive(torch.autograd.Function):
    r""":math:`\mathbf w_k^\top \sigma(\mathbf W_k \mathbf s + \mathbf b_k \Delta)`: (H, M, d), (R, M) -> (R, H, M, K).

    The gates :math:`\mathbf g` are (R, H, M, K, d), far larger than what goes in or out, so they are made a block at a
    time, small enough to stay in cache, and made again for the gradient instead of being kept. A state that is asked at
    R times is multiplied by W once.
    """

    BLOCK = 1 << 17  # numbers in a block of gates

    @staticmethod
    def blocks(count, b):
        size = max(1, _Drive.BLOCK // b.numel())
        return [slice(a, min(a + size, count)) for a in range(0, count, size)]

    @staticmethod
    def inner(s, W, endogenous):
        """W s for every cluster: (H, m, K d); zeros without endogenous dynamics."""
        heads, clusters, d = W.shape[:3]
        if not endogenous:
            return s.new_zeros(heads, s.shape[1], clusters * d)
        return torch.bmm(s, W.reshape(heads, clusters * d, d).transpose(1, 2))

    @staticmethod
    def gates(inner, elapsed, b):
        heads, clusters, d = b.shape
        x = torch.addcmul(inner, elapsed.unsqueeze(-1), b.reshape(heads, 1, -1))
        return x.sigmoid_().reshape(heads, -1, clusters, d)

    @staticmethod
    def forward(ctx, s, elapsed, W, b, w, endogenous):
        ctx.save_for_backward(s, elapsed, W, b, w)
        ctx.endogenous = endogenous
        out = s.new_empty(len(elapsed), len(b), s.shape[1], b.shape[1])
        for part in _Drive.blocks(s.shape[1], b):
            inner = _Drive.inner(s[:, part], W, endogenous)
            for r, dt in enumerate(elapsed[:, part]):
                out[r, :, part] = _Drive.gates(inner, dt, b).mul_(w.unsqueeze(1)).sum(-1)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        s, elapsed, W, b, w = ctx.saved_tensors
        heads, clusters, d = b.shape
        ds, d_elapsed = torch.zeros_like(s), torch.zeros_like(elapsed) if ctx.needs_input_grad[1] else None
        dW, db, dw = (torch.zeros_like(x) for x in (W, b, w))
        flat_W, flat_b = W.reshape(heads, clusters * d, d), b.reshape(heads, clusters * d, 1)
        for part in _Drive.blocks(s.shape[1], b):
            inner, total = _Drive.inner(s[:, part], W, ctx.endogenous), 0
            for r, dt in enumerate(elapsed[:, part]):
                g = _Drive.gates(inner, dt, b)
                up = g * grad[r, :, part].unsqueeze(-1)  # (H, m, K, d)
                dw += up.sum(1)
                dx = torch.addcmul(up, up, g, value=-1).mul_(w.unsqueeze(1))  # w g (1 - g), times what comes from above
                dx = dx.reshape(heads, -1, clusters * d)
                db += (dt.expand(heads, 1, -1) @ dx).reshape(b.shape)
                if d_elapsed is not None:
                    d_elapsed[r, part] = (dx @ flat_b).sum(0).squeeze(-1)
                total = total + dx if r else dx
            if ctx.endogenous:
                ds[:, part] = torch.bmm(total, flat_W)
                dW += torch.bmm(total.transpose(1, 2), s[:, part]).reshape(W.shape)
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
