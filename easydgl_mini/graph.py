r"""A graph whose edges may carry times, and the two kernels everything in the book is made of.

``edge_softmax`` turns one score per edge into weights that add up to one over the edges *into* each node;
``aggregate`` sums what the sources say, weighted, into each destination. Both run on DGL where DGL imports and
supports the tensors, and on plain torch everywhere else (chapter *Graph attention*).
"""

import contextlib
import contextvars
import functools
import os

import numpy as np
import torch
import torch.nn.functional as F

_FORCED = contextvars.ContextVar("easydgl_backend", default=None)


# ------------------------------------------------------------------------------------------------ the graph


class TemporalGraph:
    r"""A directed multigraph with :math:`N` nodes and :math:`E` edges; messages flow ``src -> dst``.

    The graph copies its input and never changes afterwards, so the dst-sorted order that the kernels need is computed
    once and kept. Nodes without edges are legal; a graph without nodes is not.

    Parameters
    ----------
    src, dst : sequence of int, shape (E,)
        Source and destination of each edge. The same pair may occur many times.
    num_nodes : int
        Number of nodes, at least one.
    times : sequence of float, shape (E,), optional
        When each edge appeared: finite and not negative, in any unit you like, but one unit. Kept as float64 unless
        a tensor or array says otherwise.
    weights : sequence of float, shape (E,), optional
        Finite edge weights.

    Examples
    --------
    >>> g = TemporalGraph(src=[0, 1, 2], dst=[2, 2, 0], num_nodes=4, times=[1.0, 3.0, 2.0])
    >>> g.in_degrees()
    tensor([1, 0, 2, 0])
    >>> g.last_event(before=3.0)            # strictly before: the edge at 3.0 has not happened yet
    tensor([2., 1., 1., 1.], dtype=torch.float64)
    """

    def __init__(self, src, dst, num_nodes, times=None, weights=None):
        self.num_nodes = _positive_int("num_nodes", num_nodes)
        self.src = _node_ids("src", src, self.num_nodes)
        self.dst = _node_ids("dst", dst, self.num_nodes)
        if len(self.src) != len(self.dst):
            raise ValueError(f"src and dst must have the same length, got {len(self.src)} and {len(self.dst)}")
        self.times = None if times is None else _edge_values("times", times, self.src)
        self.weights = None if weights is None else _edge_values("weights", weights, self.src)
        if self.times is not None:
            _refuse("times", self.times, self.times < 0, "times that are not negative")

    @classmethod
    def _trusted(cls, src, dst, num_nodes, times=None, weights=None):
        """Build from tensors that were already checked, without copying them."""
        graph = cls.__new__(cls)
        graph.num_nodes, graph.src, graph.dst, graph.times, graph.weights = num_nodes, src, dst, times, weights
        return graph

    @classmethod
    def from_dgl(cls, g, times="time", weights="weight"):
        """Read a homogeneous ``DGLGraph``; ``g.edata[times]`` and ``g.edata[weights]`` are taken where they exist."""
        if not g.is_homogeneous:
            raise ValueError(f"g must be homogeneous, got node types {g.ntypes} and edge types {g.etypes}")
        src, dst = g.edges(order="eid")
        graph = cls(src, dst, g.num_nodes(), times=g.edata.get(times), weights=g.edata.get(weights))
        if not hasattr(g, "is_block") or not g.is_block:
            graph.__dict__["_dgl"] = g.local_var()
        return graph

    @classmethod
    def from_scipy(cls, A):
        """Read a square SciPy matrix: a stored ``A[i, j]`` is an edge ``i -> j`` of that weight."""
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(f"A must be square, got shape {A.shape}")
        A = A.tocoo()
        return cls(A.row, A.col, A.shape[0], weights=A.data)

    def to_dgl(self):
        """The same graph as a new ``DGLGraph``, with ``edata['time']`` and ``edata['weight']`` where it has them."""
        dgl = _import_dgl("to_dgl needs DGL")
        g = dgl.graph((self.src.clone(), self.dst.clone()), num_nodes=self.num_nodes)
        for name, value in (("time", self.times), ("weight", self.weights)):
            if value is not None:
                g.edata[name] = value.clone()
        return g

    def to(self, device):
        """The same graph on another device (itself, if it is there already)."""
        device = torch.empty(0, device=device).device
        if self.device == device:
            return self
        moved = [None if x is None else x.to(device) for x in (self.src, self.dst, self.times, self.weights)]
        return self._trusted(moved[0], moved[1], self.num_nodes, moved[2], moved[3])

    @property
    def device(self):
        return self.src.device

    @property
    def num_edges(self):
        return len(self.src)

    def edges(self):
        """Sources and destinations, each of shape (E,), in the order given."""
        return self.src, self.dst

    def in_degrees(self):
        """Number of edges into each node, shape (N,)."""
        return torch.bincount(self.dst, minlength=self.num_nodes)

    def select(self, edge_mask):
        """The graph of the edges where ``edge_mask`` (E,) is True, all nodes kept."""
        keep = _bool_mask("edge_mask", edge_mask, self.num_edges, self.device)
        part = [None if x is None else x[keep] for x in (self.src, self.dst, self.times, self.weights)]
        graph = self._trusted(part[0], part[1], self.num_nodes, part[2], part[3])
        if "by_dst" in self.__dict__:  # a sub-sequence of a sorted order is sorted: no need to sort again
            order = self.by_dst[0].long()
            renumber = torch.cumsum(keep, 0) - 1
            graph.__dict__["by_dst"] = graph._by(renumber[order[keep[order]]], graph.dst, graph.src)
        return graph

    def without_sources(self, mask):
        """Drop every edge that *leaves* a node where ``mask`` (N,) is True: such nodes listen, but don't speak."""
        mask = _bool_mask("mask", mask, self.num_nodes, self.device)
        return self.select(~mask[self.src])

    def last_event(self, before, fill=None):
        r"""Time of the latest edge into each node strictly before ``before``, shape (N,): the paper's :math:`\bar t_u`.

        Parameters
        ----------
        before : float or tensor, shape (N,)
            One time for all nodes, or one for each.
        fill : float, optional
            What nodes without an earlier edge get; by default the first time in the graph.
        """
        if self.times is None:
            raise ValueError("last_event needs edge times, but this graph was made with times=None")
        before = torch.as_tensor(before, dtype=self.times.dtype, device=self.device)
        if before.ndim and before.shape != (self.num_nodes,):
            raise ValueError(f"before must be a number or of shape ({self.num_nodes},), got {tuple(before.shape)}")
        _refuse("before", before.reshape(-1), torch.isnan(before.reshape(-1)), "numbers")
        if fill is None:
            if self.num_edges == 0:
                raise ValueError("fill must be given for a graph without edges: it has no first time")
            fill = self.times.min()
        fill = torch.as_tensor(fill, dtype=self.times.dtype, device=self.device)
        earlier = self.times < before.expand(self.num_nodes)[self.dst]
        latest = self.times.new_full((self.num_nodes,), -torch.inf)
        latest = latest.scatter_reduce(0, self.dst[earlier], self.times[earlier], "amax")
        return torch.where(torch.isinf(latest), fill, latest)

    def __repr__(self):
        has = [name for name in ("times", "weights") if getattr(self, name) is not None]
        return f"TemporalGraph({self.num_nodes} nodes, {self.num_edges} edges{''.join(', ' + h for h in has)})"

    # Each of the two sorted orders is (order, indptr, other): `order` sorts the edges by one end, node n's edges are
    # order[indptr[n]:indptr[n + 1]], and `other` is their other end. 32-bit where it fits: half the memory traffic.

    def _by(self, order, end, other):
        small = max(self.num_edges, self.num_nodes) < 2**31
        indptr = torch.zeros(self.num_nodes + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(torch.bincount(end, minlength=self.num_nodes), 0, out=indptr[1:])
        arrays = (order, indptr, other.index_select(0, order))
        return tuple(a.int() for a in arrays) if small else arrays

    @functools.cached_property
    def by_dst(self):
        return self._by(torch.argsort(self.dst, stable=True), self.dst, self.src)

    @functools.cached_property
    def by_src(self):
        return self._by(torch.argsort(self.src, stable=True), self.src, self.dst)

    @functools.cached_property
    def _dgl(self):
        g = _import_dgl("the dgl backend needs DGL").graph((self.src, self.dst), num_nodes=self.num_nodes)
        return g.int() if self.num_edges < 2**31 else g


# ---------------------------------------------------------------------------------------------- the kernels


def edge_softmax(graph, scores):
    r"""Softmax of edge scores over the edges into each node.

    .. math:: Q_{ui} = \frac{\exp e_{ui}}{\sum_{i' \in \mathcal N_u} \exp e_{ui'}}

    Parameters
    ----------
    graph : TemporalGraph
    scores : tensor, shape (E, …)
        One score per edge and head, in the graph's edge order.

    Returns
    -------
    tensor, shape (E, …)
        Sums to one over the edges into each node that has any.

    Examples
    --------
    >>> g = TemporalGraph(src=[1, 2, 0], dst=[0, 0, 1], num_nodes=3)
    >>> edge_softmax(g, torch.tensor([0.0, 0.0, 5.0]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    graph = as_graph(graph)
    _check("scores", scores, graph.num_edges, "edges", graph)
    if graph.num_edges == 0:
        return scores
    flat = scores.reshape(graph.num_edges, -1)  # (E, H)
    if _runs_on_dgl(scores):
        import dgl.ops

        return dgl.ops.edge_softmax(graph._dgl, flat).reshape(scores.shape)
    return _EdgeSoftmax.apply(flat, graph).reshape(scores.shape)


def aggregate(graph, values, weights=None):
    r"""Weighted sum of the sources' values into each destination.

    .. math:: \mathbf h_u = \sum_{(i \to u) \in \mathbb E} w_{ui}\, \mathbf v_i

    Parameters
    ----------
    graph : TemporalGraph
    values : tensor, shape (N, …)
        What each node says.
    weights : tensor, shape (E, …), optional
        One weight per edge (and head …); trailing dimensions of size one are added until it has as many as ``values``,
        then the two broadcast. ``None`` means one.

    Returns
    -------
    tensor, shape (N, …)
        Nodes without incoming edges get zeros.

    Examples
    --------
    >>> g = TemporalGraph(src=[1, 2], dst=[0, 0], num_nodes=3)
    >>> aggregate(g, torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.5, 0.25]))
    tensor([[2.],
            [0.],
            [0.]])
    """
    graph = as_graph(graph)
    _check("values", values, graph.num_nodes, "nodes", graph)
    if weights is None:
        shape, values, weights = values.shape, values.reshape(graph.num_nodes, 1, -1), None
    else:
        _check("weights", weights, graph.num_edges, "edges", graph)
        shape, values, weights = _match(values, weights)
    if graph.num_edges == 0:
        return values.sum() * 0 + values.new_zeros(shape)  # zeros, still part of the graph autograd sees
    if _runs_on_dgl(values):
        import dgl.ops

        if weights is None:
            return dgl.ops.copy_u_sum(graph._dgl, values).reshape(shape)
        return dgl.ops.u_mul_e_sum(graph._dgl, values, weights.unsqueeze(-1)).reshape(shape)
    return _Aggregate.apply(values, weights, graph, False).reshape(shape)


def edge_dot(graph, at_src, at_dst):
    r"""Inner product of what stands at the two ends of each edge.

    .. math:: e_{ui} = \mathbf q_u^\top \mathbf k_i \qquad\text{for each edge } i \to u

    Parameters
    ----------
    graph : TemporalGraph
    at_src, at_dst : tensors, shape (N, H, D)

    Returns
    -------
    tensor, shape (E, H)
    """
    graph = as_graph(graph)
    for name, tensor in (("at_src", at_src), ("at_dst", at_dst)):
        _check(name, tensor, graph.num_nodes, "nodes", graph)
    if at_src.ndim != 3 or at_src.shape != at_dst.shape:
        raise ValueError(f"at_src and at_dst must be (N, H, D), got {tuple(at_src.shape)} and {tuple(at_dst.shape)}")
    if graph.num_edges and _runs_on_dgl(at_src):
        import dgl.ops

        return dgl.ops.u_dot_v(graph._dgl, at_src, at_dst).squeeze(-1)
    return _EdgeDot.apply(at_src, at_dst, graph)


def _match(values, weights):
    """Bring values to (N, H, D) and weights to (E, H), so that one weight per head multiplies D numbers."""
    if weights.ndim > values.ndim:
        raise ValueError(f"weights has {weights.ndim} dimensions but values only {values.ndim}")
    w_dims = list(weights.shape[1:]) + [1] * (values.ndim - weights.ndim)
    v_dims = list(values.shape[1:])
    if any(w != v and 1 not in (w, v) for w, v in zip(w_dims, v_dims, strict=True)):
        raise ValueError(f"weights {tuple(weights.shape)} do not broadcast with values {tuple(values.shape)}")
    dims = [max(w, v) if 0 not in (w, v) else 0 for w, v in zip(w_dims, v_dims, strict=True)]
    heads = max((j + 1 for j, w in enumerate(w_dims) if w != 1), default=0)  # dimensions on which the weights vary
    values = values.expand(len(values), *dims)
    weights = weights.reshape(len(weights), *w_dims).expand(len(weights), *dims[:heads], *w_dims[heads:])
    num_heads, width = _product(dims[:heads]), _product(dims[heads:])
    return (len(values), *dims), values.reshape(-1, num_heads, width), weights.reshape(-1, num_heads)


class _EdgeSoftmax(torch.autograd.Function):
    """Softmax over the edges into each node, stabilised by each node's largest score."""

    @staticmethod
    def forward(ctx, scores, graph):
        order, indptr, _ = graph.by_dst
        top = torch.segment_reduce(
            scores.index_select(0, order), "max", offsets=indptr.long(), axis=0, unsafe=True, initial=-torch.inf
        )
        weights = torch.exp(scores - top.index_select(0, graph.dst))
        weights /= _bag(order, weights, indptr).index_select(0, graph.dst)
        ctx.graph = graph
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        graded = weights * grad
        return graded - weights * _SumIntoDst.apply(graded, ctx.graph).index_select(0, ctx.graph.dst), None


