r"""Graph models that know no time: GAT, GraphSAGE, GCN, ChebyNet, ARMA and APPNP, one layer each (GraphSAGE two).

Each looks at one graph as it stands and mixes every node's features with its neighbours'; they differ in the filter.
With :math:`\hat{\mathbf A} = \mathbf D^{-1/2} \mathbf A \mathbf D^{-1/2}` of a graph with self-loops:

.. math::
    \text{GAT:}\quad & \mathbf h_u = \textstyle\sum_i \operatorname{softmax}_i\big(\mathrm{LeakyReLU}
        (\mathbf a^\top[\mathbf W \mathbf x_u \| \mathbf W \mathbf x_i])\big)\, \mathbf W \mathbf x_i \\
    \text{GraphSAGE:}\quad & \mathbf h_u = \mathbf W_1 \mathbf x_u + \mathbf W_2 \operatorname{mean}_i \mathbf x_i \\
    \text{GCN:}\quad & \mathbf H = \hat{\mathbf A}^2 \mathbf X \mathbf W \\
    \text{ChebyNet:}\quad & \mathbf H = \textstyle\sum_{k \le 2} T_k(-\hat{\mathbf A}) \mathbf X \mathbf W_k,\quad
        T_0 = 1,\ T_1(x) = x,\ T_2(x) = 2x^2 - 1 \\
    \text{ARMA:}\quad & \mathbf H = \tfrac1S \textstyle\sum_s \mathbf X_s^{(2)},\quad \mathbf X_s^{(k+1)} =
        \sigma\big(\hat{\mathbf A} \mathbf X_s^{(k)} \mathbf W_s^{(k)} + \mathbf X \mathbf V_s\big) \\
    \text{APPNP:}\quad & \mathbf H^{(k+1)} = 0.9\, \hat{\mathbf A} \mathbf H^{(k)} + 0.1\, \mathbf H^{(0)},\quad
        \mathbf H^{(0)} = \mathbf X \mathbf W,\ k < 10

The paper's supplement gives one recipe for all tasks: self-loops, batch normalisation, tanh (GAT, ARMA) or ReLU, then a
linear map. "GCN" is its name for SGC (Wu et al., 2019), as here.

Simplified here: batch normalisation takes its statistics from each process's own batch. The paper's "two hops" are
taken at their word, so ChebyNet has three terms (DGL's ``ChebConv(k=3)``); the largest eigenvalue is taken to be 2. GAT
does not look at edge weights, which the item graph and roads have; the others do. ARMA has S = 2 recursions side by
side (the supplement gives no number). Roads hear along every edge in both directions. APPNP is a layer in that recipe:
what spreads is a linear map of the features, and the classes come after (the original spreads the classes that a
perceptron of two layers gives).

References: Veličković et al. (2018) GAT; Hamilton et al. (2017) GraphSAGE; Wu et al. (2019) Simplifying graph
convolutional networks; Defferrard et al. (2016) ChebyNet; Bianchi et al. (2021) Graph neural networks with
convolutional ARMA filters; Gasteiger et al. (2019) Predict then propagate.
"""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array, diags_array
from torch import nn

from ..encode import GATConv, SAGEConv
from ..graph import TemporalGraph, aggregate
from ..train.link import ItemModel, RankingTask, Recommender, log_popularity
from ..train.node import Classifier, graph_of, with_loops
from ..train.traffic import STEPS, Forecaster, RoadModel
from .registry import register

TITLES = {
    "gat": "GAT",
    "sage": "GraphSAGE",
    "gcn": "GCN",
    "chebynet": "ChebyNet",
    "arma": "ARMA",
    "appnp": "APPNP",
}


# ------------------------------------------------------------------------------------------------------- the layers


def edge_norm(graph, dtype=torch.float32, source="in"):
    r"""Entries of :math:`\hat{\mathbf A}`, one per edge: :math:`w_{ui} / \sqrt{d_u d_i}`, shape (E,).

    :math:`d_u` is the weight of all edges *into* u, at least one; ``source`` says which edges :math:`d_i` counts, those
    into i or those ``"out"`` of it. Where every edge has its opposite the two agree.
    """
    weights = torch.ones(graph.num_edges, device=graph.device) if graph.weights is None else graph.weights
    weights, end = weights.to(dtype), graph.dst if source == "in" else graph.src
    at_dst, at_src = (weights.new_zeros(graph.num_nodes).index_add(0, x, weights) for x in (graph.dst, end))
    if graph.weights is None:
        at_src = at_src.clamp_min(1)
    return weights * (at_dst[graph.dst] * at_src[graph.src]).rsqrt()


