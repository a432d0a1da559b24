"""Train: how likely the events were, what is hidden, three tasks and one loop (Part 3 of the book)."""

from .cam import CaM, TokenMask
from .fit import FitConfig, FitResult, fit
from .link import ItemModel, LinkPredictor, Recommender
from .metrics import accuracy, f1_of, hit_rate, macro_f1, mae, mape, ndcg, rank_of, rmse
from .naming import naming_loss
from .node import Classifier, NodeClassifier
from .tpple import compensator, log_likelihood, merge_ties, smoothness, tpple
from .traffic import Forecaster, TrafficForecaster

__all__ = [
    "CaM",
    "Classifier",
    "FitConfig",
    "FitResult",
    "Forecaster",
    "ItemModel",
    "LinkPredictor",
    "NodeClassifier",
    "Recommender",
    "TokenMask",
    "TrafficForecaster",
    "fit",
    "accuracy",
    "compensator",
    "f1_of",
    "hit_rate",
    "log_likelihood",
    "macro_f1",
    "mae",
    "mape",
    "merge_ties",
    "naming_loss",
    "ndcg",
    "rank_of",
    "rmse",
    "smoothness",
    "tpple",
]