class _SumIntoDst(torch.autograd.Function):
    """(E, H) -> (N, H): sum of the edges into each node."""

    @staticmethod
    def forward(ctx, edge_values, graph):
        ctx.graph = graph
        order, indptr, _ = graph.by_dst
        return _bag(order, edge_values, indptr)

    @staticmethod
    def backward(ctx, grad):
        return grad.index_select(0, ctx.graph.dst), None


class _Aggregate(torch.autograd.Function):
    """(N, H, D), (E, H) -> (N, H, D) along the edges, or against them: each is the other's gradient."""

    @staticmethod
    def forward(ctx, values, weights, graph, reverse):
        ctx.graph, ctx.reverse = graph, reverse
        ctx.save_for_backward(values, weights)
        order, indptr, other = graph.by_src if reverse else graph.by_dst
        if weights is None:
            return _bag(other, values.reshape(len(values), -1), indptr).reshape(values.shape)
        by_head = values.transpose(0, 1).contiguous()  # (H, N, D)
        weights = weights.index_select(0, order).t().contiguous()  # (H, E)
        heads = [_bag(other, v, indptr, w) for v, w in zip(by_head, weights, strict=True)]
        return torch.stack(heads, 1)

    @staticmethod
    def backward(ctx, grad):
        values, weights = ctx.saved_tensors
        need_values, need_weights = ctx.needs_input_grad[:2]
        d_values = _Aggregate.apply(grad, weights, ctx.graph, not ctx.reverse) if need_values else None
        at_src, at_dst = (grad, values) if ctx.reverse else (values, grad)
        d_weights = _EdgeDot.apply(at_src, at_dst, ctx.graph) if weights is not None and need_weights else None
        return d_values, d_weights, None, None