def full(x):
    """What autocast made smaller, as float32: the kernels know nothing else."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class SGConv(nn.Module):
    r"""GCN without what lies between its layers: :math:`\hat{\mathbf A}^{hops} \mathbf X \mathbf W + \mathbf b`.

    Equal to ``dgl.nn.SGConv(k=hops)`` given the same weights.
    """

    def __init__(self, in_feats, out_feats, hops=2):
        super().__init__()
        self.hops, self.fc = hops, nn.Linear(in_feats, out_feats)

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, out_feats)."""
        norm = edge_norm(graph, feat.dtype, "in" if graph.weights is None else "out")
        for _ in range(self.hops):
            feat = aggregate(graph, feat, norm)
        return self.fc(feat)


class ChebConv(nn.Module):
    r"""Chebyshev polynomials of :math:`\mathbf L - \mathbf I = -\hat{\mathbf A}`, up to degree ``hops``.

    Equal to ``dgl.nn.ChebConv(k=hops + 1, activation=None)`` with a largest eigenvalue of 2, given the same weights.
    """

    def __init__(self, in_feats, out_feats, hops=2):
        super().__init__()
        self.hops, self.linear = hops, nn.Linear((hops + 1) * in_feats, out_feats)

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, out_feats)."""
        norm, terms = edge_norm(graph, feat.dtype), [feat]
        for k in range(self.hops):
            step = -aggregate(graph, terms[-1], norm)
            terms.append(step if k == 0 else 2 * step - terms[-2])
        return self.linear(torch.cat(terms, -1))


class ARMAConv(nn.Module):
    r"""Mean of ``stacks`` recursions of ``steps`` each, every step fed with the input again; see the module.

    Parameters
    ----------
    in_feats, out_feats : int
    stacks, steps : int
        S, and how often each is propagated: the hops.
    activation : callable
        σ, after every step.
    """

    def __init__(self, in_feats, out_feats, stacks=2, steps=2, activation=torch.tanh):
        super().__init__()
        self.activation = activation
        widths = [in_feats] + [out_feats] * (steps - 1)
        self.W = nn.ParameterList(nn.Parameter(torch.empty(stacks, width, out_feats)) for width in widths)
        self.V = nn.Parameter(torch.empty(stacks, in_feats, out_feats))
        self.bias = nn.Parameter(torch.zeros(stacks, 1, out_feats))
        for weight in (*self.W, self.V):
            for stack in weight:
                nn.init.xavier_uniform_(stack)

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, out_feats)."""
        norm, skip = edge_norm(graph, feat.dtype), feat @ self.V + self.bias  # (S, N, out)
        x = feat.expand(len(self.V), *feat.shape)
        for W in self.W:
            heard = aggregate(graph, full(x @ W).transpose(0, 1), norm).transpose(0, 1)
            x = self.activation(heard + skip)
        return x.mean(0)


class APPNPConv(nn.Module):
    r"""Personalised PageRank of a linear map: each step goes on along the edges, and back to the start with ``alpha``.

    After the map, equal to ``dgl.nn.APPNPConv(steps, alpha)``.
    """

    def __init__(self, in_feats, out_feats, steps=10, alpha=0.1):
        super().__init__()
        self.steps, self.alpha, self.fc = steps, alpha, nn.Linear(in_feats, out_feats)

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, out_feats)."""
        norm, start = edge_norm(graph, feat.dtype, "out"), full(self.fc(feat))
        x = start
        for _ in range(self.steps):
            x = (1 - self.alpha) * aggregate(graph, x, norm) + self.alpha * start
        return x


# ----------------------------------------------------------------------------------------------- the paper's recipe

LAYERS = {  # name: (layer, how many, activation, edges away that it hears: one more for the degrees of the last ones)
    "gat": (lambda width, dim, heads: GATConv(width, dim, heads), 1, torch.tanh, 1),
    "sage": (lambda width, dim, heads: SAGEConv(width, dim), 2, F.relu, 2),
    "gcn": (lambda width, dim, heads: SGConv(width, dim), 1, F.relu, 3),
    "chebynet": (lambda width, dim, heads: ChebConv(width, dim), 1, F.relu, 3),
    "arma": (lambda width, dim, heads: ARMAConv(width, dim), 1, torch.tanh, 3),
    "appnp": (lambda width, dim, heads: APPNPConv(width, dim), 1, F.relu, 11),
}


class StaticEncoder(nn.Module):
    """Self-loops, then for each layer: filter, batch normalisation, activation, dropout.

    Parameters
    ----------
    kind : {"gat", "sage", "gcn", "chebynet", "arma", "appnp"}
    in_feats, dim, num_heads : int
        Only GAT has heads.
    dropout : float
    """

    def __init__(self, kind, in_feats, dim, num_heads=4, dropout=0.0):
        super().__init__()
        layer, count, self.activation, _ = LAYERS[kind]
        self.layers = nn.ModuleList(layer(in_feats if n == 0 else dim, dim, num_heads) for n in range(count))
        self.norms = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(count))
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph, feat):
        """Features (N, in_feats) -> (N, dim)."""
        graph = with_loops(graph)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            feat = full(layer(graph, feat))
            feat = norm(feat) if len(feat) > 1 or not self.training else feat  # one node has no variance
            feat = self.dropout(self.activation(feat))
        return feat


class StaticNodes(nn.Module):
    """The encoder on a snapshot's graph, then a linear map: ``model(snapshot) -> logits``."""

    def __init__(self, kind, in_feats, dim, num_heads, dropout, num_classes):
        super().__init__()
        self.encoder = StaticEncoder(kind, in_feats, dim, num_heads, dropout)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, snapshot):
        return self.head(self.encoder(graph_of(snapshot), snapshot["features"]))


