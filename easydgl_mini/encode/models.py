"""The three encoders of the paper's supplement, and the two plain graph layers that they need.

Links: two attention-intensity-attention (AIA) layers on a user's history. Nodes: two GATConv, then one AIA. Traffic:
two SAGEConv, then one AIA. The task heads, losses and masking belong to Part 3; each encoder takes a ``query`` or
``hidden`` argument through which masking speaks to it (chapter *Modulated attention*).

Under autocast only the linear maps run in the lower precision; attention and rates keep the parameters' own.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..graph import aggregate, as_graph, edge_softmax
from .aia import AIAAttention, AIAConv
from .scores import attention_scores
from .time import time_encoding


class GATConv(nn.Module):
    r"""Graph attention: :math:`\mathbf h_u = \sum_i Q_{ui} \mathbf W \mathbf x_i + \mathbf b`, scores as in eq:gat.

    Equal to ``dgl.nn.GATConv`` given the same weights (DGL's ``attn_r`` is our query's half of ``a``, ``attn_l`` the
    key's), with the heads side by side: ``out_feats`` is their total width. A node without neighbours gets the bias.

    Examples
    --------
    >>> from easydgl_mini import TemporalGraph
    >>> GATConv(4, 6, num_heads=2)(TemporalGraph([0, 1], [1, 2], 3), torch.ones(3, 4)).shape
    torch.Size([3, 6])
    """

    def __init__(self, in_feats, out_feats, num_heads, negative_slope=0.2):
        super().__init__()
        if out_feats % num_heads:
            raise ValueError(f"out_feats must be divisible by num_heads, got {out_feats} and {num_heads}")
        self.num_heads, self.negative_slope = num_heads, negative_slope
        self.fc = nn.Linear(in_feats, out_feats, bias=False)
        self.a = nn.Parameter(torch.empty(num_heads, 2 * out_feats // num_heads))
        self.bias = nn.Parameter(torch.zeros(out_feats))
        nn.init.xavier_normal_(self.fc.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.xavier_normal_(self.a, gain=nn.init.calculate_gain("relu"))

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, out_feats)."""
        graph = as_graph(graph)
        z = _full(self.fc(feat)).reshape(len(feat), self.num_heads, -1)  # (N, H, d)
        weights = edge_softmax(graph, attention_scores("gat", z, z, self.a, graph, self.negative_slope))
        return aggregate(graph, z, weights).reshape(len(feat), -1) + self.bias


class SAGEConv(nn.Module):
    r"""GraphSAGE with the mean.

    .. math:: \mathbf h_u = \mathbf W_1 \mathbf x_u
        + \mathbf W_2 \frac{1}{|\mathcal N_u|} \sum_i w_{ui} \mathbf x_i + \mathbf b

    Equal to ``dgl.nn.SAGEConv(…, "mean")`` given the same weights; the edge weights :math:`w_{ui}` are the graph's, one
    where it has none. A node without neighbours hears zero.
    """

    def __init__(self, in_feats, out_feats):
        super().__init__()
        self.fc_self = nn.Linear(in_feats, out_feats, bias=True)
        self.fc_neigh = nn.Linear(in_feats, out_feats, bias=False)

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, out_feats)."""
        graph = as_graph(graph)
        feat = _full(feat)
        weights = None if graph.weights is None else graph.weights.to(feat.dtype)
        degree = graph.in_degrees().clamp_min(1).to(feat.dtype).unsqueeze(-1)
        return self.fc_self(feat) + self.fc_neigh(aggregate(graph, feat, weights) / degree)


def _full(x):
    """What autocast made smaller, as float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class LinkEncoder(nn.Module):
    r"""A user's history -> an embedding at each position: two AIA layers with two heads.

    A position's features are its item's embedding plus its cluster's (a linear map of
    :math:`[\mathbf X^f \| \mathbf X^c]`, eq:gcoding, *is* such a sum), times ``item_scale``, plus the encoding of its
    time. Each AIA layer is followed by a feed-forward map with ReLU, with residual connections and layer normalisation
    around both.

    Parameters
    ----------
    item_clusters : int tensor, shape (items,)
        Each item's cluster; its largest value sets K unless ``num_clusters`` is given.
    dim, num_layers, num_heads, num_clusters, dropout
        The usual ones; the paper's defaults.
    item_scale : float
        The encoding of time has length :math:`\sqrt{d/2}` from the start, an item that is not trained yet one of about
        :math:`0.02 \sqrt{2d}`. With 1, time speaks first; with :math:`\sqrt d`, as in other transformers, items do.
    clock : {"absolute", "relative"}
        From where the encoded times are counted; the paper does not say. "absolute": from the data's own zero, so that
        equal histories a year apart look different. "relative": back from the newest position of the history, the one
        that is asked about; with ``causal``, which must not know the newest, forward from the oldest.
    num_places : int
        How many places of a history, counted from its end, have an embedding of their own, which is added to the
        item's; the paper has none, the released code one for each. Then the order of simultaneous events is seen. (A
        causal position is told by it how many follow, so that its rates are no longer those of a likelihood.)
    **layer
        Switches of :class:`AIAAttention`: ``score``, ``beta``, ``modulate``, ``endogenous``.
    """

    def __init__(
        self,
        item_clusters,
        dim=64,
        num_layers=2,
        num_heads=2,
        num_clusters=None,
        dropout=0.0,
        item_scale=1.0,
        clock="absolute",
        num_places=0,
        **layer,
    ):
        super().__init__()
        self.item_scale, self.clock = item_scale, clock
        item_clusters = torch.as_tensor(item_clusters, dtype=torch.int64)
        num_clusters = int(item_clusters.max()) + 1 if num_clusters is None else num_clusters
        self.register_buffer("item_clusters", item_clusters)
        self.items = nn.Embedding(len(item_clusters), dim)
        self.clusters = nn.Embedding(num_clusters, dim)
        self.token = nn.Parameter(torch.empty(dim))  # q(1): stands for an item that is not told
        self.layers = nn.ModuleList(
            AIAAttention(dim, dim, num_heads, num_clusters, dropout=dropout, **layer) for _ in range(num_layers)
        )
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)) for _ in range(num_layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * num_layers))
        self.dropout = nn.Dropout(dropout)
        for parameter in (self.items.weight, self.clusters.weight, self.token):
            nn.init.normal_(parameter, std=0.02)
        self.places = nn.Embedding(num_places, dim) if num_places else None  # last: the rest starts the same without
        if num_places:
            nn.init.normal_(self.places.weight, std=0.02)

    def forward(
        self, item, time, elapsed, mask, hidden=None, calendar=None, causal=False, last_elapsed=None, keep_hidden=False
    ):
        """Embed each position at its time.

        Parameters
        ----------
        item : int tensor, shape (B, T)
            Anything (say -1) where ``mask`` is False or ``hidden`` is True.
        time, elapsed : tensors, shape (B, T)
            When each event happened, and how long after the one before.
        mask : bool tensor, shape (B, T)
            True at real positions.
        hidden : bool tensor, shape (B, T), optional
            True where the item is to be predicted: the position is not told its item or cluster, and is not a key.
        calendar : tensor, shape (B, T, CALENDAR_DIM), optional
        causal : bool
            Position j sees keys up to and including j.
        last_elapsed : tensor, shape (B, T), optional
            What the last layer uses instead of ``elapsed``; only there may time move on.
        keep_hidden : bool
            Typical masking: hidden positions stay keys, speaking for all clusters alike.

        Returns
        -------
        h : tensor, shape (B, T, dim)
        lam : tensor, shape (B, heads, T, K)
            The last layer's rates.
        state : tensor, shape (B, heads, T, head width)
            The last layer's state: ``encoder.layers[-1].intensity(state, dt)`` is λ at other times.
        """
        told = mask if hidden is None else mask & ~hidden
        known = torch.where(told, item, 0)
        clusters = torch.where(told, self.item_clusters[known], -1)
        x = self.items(known) + self.clusters(self.item_clusters[known])
        x = torch.where(told.unsqueeze(-1), x, self.token)
        if self.places is not None:
            x = x + self.places(places(x.shape[1], self.places.num_embeddings).to(x.device))
        x = x * self.item_scale
        if self.clock == "relative":
            time = time - _end(time, mask, newest=not causal)
        x = self.dropout(x + time_encoding(time, x.shape[-1]).to(x.dtype))
        keys = told
        if keep_hidden:
            K = self.clusters.num_embeddings
            shares = F.one_hot(clusters.clamp_min(0), K).to(x.dtype)
            shares = torch.where(told.unsqueeze(-1), shares, 1 / K)
            clusters, keys = shares * mask.unsqueeze(-1), mask
        for n, (layer, mixer) in enumerate(zip(self.layers, self.mixers, strict=True)):
            at = last_elapsed if last_elapsed is not None and n == len(self.layers) - 1 else elapsed
            with torch.autocast(x.device.type, enabled=False):
                out, lam, state = layer(x, at, clusters, keys, calendar=calendar, causal=causal, return_state=True)
            x = self.norms[2 * n](x + self.dropout(out))
            x = self.norms[2 * n + 1](x + self.dropout(mixer(x)))
        return x, lam, state


