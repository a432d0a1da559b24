"""Encode: attention that knows what time it is (Part 2 of the book)."""

from .aia import AIAAttention, AIAConv
from .clusters import KernelKMeans, graph_cut_kernel
from .intensity import Intensity, softplus
from .models import GATConv, LinkEncoder, NodeEncoder, SAGEConv, TrafficEncoder
from .scores import attention_scores
from .time import CALENDAR_DIM, calendar, time_encoding

__all__ = [
    "AIAAttention",
    "AIAConv",
    "CALENDAR_DIM",
    "Intensity",
    "KernelKMeans",
    "GATConv",
    "LinkEncoder",
    "NodeEncoder",
    "SAGEConv",
    "TrafficEncoder",
    "attention_scores",
    "calendar",
    "graph_cut_kernel",
    "softplus",
    "time_encoding",
]
