"""EasyDGL, small and tested: the companion package of the book on continuous-time dynamic graph learning."""

__version__ = "0.1.0"

from . import baselines, data, encode, interpret, reproduce, simulate, train
from .events import EventLog, Histories
from .graph import TemporalGraph, aggregate, backend, edge_softmax, use_backend
from .train import LinkPredictor, NodeClassifier, TrafficForecaster

__all__ = [
    "EventLog",
    "Histories",
    "LinkPredictor",
    "NodeClassifier",
    "TemporalGraph",
    "TrafficForecaster",
    "aggregate",
    "backend",
    "baselines",
    "data",
    "edge_softmax",
    "encode",
    "interpret",
    "reproduce",
    "simulate",
    "train",
    "use_backend",
]
