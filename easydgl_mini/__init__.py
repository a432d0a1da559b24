"""EasyDGL, small and tested: the companion package of the book on continuous-time dynamic graph learning."""

from . import encode, interpret, simulate, train
from .events import EventLog, Histories
from .graph import TemporalGraph, aggregate, backend, edge_softmax, use_backend
from .train import LinkPredictor, NodeClassifier, TrafficForecaster

__version__ = "0.1.0"
__all__ = [
    "EventLog",
    "Histories",
    "LinkPredictor",
    "NodeClassifier",
    "TemporalGraph",
    "TrafficForecaster",
    "aggregate",
    "backend",
    "edge_softmax",
    "encode",
    "interpret",
    "simulate",
    "train",
    "use_backend",
]
