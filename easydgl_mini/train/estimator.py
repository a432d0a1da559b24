"""What all estimators share: hyper-parameters that are fields, one loop, one file format."""

import dataclasses
import itertools
import zlib

import numpy as np
import torch

from ..data.files import whole_or_nothing
from .fit import FitConfig, Training, fit, read_state

LAYER = ("beta", "modulate", "endogenous")


def digest(arrays):
    """A checksum of arrays and their shapes, equal for equal ones."""
    found = 0
    for x in map(np.ascontiguousarray, arrays):
        found = zlib.crc32(f"{x.dtype}{x.shape}".encode(), found)
        found = zlib.crc32(x.reshape(-1).view(np.uint8), found)
    return found


@dataclasses.dataclass(kw_only=True, eq=False)
class Estimator(Training):
    """Base of everything that is fitted, ours and the baselines; the fields are the hyper-parameters.

    A subclass gives ``_model(**sizes)``, an ``nn.Module`` for data of these sizes.

    Parameters
    ----------
    dropout : float
        The paper searched 0.1 … 0.7; 0.1 is ours.
    """

    dropout: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        self.model_ = self.result_ = None
        self.sizes_, self.extra_ = {}, {}

    def _build(self, **sizes):
        """Make the model for data of these sizes, from the seed alone."""
        self.sizes_ = sizes
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            self.model_ = self._model(**sizes)
        return self.model_

    def _train(self, task, data, run, seen=()):
        """Train with this estimator's settings; ``run`` says how the run is kept (see :class:`FitConfig`).

        ``seen`` are arrays that tell one dataset from another: a run is taken up with the same settings and data only.
        """
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(Training)}
        about = None
        if run.get("checkpoint") is not None:
            own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in settings}
            about = {"model": type(self).__name__, "data": digest(seen)} | own
        self.result_ = fit(self.model_, task, data, FitConfig(**settings, **run, about=about))
        self.model_.eval()
        return self

    def _ready(self):
        if self.model_ is None:
            raise ValueError(f"this {type(self).__name__} has not been fitted; call fit or load first")
        return self.model_, next(itertools.chain(self.model_.parameters(), self.model_.buffers())).device

    def save(self, path):
        """Write everything :meth:`load` needs to one file, in one step."""
        self._ready()
        params = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        state = {name: tensor.cpu() for name, tensor in self.model_.state_dict().items()}
        parts = {"class": type(self).__name__, "params": params, "sizes": self.sizes_, "extra": self.extra_}
        with whole_or_nothing(path) as file:
            torch.save(parts | {"state": state}, file)

    @classmethod
    def load(cls, path):
        """The estimator that was saved to ``path``, ready to predict (on the CPU)."""
        parts = read_state(path)
        if parts.get("class") != cls.__name__:
            raise ValueError(f"path holds a {parts.get('class')}, expected a {cls.__name__}: {path}")
        new = cls(**parts["params"])
        new._build(**parts["sizes"]).load_state_dict(parts["state"])
        new.extra_ = parts["extra"]
        new.model_.eval()
        return new


@dataclasses.dataclass(kw_only=True, eq=False)
class Modulated:
    """What makes an estimator EasyDGL's: masking, TPPLE, clusters and the layer's switches; mixed into the three tasks.

    Parameters
    ----------
    mask_rate : float
        Share of what is hidden in training; the paper's 0.2.
    gamma : float
        Weight of TPPLE; the paper searched 1e-7 … 1e-3, 1e-4 is ours. 0 leaves it out.
    num_clusters : int
        K; the paper is silent, 8 is ours.
    attention : {"sa", "gat", "gatv2"}
        How keys are scored.
    beta, modulate, endogenous
        Switches of :class:`easydgl_mini.encode.AIAConv`, for ablations.
    """

    mask_rate: float = 0.2
    gamma: float = 1e-4
    num_clusters: int = 8
    attention: str = "sa"
    beta: float = 1.0
    modulate: bool = True
    endogenous: bool = True

    def _layer(self):
        """The layer's switches, as the encoders take them."""
        return {"score": self.attention} | {name: getattr(self, name) for name in LAYER}