class _EdgeDot(torch.autograd.Function):
    """(N, H, D) at sources, (N, H, D) at destinations -> their inner products per edge and head, (E, H)."""

    @staticmethod
    def forward(ctx, at_src, at_dst, graph):
        ctx.graph = graph
        ctx.save_for_backward(at_src, at_dst)
        out = at_src.new_empty(graph.num_edges, at_src.shape[1])
        block = 1 << 14  # edges at a time, so that what is gathered stays in cache
        for a in range(0, graph.num_edges, block):
            b = min(a + block, graph.num_edges)
            left, right = at_src.index_select(0, graph.src[a:b]), at_dst.index_select(0, graph.dst[a:b])
            torch.sum(left.mul_(right), -1, out=out[a:b])
        return out

    @staticmethod
    def backward(ctx, grad):
        at_src, at_dst = ctx.saved_tensors
        d_src = _Aggregate.apply(at_dst, grad, ctx.graph, True)
        d_dst = _Aggregate.apply(at_src, grad, ctx.graph, False)
        return d_src, d_dst, None


def _bag(index, table, indptr, weights=None):
    """Sum of ``weights * table[index]`` over each slice of ``indptr``: torch's embedding bag is that, fused."""
    return F.embedding_bag(index, table, indptr, mode="sum", per_sample_weights=weights, include_last_offset=True)