@dataclasses.dataclass(kw_only=True, eq=False)
class StaticClassifier(Classifier):
    """Classify nodes by their snapshot's graph and features, edge times left out; see the module for ``kind``.

    Parameters
    ----------
    num_heads : int
        Of GAT, four: the paper's.
    **rest
        See :class:`easydgl_mini.train.node.Classifier`.
    """

    num_heads: int = 4

    kind = "gcn"

    @property
    def hops(self):
        return LAYERS[self.kind][3]

    def _model(self, in_feats):
        return StaticNodes(self.kind, in_feats, self.dim, self.num_heads, self.dropout, self.num_classes)


class StaticItems(ItemModel):
    """Items' embeddings through the encoder on an item graph; a user is the mean of their items."""

    def __init__(self, kind, num_items, num_edges, dim, num_heads, dropout):
        super().__init__(num_items, dim, dropout)
        self.encoder = StaticEncoder(kind, dim, dim, num_heads, dropout)
        for name in ("src", "dst"):
            self.register_buffer(name, torch.zeros(num_edges, dtype=torch.int64))
        self.register_buffer("weights", torch.ones(num_edges))
        self._graph = None

    @property
    def graph(self):
        """The item graph, made once: then its edges are sorted once, not in every step."""
        if self._graph is None or self._graph.device != self.src.device:
            self._graph = TemporalGraph._trusted(self.src, self.dst, len(self.bias), weights=self.weights)
        return self._graph

    def _load_from_state_dict(self, *args):
        self._graph = None  # other edges may be coming
        super()._load_from_state_dict(*args)

    def forward(self, rows, hidden):
        """The user at every position, (B, T, dim): what names a hidden item is the mean of all told ones."""
        return self.user(rows, hidden).unsqueeze(1).expand(-1, rows.item.shape[1], -1)

    def user(self, rows, hidden):
        """Mean embedding of the items that are told, (B, dim); zero without any."""
        told = (rows.mask & ~hidden).unsqueeze(-1)
        x = self.encoder(self.graph, self.items.weight)[rows.item.clamp_min(0)] * told
        return x.sum(1) / told.sum(1).clamp_min(1)


class BagTask(RankingTask):
    """Cross-entropy of naming a window's hidden items, for which one softmax per window is enough."""

    def loss(self, model, train, ids, seed, epoch):
        rows, hidden = self.rows(model, train, ids, seed, epoch)
        log_share = model.scores(model.user(rows, hidden)).log_softmax(-1)
        each = -log_share.gather(1, rows.item.clamp_min(0))[hidden]
        return {"loss": (each.sum(), len(each))}


