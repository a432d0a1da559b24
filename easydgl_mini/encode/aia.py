r"""Attention-intensity-attention, the layer the book is about: on graphs and on padded sequences.

Three steps (chapter *Modulated attention*). Attention over the neighbours gives the state :math:`\mathbf s_u`;
the state and the time since the last event give a rate per cluster; the rates modulate the same attention:

.. math::
    Q_{ui} &= \operatorname{softmax}_i\big(e_{ui} + \beta \alpha_{ui}\big), \qquad
    \mathbf s_u = \sum_i Q_{ui} \mathbf v_i & \text{eq:pp\_att} \\
    \mathbf h_u &= \sum_i Q_{ui}\, \lambda^*_{u, k_i}\, \mathbf v_i & \text{eq:iamolding}

The rate is the *listener's* (u), the cluster the *speaker's* (i).
"""

import math

import torch
from torch import nn

from ..graph import aggregate, as_graph, edge_dot, edge_softmax
from .intensity import Intensity, check_elapsed
from .scores import KINDS, attention_scores
from .time import CALENDAR_DIM, time_encoding


class _AIA(nn.Module):
    """What the layer on graphs and the layer on sequences share: parameters, projections, the table of α."""

    head_axis = -2

    def __init__(
        self,
        in_feats,
        out_feats,
        num_heads,
        num_clusters,
        score="sa",
        beta=1.0,
        modulate=True,
        endogenous=True,
        type_dim=8,
        dropout=0.0,
        negative_slope=0.2,
    ):
        super().__init__()
        for name, value in (("in_feats", in_feats), ("out_feats", out_feats), ("num_heads", num_heads)):
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if int(num_clusters) != num_clusters or num_clusters < 1:
            raise ValueError(f"num_clusters must be a whole number of at least 1, got {num_clusters!r}")
        if out_feats % num_heads:
            raise ValueError(f"out_feats must be divisible by num_heads, got {out_feats} and {num_heads}")
        if score not in KINDS:
            raise ValueError(f"score must be one of {', '.join(KINDS)}, got {score!r}")
        self.in_feats, self.out_feats, self.num_heads, self.num_clusters = in_feats, out_feats, num_heads, num_clusters
        self.head_dim = out_feats // num_heads
        self.score, self.beta, self.modulate, self.negative_slope = score, beta, modulate, negative_slope
        self.key = nn.Linear(in_feats, out_feats, bias=False)
        self.query = self.key if score == "gat" else nn.Linear(in_feats, out_feats, bias=False)
        self.value = nn.Linear(in_feats, out_feats, bias=False)
        width = {"sa": 0, "gat": 2 * self.head_dim, "gatv2": self.head_dim}[score]
        self.a = nn.Parameter(torch.empty(num_heads, width)) if width else None
        self.intensity = Intensity(self.head_dim, num_clusters, num_heads, self.head_axis, endogenous)
        self.types = nn.Parameter(torch.empty(num_heads, num_clusters + 1, type_dim))  # z; the last one: a hidden type
        self.clock = nn.Sequential(  # d_u -> W_u, one matrix per head
            nn.Linear(CALENDAR_DIM, 16), nn.Tanh(), nn.Linear(16, num_heads * type_dim * type_dim)
        )
        self.dropout = nn.Dropout(dropout)
        if self.a is not None:
            nn.init.xavier_normal_(self.a)
        nn.init.normal_(self.types, std=1 / math.sqrt(type_dim))

    def extra_repr(self):
        return (
            f"{self.in_feats}, {self.out_feats}, num_heads={self.num_heads}, num_clusters={self.num_clusters}, "
            f"score={self.score!r}, beta={self.beta}, modulate={self.modulate}, endogenous={self.intensity.endogenous}"
        )

    def _heads(self, x):
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)

    def _interaction(self, membership, calendar):
        r"""Inside the tanh of eq:tt_alpha, :math:`\mathbf z_u^\top \mathbf W_u \mathbf z_k` for every k: (…, H, K)."""
        size = self.types.shape[-1]
        W = self.clock(calendar.to(self.types.dtype)).reshape(*calendar.shape[:-1], self.num_heads, size, size)
        hidden = 1 - membership.sum(-1, keepdim=True)  # 1 where the type is hidden, 0 elsewhere
        z = torch.einsum("...k,hkd->...hd", torch.cat([membership, hidden], -1), self.types)
        return torch.einsum("...hd,...hde,hke->...hk", z, W, self.types[:, :-1])

    def _clusters(self, clusters, shape, device):
        """Check cluster ids (…) or weights (…, K), and say where they are hidden (id -1, or a row of zeros)."""
        clusters = torch.as_tensor(clusters, device=device)
        if clusters.shape == shape and not clusters.is_floating_point():
            bad = (clusters < -1) | (clusters >= self.num_clusters)
            expected = f"an id in 0 … {self.num_clusters - 1}, or -1 for a hidden cluster"
            clusters, hidden = clusters.long(), clusters == -1
        elif clusters.shape == (*shape, self.num_clusters) and clusters.is_floating_point():
            total = clusters.sum(-1)
            hidden = (clusters == 0).all(-1)
            bad = (clusters < 0).any(-1) | ~((total - 1).abs() < 1e-3) & ~hidden
            expected = "weights that are not negative and add up to one, or all zero for a hidden cluster"
        else:
            raise ValueError(
                f"clusters must be whole numbers of shape {tuple(shape)} or weights of shape "
                f"{(*shape, self.num_clusters)}, got {clusters.dtype} of shape {tuple(clusters.shape)}"
            )
        if bad.any():
            first = bad.nonzero()[0].tolist()
            raise ValueError(f"clusters{first} is {clusters[tuple(first)].tolist()}; expected {expected}")
        return clusters, hidden

    def _membership(self, clusters, dtype):
        """Cluster ids or weights as weights (…, K); a hidden cluster has none."""
        if clusters.is_floating_point():
            return clusters.to(dtype)
        return nn.functional.one_hot(clusters + 1, self.num_clusters + 1)[..., 1:].to(dtype)

    def _check(self, feat_name, feat, elapsed, query, calendar):
        if feat.shape[-1] != self.in_feats:
            raise ValueError(f"{feat_name} must be {self.in_feats} wide, got shape {tuple(feat.shape)}")
        shape = feat.shape[:-1]
        if not torch.is_tensor(elapsed) or elapsed.shape != shape:
            raise ValueError(f"elapsed must have shape {tuple(shape)}, got {tuple(getattr(elapsed, 'shape', ()))}")
        check_elapsed(elapsed)
        if query is not None and query.shape != feat.shape:
            raise ValueError(f"query must have the shape of {feat_name}, {tuple(feat.shape)}, got {tuple(query.shape)}")
        if calendar is not None and calendar.shape != (*shape, CALENDAR_DIM):
            raise ValueError(f"calendar must have shape {(*shape, CALENDAR_DIM)}, got {tuple(calendar.shape)}")
        return shape