def places(length, known):
    """Places (length,) counted from the end, 0 the last; those beyond ``known``, not trained, take the oldest's."""
    return torch.arange(length - 1, -1, -1).clamp_max(known - 1)


def _end(time, mask, newest):
    """Each row's newest or oldest real time, (B, 1); 0 where there is none."""
    sign = 1 if newest else -1
    end = sign * torch.where(mask, sign * time, -torch.inf).amax(1, keepdim=True)
    return torch.where(mask.any(1, keepdim=True), end, 0)


class _GraphEncoder(nn.Module):
    """Plain graph layers, then one AIA; what nodes and roads share."""

    def __init__(self, dim, num_heads, num_clusters, dropout, layer):
        super().__init__()
        self.aia = AIAConv(dim, dim, num_heads, num_clusters, dropout=dropout, **layer)
        self.dropout = nn.Dropout(dropout)

    def embed(self, graph, feat):
        """The plain layers: features (N, in_feats) -> (N, dim)."""
        for layer in self.layers:
            feat = self.dropout(F.relu(layer(graph, feat)))
        return _full(feat)

    def ask(self, x, at):
        """Queries (N, dim) of nodes with embeddings ``x`` about the time ``at``."""
        at = torch.as_tensor(at, dtype=torch.float64, device=x.device).expand(len(x))
        return x + time_encoding(at, x.shape[-1]).to(x.dtype)

    def forward(
        self,
        graph,
        feat,
        elapsed,
        clusters,
        at=None,
        query=None,
        calendar=None,
        asks=None,
        plain=None,
        return_state=False,
        detach=None,
    ):
        """Embed every node.

        Parameters
        ----------
        graph : TemporalGraph or DGLGraph
        feat : tensor, shape (N, in_feats)
        elapsed, clusters, calendar, detach
            As in :class:`AIAConv`.
        at : float or tensor, shape (N,), optional
            The time asked about; its encoding is added to the queries.
        query : tensor, shape (N, dim), optional
            What the AIA layer's queries are made of instead of its input; the residual path still carries the input.
        asks : bool tensor, shape (N,), optional
            Which nodes ask with ``query``, the others with the layer's input; by default all.
        plain : TemporalGraph or DGLGraph, optional
            Another graph for the plain layers, such as one with self-loops.

        Returns
        -------
        h : tensor, shape (N, dim)
        lam : tensor, shape (N, heads, K)
        x : tensor, shape (N, dim), only with ``return_state``
            What came out of the plain layers.
        s : tensor, shape (N, heads, head width), only with ``return_state``
            ``encoder.aia.intensity(s, dt)`` is λ at any other elapsed time.
        """
        graph = as_graph(graph)
        x = self.embed(graph if plain is None else as_graph(plain), feat)
        ask = x if query is None else query
        if query is not None and asks is not None:
            ask = torch.where(asks.unsqueeze(-1), query.to(x.dtype), x)
        if at is not None:
            ask = self.ask(ask, at)
        with torch.autocast(x.device.type, enabled=False):
            out, lam, s = self.aia(graph, x, elapsed, clusters, ask, calendar, return_state=True, detach=detach)
        h = F.relu(x + out)
        return (h, lam, x, s) if return_state else (h, lam)


class NodeEncoder(_GraphEncoder):
    """For node classification: two GATConv, then one AIA layer with two heads."""

    def __init__(self, in_feats, num_clusters, dim=32, num_heads=2, dropout=0.0, **layer):
        super().__init__(dim, num_heads, num_clusters, dropout, layer)
        self.layers = nn.ModuleList([GATConv(in_feats, dim, num_heads), GATConv(dim, dim, num_heads)])


class TrafficEncoder(_GraphEncoder):
    """For traffic forecasting: two SAGEConv, then one AIA layer with eight heads."""

    def __init__(self, in_feats, num_clusters, dim=32, num_heads=8, dropout=0.0, **layer):
        super().__init__(dim, num_heads, num_clusters, dropout, layer)
        self.layers = nn.ModuleList([SAGEConv(in_feats, dim), SAGEConv(dim, dim)])