@dataclasses.dataclass(kw_only=True, eq=False)
class StaticRecommender(Recommender):
    """Rank items by their inner product with the mean of a user's items, embedded on an item graph (as IDCF does).

    The graph joins items of the same training users (:func:`item_graph`), so new users need nothing but their items.
    Order and times are left out, but for the last ``max_len`` events being the ones that count. See the module for
    ``kind``. Simplified here: a plain mean, where IDCF (Wu et al., 2021) weighs by learned relations to key users. The
    items that are ranked have their embeddings as they go into the encoder, not as they come out.

    Parameters
    ----------
    neighbours : int
        Strongest neighbours that an item hears.
    mask_rate : float
        Share of a window's items that is hidden, and named from the others.
    **rest
        See :class:`easydgl_mini.train.Recommender`.
    """

    num_heads: int = 4
    neighbours: int = 20
    mask_rate: float = 0.2

    kind = "gcn"

    def _start(self, train):
        src, dst, weights = item_graph(train, self.neighbours)
        model = self._build(num_items=train.num_items, num_edges=len(src))
        model.bias.data.copy_(log_popularity(train))
        for name, x in (("src", src), ("dst", dst), ("weights", weights)):
            getattr(model, name).copy_(torch.from_numpy(x))

    def _model(self, num_items, num_edges):
        return StaticItems(self.kind, num_items, num_edges, self.dim, self.num_heads, self.dropout)

    def _task(self):
        return BagTask(self)


def item_graph(log, neighbours=20, block=512):
    r"""Edges between items that share users.

    The weight is :math:`|U_i \cap U_j| / \sqrt{|U_i||U_j|}`, with :math:`U_i` the users of item i. Each item hears its
    strongest neighbours (of equal ones those with the lower numbers), and is heard by those that it hears.

    Returns
    -------
    src, dst : int arrays, shape (E,)
    weights : float32 array, shape (E,)
    """
    R = coo_array((np.ones(len(log)), (log.item, log.user)), shape=(log.num_items, log.num_users)).tocsr()
    R.data[:] = 1.0
    R = (diags_array(np.maximum(R.sum(1), 1) ** -0.5) @ R).tocsr()
    ends, count = [], min(neighbours, log.num_items)
    for first in range(0, log.num_items, block):
        near = (R[first : first + block] @ R.T).toarray()
        near[np.arange(len(near)), first + np.arange(len(near))] = 0.0
        best = np.argsort(-near, axis=1, kind="stable")[:, :count]
        value = np.take_along_axis(near, best, 1)
        row, column = np.nonzero(value > 0)
        ends.append((best[row, column], first + row, value[row, column]))
    src, dst, value = (np.concatenate(x) for x in zip(*ends, strict=True))
    heard = coo_array((value, (dst, src)), shape=(log.num_items,) * 2).tocsr()
    both = heard.maximum(heard.T).tocoo()
    return both.col.astype(np.int64), both.row.astype(np.int64), both.data.astype(np.float32)


class StaticRoads(RoadModel):
    """The encoder on the road graph with the latest readings and the clock, then a linear map to twelve steps."""

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        width = 2 * self.window + 2 + 7  # readings and if they are there, time of day, weekday
        self.encoder = StaticEncoder(settings.kind, width, settings.dim, settings.num_heads, settings.dropout)
        self.head = nn.Linear(settings.dim, STEPS)

    def forward(self, seen, there, clock):
        B, _, N = seen.shape
        angle = 2 * torch.pi * clock[:, :1]
        moment = torch.cat([angle.sin(), angle.cos(), F.one_hot(clock[:, 1].long(), 7).to(seen)], 1)
        moment = moment.unsqueeze(1).expand(B, N, -1)
        feat = torch.cat([seen.transpose(1, 2), there.transpose(1, 2), moment], -1).reshape(B * N, -1)
        shift = N * torch.arange(B, device=seen.device).unsqueeze(1)
        ends = ((end + shift).reshape(-1) for end in (self.src, self.dst))
        graph = TemporalGraph._trusted(*ends, B * N, weights=self.edge_weights.repeat(B))  # B copies side by side
        return self.head(self.encoder(graph, feat)).reshape(B, N, STEPS).transpose(1, 2)


@dataclasses.dataclass(kw_only=True, eq=False)
class StaticForecaster(Forecaster):
    """Forecast roads from one snapshot of readings, the graph and the clock; see the module for ``kind``.

    Parameters
    ----------
    num_heads : int
        Of GAT, four: the paper's.
    **rest
        See :class:`easydgl_mini.train.traffic.Forecaster`.
    """

    num_heads: int = 4
    both_ways: bool = True

    presets = {name: preset | {"window": 1} for name, preset in Forecaster.presets.items()}
    net, kind = StaticRoads, "gcn"


for _kind, _title in TITLES.items():
    for _task, _base in (("node", StaticClassifier), ("link", StaticRecommender), ("traffic", StaticForecaster)):
        _name = _title + _base.__name__.removeprefix("Static")
        _more = {"kind": _kind, "__module__": __name__, "__doc__": f"{_title}, a :class:`{_base.__name__}`."}
        globals()[_name] = register(_kind, _title, _task)(type(_name, (_base,), _more))