class AIAConv(_AIA):
    r"""Attention-intensity-attention on a graph; called like ``dgl.nn.GATConv``, plus times and clusters.

    Parameters
    ----------
    in_feats : int
        Width of the node features.
    out_feats : int
        Width of the output, *all heads together* (DGL's GATConv counts it per head). Divisible by ``num_heads``.
    num_heads, num_clusters : int
        H and K.
    score : {"sa", "gat", "gatv2"}
        See :func:`attention_scores`. Scores are divided by the square root of a head's width.
    beta : float
        Weight of the time-dependent interactions α between event types.
    modulate : bool
        False leaves λ out of the second attention: then h is plain attention (the ablation without intensities).
    endogenous : bool
        False makes λ independent of the neighbourhood (the ablation without endogenous dynamics).
    type_dim : int
        Width of the event-type embeddings z.
    dropout : float
        On the attention weights, while training.
    negative_slope : float
        Of the LeakyReLU in "gat" and "gatv2".

    Examples
    --------
    >>> from easydgl_mini import TemporalGraph
    >>> graph = TemporalGraph(src=[0, 1, 2], dst=[2, 2, 0], num_nodes=3)
    >>> conv = AIAConv(in_feats=4, out_feats=8, num_heads=2, num_clusters=3)
    >>> h, lam = conv(graph, torch.ones(3, 4), elapsed=torch.tensor([0.0, 1.0, 2.0]), clusters=torch.tensor([0, 1, 2]))
    >>> h.shape, lam.shape
    (torch.Size([3, 8]), torch.Size([3, 2, 3]))
    """

    head_axis = -2

    def forward(self, graph, feat, elapsed, clusters, query=None, calendar=None, return_state=False, detach=None):
        r"""Embed every node at its own time :math:`t_u = \bar t_u + \Delta_u`.

        Parameters
        ----------
        graph : TemporalGraph or DGLGraph
            Edge times, where it has them (``edata["time"]`` in DGL), enter the keys by their time encoding.
        feat : tensor, shape (N, in_feats)
        elapsed : tensor, shape (N,)
            Time since each node's last event, not negative. Changing ``elapsed[j]`` changes ``h[j]`` only.
        clusters : int tensor, shape (N,), or float tensor, shape (N, K)
            Each node's cluster, or its weights over clusters. -1 (or a row of zeros) hides a node's cluster: it may
            listen, with an event type of its own, but not speak.
        query : tensor, shape (N, in_feats), optional
            Features to make the queries from, instead of ``feat``: this is how masking speaks to the layer.
        calendar : tensor, shape (N, CALENDAR_DIM), optional
            :func:`calendar` features of each node's time; None switches α off.
        detach : bool tensor, shape (N,), optional
            True where no gradient may flow through a node's attention weights.

        Returns
        -------
        h : tensor, shape (N, out_feats)
        lam : tensor, shape (N, heads, K)
            The rates, per unit of the time that ``elapsed`` is in.
        s : tensor, shape (N, heads, head width), only with ``return_state``
            ``conv.intensity(s, dt)`` is λ at any other elapsed time.
        """
        graph = as_graph(graph)
        shape = self._check("feat", feat, elapsed, query, calendar)
        if shape != (graph.num_nodes,):
            raise ValueError(f"feat must have one row per node, {graph.num_nodes}, got shape {tuple(feat.shape)}")
        k, v = self._heads(self.key(feat)), self._heads(self.value(feat))
        q = self._heads(self.query(feat if query is None else query))
        edge_key = None if graph.times is None else self._time_keys(graph.times, feat.dtype)
        e = attention_scores(self.score, q, k, self.a, graph, self.negative_slope, edge_key)  # (E, H)

        clusters, hidden = self._clusters(clusters, shape, feat.device)
        at_source = self._reader(graph, clusters, hidden)
        if calendar is not None and self.beta != 0:
            table = self._interaction(self._membership(clusters, feat.dtype), calendar)  # (N, H, K)
            e = e + self.beta * torch.tanh(at_source(table))
        weights = self.dropout(edge_softmax(graph, e))
        if detach is not None:
            weights = torch.where(detach.index_select(0, graph.dst).unsqueeze(-1), weights.detach(), weights)
        s = aggregate(graph, v, weights)  # (N, H, d)
        lam = self.intensity(s, elapsed)  # (N, H, K)
        h = aggregate(graph, v, weights * at_source(lam)) if self.modulate else s
        h = h.reshape(-1, self.out_feats)
        return (h, lam, s) if return_state else (h, lam)

    def _time_keys(self, times, dtype):
        """Keys (E, H, d) of edge times (E,). Many edges share a time (a clock has steps), so each is encoded once."""
        times, place = times.unique(return_inverse=True)
        return self._heads(self.key(time_encoding(times, self.in_feats).to(dtype))).index_select(0, place)

    def _reader(self, graph, clusters, hidden):
        """A function that reads a table (N, H, K) on each edge: its destination's row, its source's cluster; (E, H)."""
        speaks = hidden.index_select(0, graph.src)
        if speaks.any():
            edge = int(speaks.nonzero()[0, 0])
            raise ValueError(
                f"clusters[{int(graph.src[edge])}] is hidden, but edge {edge} leaves that node; remove the edges of "
                "hidden nodes first, with graph.without_sources(…)"
            )
        if clusters.ndim == 1:
            row = graph.dst * self.num_clusters + clusters.index_select(0, graph.src)
            return lambda table: table.transpose(1, 2).reshape(-1, self.num_heads).index_select(0, row)
        return lambda table: edge_dot(graph, clusters.to(table.dtype).unsqueeze(1).expand_as(table), table)


