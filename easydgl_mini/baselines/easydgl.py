"""EasyDGL itself, under the name it has in the paper's tables, for all three tasks."""

from ..train import LinkPredictor, NodeClassifier, TrafficForecaster
from .registry import register

for _task, _estimator in (("link", LinkPredictor), ("node", NodeClassifier), ("traffic", TrafficForecaster)):
    register("easydgl", "EasyDGL", _task)(_estimator)
