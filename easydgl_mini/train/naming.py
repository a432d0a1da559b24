r"""The loss of naming one item among all, without a table of all scores (chapter *Three tasks, one recipe*)."""

import torch

CHUNK = 1 << 20  # scores held at once, about


def naming_loss(h, table, bias, target, weight):
    r"""Weighted cross-entropy of naming one item per row.

    .. math:: \sum_n w_n \big({-\log} \operatorname{softmax}(\mathbf E \mathbf h_n + \mathbf b)_{i_n}\big)

    A batch may ask for a thousand items among tens of thousands. As the sum is one number, its gradient is known as
    soon as a row's probabilities p are: :math:`w_n (\mathbf p_n - \mathbf 1_{i_n})` for the scores. So scores are made
    a few rows at a time, turned into gradients while they are still in the cache, and forgotten. Under autocast
    the three products with :math:`\mathbf E` run in the lower precision, the softmax and all sums in float32.

    Parameters
    ----------
    h : tensor, shape (n, dim)
    table : tensor, shape (items, dim)
        Rows :math:`\mathbf E_i`.
    bias : tensor, shape (items,)
    target : int tensor, shape (n,)
        The items to be named.
    weight : tensor, shape (n,)
        Of each row; gets no gradient.

    Returns
    -------
    tensor, scalar

    Examples
    --------
    >>> h, table = torch.zeros(2, 3), torch.ones(4, 3)
    >>> naming_loss(h, table, torch.zeros(4), torch.tensor([0, 3]), torch.ones(2)) / 2  # four equal chances: log 4
    tensor(1.3863)
    """
    return _Naming.apply(h, table, bias, target, weight)


class _Naming(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, table, bias, target, weight):
        low = table.dtype
        if torch.is_autocast_enabled(h.device.type):
            low = torch.get_autocast_dtype(h.device.type)
        total, dh, d_table, d_bias = 0.0, torch.empty_like(h), torch.zeros_like(table), torch.zeros_like(bias)
        small, weight = table.to(low), weight.to(bias.dtype)
        with torch.autocast(h.device.type, enabled=False):
            for part in torch.arange(len(h), device=h.device).split(max(CHUNK // len(table), 1)):
                x, w, named = h[part].to(low), weight[part], target[part].unsqueeze(1)
                scores = (x @ small.T).to(bias.dtype).add_(bias)  # (m, items)
                top, p = scores.amax(1, keepdim=True), scores.softmax(1)
                total = total + w @ (top - scores.gather(1, named) - p.amax(1, keepdim=True).log()).squeeze(1)
                p.scatter_add_(1, named, -torch.ones_like(top))  # now the scores' gradient, but for w
                d_bias.addmv_(p.T, w)
                p, w = p.to(low), w.unsqueeze(1)
                d_table += p.T @ (x * w).to(low)
                dh[part] = ((p @ small) * w).to(h.dtype)
        ctx.save_for_backward(dh, d_table, d_bias)
        return torch.as_tensor(total, dtype=bias.dtype, device=h.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        dh, d_table, d_bias = ctx.saved_tensors
        return (grad * dh).to(dh.dtype), grad * d_table, grad * d_bias, None, None