class AIAAttention(_AIA):
    r"""Attention-intensity-attention on padded sequences: a position is a node, its keys are the allowed positions.

    The constructor's arguments are those of :class:`AIAConv`; on a complete graph the two agree, given equal weights.

    Examples
    --------
    >>> att = AIAAttention(in_feats=4, out_feats=4, num_heads=2, num_clusters=3)
    >>> x, elapsed, clusters = torch.ones(1, 5, 4), torch.zeros(1, 5), torch.tensor([[0, 1, 2, 0, 1]])
    >>> h, lam = att(x, elapsed, clusters, key_mask=torch.tensor([[False, True, True, True, True]]))
    >>> h.shape, lam.shape
    (torch.Size([1, 5, 4]), torch.Size([1, 2, 5, 3]))
    """

    head_axis = -3

    def forward(self, x, elapsed, clusters, key_mask, query=None, calendar=None, causal=False, return_state=False):
        """Embed every position.

        Parameters
        ----------
        x : tensor, shape (B, T, in_feats)
        elapsed : tensor, shape (B, T)
            Time since the sequence's previous event, not negative.
        clusters : int tensor, shape (B, T), or float tensor, shape (B, T, K)
            -1 (or zeros) where a position's cluster is hidden or there is no event; such positions can't be keys.
        key_mask : bool tensor, shape (B, T)
            True = may be attended to.
        query : tensor, shape (B, T, in_feats), optional
            Features to make the queries from, instead of ``x``.
        calendar : tensor, shape (B, T, CALENDAR_DIM), optional
            None switches α off.
        causal : bool
            Position j sees keys up to and including j.

        Returns
        -------
        h : tensor, shape (B, T, out_feats)
            Zeros for a query without any key.
        lam : tensor, shape (B, heads, T, K)
        s : tensor, shape (B, heads, T, head width), only with ``return_state``
            ``att.intensity(s, dt)`` is λ at any other elapsed time dt (B, T).
        """
        shape = self._check("x", x, elapsed, query, calendar)
        if x.ndim != 3:
            raise ValueError(f"x must have shape (B, T, {self.in_feats}), got {tuple(x.shape)}")
        if not torch.is_tensor(key_mask) or key_mask.dtype != torch.bool or key_mask.shape != shape:
            raise ValueError(
                f"key_mask must be boolean of shape {tuple(shape)}, got {getattr(key_mask, 'dtype', None)} of "
                f"shape {tuple(getattr(key_mask, 'shape', ()))}"
            )
        clusters, hidden = self._clusters(clusters, shape, x.device)
        if (key_mask & hidden).any():
            first = (key_mask & hidden).nonzero()[0].tolist()
            raise ValueError(f"clusters{first} is hidden, but key_mask{first} allows it as a key; mask it")
        membership = self._membership(clusters, x.dtype)  # (B, T, K)
        k, v = (self._heads(f(x)).transpose(1, 2) for f in (self.key, self.value))  # (B, H, T, d)
        q = self._heads(self.query(x if query is None else query)).transpose(1, 2)
        a = None if self.a is None else self.a.unsqueeze(1)  # (H, 1, …): one vector per head, for every position
        e = attention_scores(self.score, q, k, a, None, self.negative_slope)  # (B, H, T, T): query, key
        speakers = membership.transpose(1, 2).unsqueeze(1)  # (B, 1, K, T): the cluster of each key
        if calendar is not None and self.beta != 0:
            e = e + self.beta * torch.tanh(self._interaction(membership, calendar).transpose(1, 2) @ speakers)
        allowed = key_mask[:, None, None, :]
        if causal:
            allowed = allowed & torch.ones(shape[1], shape[1], dtype=torch.bool, device=x.device).tril()
        weights = torch.softmax(e.masked_fill(~allowed, torch.finfo(e.dtype).min), -1)
        weights = self.dropout(weights * allowed)  # a query without keys keeps nothing
        s = weights @ v  # (B, H, T, d)
        lam = self.intensity(s, elapsed)  # (B, H, T, K)
        h = (weights * (lam @ speakers)) @ v if self.modulate else s
        h = h.transpose(1, 2).reshape(*shape, self.out_feats)
        return (h, lam, s) if return_state else (h, lam)
