"""The three scoring functions of the paper's equations eq:sa, eq:gat and eq:gatv2 (chapter *Graph attention*)."""

import torch
import torch.nn.functional as F

from ..graph import as_graph, edge_dot

KINDS = ("sa", "gat", "gatv2")


def attention_scores(kind, query, key, a=None, graph=None, negative_slope=0.2, edge_key=None):
    r"""How much query :math:`u` cares about key :math:`i`, before the softmax.

    .. math::
        \text{sa:}\quad & e_{ui} = \mathbf q_u^\top \mathbf k_i / \sqrt d \\
        \text{gat:}\quad & e_{ui} = \mathrm{LeakyReLU}\big(\mathbf a^\top [\mathbf q_u \,\|\, \mathbf k_i]\big) \\
        \text{gatv2:}\quad & e_{ui} = \mathbf a^\top \mathrm{LeakyReLU}(\mathbf q_u + \mathbf k_i)

    GAT uses one projection for both ends (pass it twice). For GATv2 :math:`\mathbf q_u = \mathbf W_1 \mathbf x_u` and
    :math:`\mathbf k_i = \mathbf W_2 \mathbf x_i`, so their sum is :math:`\mathbf W [\mathbf x_u \| \mathbf x_i]`.
    Without a matrix between the concatenation and the LeakyReLU, as the paper prints it, the softmax would cancel
    the query.

    Parameters
    ----------
    kind : {"sa", "gat", "gatv2"}
    query, key : tensors
        On a graph (N, H, d) each, one row per node. Without one (…, T, d) and (…, S, d): every query meets every key.
    a : tensor, optional
        The weight vector: width 2d for "gat" (query's half first), d for "gatv2", with leading head dimensions that
        match (H, …) on a graph; without a graph it broadcasts against (…, d).
    graph : TemporalGraph, optional
        Scores are computed on its edges only.
    negative_slope : float
        Of the LeakyReLU.
    edge_key : tensor, shape (E, H, d), optional
        On a graph, what an edge adds to its key: the encoding of its time.

    Returns
    -------
    tensor, shape (E, H) on a graph, (…, T, S) without.
    """
    d = _check(kind, query, key, a)
    if graph is not None:
        graph = as_graph(graph)
    if kind == "sa":
        if graph is None:
            return query @ key.transpose(-1, -2) / d**0.5
        dot = edge_dot(graph, key, query)
        if edge_key is not None:
            dot = dot + (query.index_select(0, graph.dst) * edge_key).sum(-1)
        return dot / d**0.5
    if kind == "gat":  # a^T [q || k] is a sum of two numbers, one per node: nothing of width d is made per edge
        at_query, at_key = (query * a[..., :d]).sum(-1), (key * a[..., d:]).sum(-1)
        if graph is not None:
            pair = at_query.index_select(0, graph.dst) + at_key.index_select(0, graph.src)
            if edge_key is not None:
                pair = pair + (edge_key * a[..., d:]).sum(-1)
        else:
            pair = at_query.unsqueeze(-1) + at_key.unsqueeze(-2)
        return F.leaky_relu(pair, negative_slope)
    if graph is not None:
        pair = query.index_select(0, graph.dst) + key.index_select(0, graph.src)  # (E, H, d)
        pair = pair if edge_key is None else pair + edge_key
    else:
        pair, a = query.unsqueeze(-2) + key.unsqueeze(-3), a.unsqueeze(-2)  # (…, T, S, d)
    return (F.leaky_relu(pair, negative_slope) * a).sum(-1)


def _check(kind, query, key, a):
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    d = query.shape[-1]
    if key.shape[-1] != d:
        raise ValueError(f"query and key must be equally wide, got {d} and {key.shape[-1]}")
    width = {"sa": None, "gat": 2 * d, "gatv2": d}[kind]
    if (a is None) != (width is None) or (a is not None and a.shape[-1] != width):
        got = None if a is None else tuple(a.shape)
        raise ValueError(f"a must be {'None' if width is None else f'of width {width}'} for kind {kind!r}, got {got}")
    if not torch.is_floating_point(query):
        raise ValueError(f"query must hold floating-point numbers, got {query.dtype}")
    return d