# ---------------------------------------------------------------------------------------------- the backend


@functools.cache
def _dgl_problem():
    """Why DGL cannot be used here, or None where it can."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # or its first import prints, and writes a file
    try:
        import dgl
        import dgl.ops

        dgl.graph(([0], [0]))
    except Exception as error:  # a broken DGL raises anything from ImportError to FileNotFoundError
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _import_dgl(purpose):
    if _dgl_problem():
        raise RuntimeError(f"{purpose}, which cannot be used here ({_dgl_problem()}); the torch backend needs nothing")
    import dgl

    return dgl


def _forced():
    name = _FORCED.get() or os.environ.get("EASYDGL_BACKEND") or None
    if name not in (None, "dgl", "torch"):
        raise ValueError(f"EASYDGL_BACKEND must be 'dgl' or 'torch', got {name!r}")
    return name


def backend():
    """``"dgl"`` or ``"torch"``: what the kernels run on for CPU tensors. ``EASYDGL_BACKEND`` forces one."""
    forced = _forced()
    if forced == "dgl":
        _import_dgl("the backend was forced to DGL")
    return forced or ("torch" if _dgl_problem() else "dgl")


@contextlib.contextmanager
def use_backend(name):
    """Force a backend inside a ``with`` block.

    >>> with use_backend("torch"):
    ...     backend()
    'torch'
    """
    if name not in ("dgl", "torch"):
        raise ValueError(f"name must be 'dgl' or 'torch', got {name!r}")
    token = _FORCED.set(name)
    try:
        backend()
        yield
    finally:
        _FORCED.reset(token)


def _runs_on_dgl(tensor):
    """Whether this tensor's kernels run on DGL. Registry builds of DGL know the CPU, float32 and float64 only."""
    if backend() == "torch":
        return False
    problem = None
    if tensor.device.type != "cpu":
        problem = f"tensors on {tensor.device.type}"
    elif tensor.dtype not in (torch.float32, torch.float64):
        problem = f"{tensor.dtype} tensors"
    if problem and _forced() == "dgl":
        raise RuntimeError(f"the backend was forced to DGL, which does not support {problem} here; use torch")
    return problem is None


