r"""TGN: nodes with a memory, written by a GRU at each event and read by time-encoded attention (Rossi et al., 2020).

A snapshot's edges are played in order of time, in a few chunks: by their age, at borders that part the ages met in
training into equal shares. Each node that has events in a chunk gets the mean of their messages, and its GRU changes
its memory; the others' stays as it was. Then TGAT's attention
(:mod:`.tgat_node`) reads features and memories:

.. math::
    \mathbf m_u &= \operatorname{mean}_{(i \to u)} \big[\mathbf s_u \,\|\, \mathbf s_i \,\|\, \Phi(t_{ui} - \bar t_u)
        \big], \qquad \mathbf s_u \leftarrow \operatorname{GRU}(\mathbf m_u, \mathbf s_u) \\
    \mathbf h_u &= \operatorname{TGAT}\big(\mathbf s_u + \mathbf W \mathbf x_u\big)

with :math:`\bar t_u` the time of the event before (the first event of a node has age 0), and :math:`\mathbf s_u = 0` at
first.

Simplified here: memories begin anew with each snapshot, so all of it is differentiable and nothing is kept between
batches; events of one chunk don't see each other (neither do those of one batch in the original); messages are averaged
(the original's default takes the latest). The paper's supplement has a time-decayed recurrent unit over five snapshots;
this is the original's GRU, over five chunks of one.
"""

import dataclasses

import torch
from torch import nn

from ..graph import aggregate
from ..train.node import graph_of
from .registry import register
from .static import full
from .tgat_node import TGATClassifier, TGATModel, TimeCode, ages, into_dst


class Memory(nn.Module):
    """Play a snapshot's edges and return every node's memory.

    Parameters
    ----------
    dim : int
    chunks : int
        How many; edges of one time are never parted. ``borders`` are the ages between them, the youngest first.
    """

    def __init__(self, dim, chunks):
        super().__init__()
        self.dim, self.chunks, self.clock, self.gru = dim, chunks, TimeCode(dim), nn.GRUCell(3 * dim, dim)
        self.register_buffer("borders", torch.arange(1.0, chunks))

    def learn(self, snapshots):
        """Part the ages of the training snapshots' edges into equal shares."""
        met = torch.cat([ages(snapshot, torch.float64) for snapshot in snapshots]).sort().values
        if len(met):
            self.borders.copy_(met[torch.arange(1, self.chunks) * len(met) // self.chunks])

    def forward(self, snapshot):
        """Memories (n, dim)."""
        graph, times = graph_of(snapshot), snapshot["times"]
        memory = self.clock.phase.new_zeros(graph.num_nodes, self.dim)
        seen = times.new_full((graph.num_nodes,), torch.inf).scatter_reduce(0, graph.dst, times, "amin")
        chunk = torch.searchsorted(self.borders, ages(snapshot, self.borders.dtype), right=True)
        for n in reversed(range(self.chunks)):  # the oldest first
            part = graph.select(chunk == n)
            count = part.in_degrees().clamp_min(1).unsqueeze(-1)
            has = (part.in_degrees() > 0).unsqueeze(-1)
            age = self.clock(part.times - seen[part.dst])
            message = torch.cat([memory, aggregate(part, memory) / count, into_dst(part, age) / count], -1)
            memory = torch.where(has, full(self.gru(message, memory)), memory)
            seen = seen.scatter_reduce(0, part.dst, part.times, "amax")
        return memory


class TGNModel(TGATModel):
    """``model(snapshot) -> logits`` (n, C)."""

    def __init__(self, in_feats, dim, num_layers, num_heads, dropout, num_classes, chunks):
        super().__init__(in_feats, dim, num_layers, num_heads, dropout, num_classes)
        self.memory = Memory(dim, chunks)

    def forward(self, snapshot):
        x = self.memory(snapshot) + full(self.enter(snapshot["features"]))
        return self.head(self.attend(snapshot, x))


@register("tgn", "TGN", "node")
@dataclasses.dataclass(kw_only=True, eq=False)
class TGN(TGATClassifier):
    """Classify nodes by attention over memories; three layers, five heads, five chunks: the paper's (snapshots there).

    Parameters
    ----------
    chunks : int
    **rest
        See :class:`TGATClassifier`.
    """

    num_heads: int = 5
    chunks: int = 5

    @property
    def hops(self):
        return self.num_layers + self.chunks  # a memory may come from one hop further with each chunk

    def _start(self, train):
        super()._start(train)
        self.model_.memory.learn(train)

    def _model(self, in_feats):
        sizes = self.dim, self.num_layers, self.num_heads, self.dropout, self.num_classes
        return TGNModel(in_feats, *sizes, self.chunks)
