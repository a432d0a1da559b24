"""EasyDGL, small and tested: the companion package of the book on continuous-time dynamic graph learning."""

from . import encode, simulate
from .events import EventLog, Histories
from .graph import TemporalGraph, aggregate, backend, edge_softmax, use_backend

__version__ = "0.1.0"
__all__ = [
    "EventLog",
    "Histories",
    "TemporalGraph",
    "aggregate",
    "backend",
    "edge_softmax",
    "encode",
    "simulate",
    "use_backend",
]
