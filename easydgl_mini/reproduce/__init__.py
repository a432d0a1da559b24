"""A command per table of the paper, and the records it leaves behind (Part 5 of the book)."""

from .records import SEEDS, beside_paper, load_all, paper_figures, summary
from .run import reproduce

__all__ = ["SEEDS", "beside_paper", "load_all", "paper_figures", "reproduce", "summary"]