def as_graph(graph):
    """A ``TemporalGraph`` as it is, a ``DGLGraph`` converted, anything else refused."""
    if isinstance(graph, TemporalGraph):
        return graph
    if hasattr(graph, "local_var") and hasattr(graph, "edges"):
        return TemporalGraph.from_dgl(graph)
    raise ValueError(f"graph must be a TemporalGraph or a DGLGraph, got {type(graph).__name__}")


# ------------------------------------------------------------------------------------------------- checking


def _product(dims):
    return functools.reduce(lambda a, b: a * b, dims, 1)


def _refuse(name, values, bad, expected):
    """Raise naming the first offending index, if there is one."""
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        raise ValueError(f"{name}[{first}] is {values[first].item()}; expected {expected}")


def _positive_int(name, value):
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def _node_ids(name, ids, num_nodes):
    ids = torch.as_tensor(ids)
    if ids.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(ids.shape)}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        if len(ids):
            raise ValueError(f"{name} must hold whole numbers, got {ids.dtype}")
        ids = ids.new_zeros(0, dtype=torch.int64)
    ids = ids.to(torch.int64, copy=True)
    _refuse(name, ids, (ids < 0) | (ids >= num_nodes), f"a node id in 0 … {num_nodes - 1}")
    return ids


def _edge_values(name, values, like):
    if not torch.is_tensor(values):
        values = np.asarray(values)  # a list becomes float64: float32 cannot tell apart two seconds of this century
    values = torch.as_tensor(values, device=like.device).detach()
    if not values.is_floating_point():
        values = values.to(torch.float64)
    if values.shape != like.shape:
        raise ValueError(f"{name} must have one value per edge, shape ({len(like)},), got {tuple(values.shape)}")
    _refuse(name, values, ~torch.isfinite(values), "finite numbers")
    return values.clone()


def _bool_mask(name, mask, length, device):
    mask = torch.as_tensor(mask, device=device)
    if mask.dtype != torch.bool or mask.shape != (length,):
        raise ValueError(f"{name} must be boolean of shape ({length},), got {mask.dtype} of shape {tuple(mask.shape)}")
    return mask


def _check(name, tensor, length, what, graph):
    if not torch.is_tensor(tensor) or not tensor.is_floating_point():
        raise ValueError(
            f"{name} must be a floating-point tensor, got {getattr(tensor, 'dtype', type(tensor).__name__)}"
        )
    if tensor.ndim == 0 or tensor.shape[0] != length:
        raise ValueError(
            f"{name} must have {length} rows (one for each of the graph's {what}), got {tuple(tensor.shape)}"
        )
    if tensor.device != graph.device:
        raise ValueError(f"{name} is on {tensor.device} but the graph is on {graph.device}; move it with graph.to(…)")
