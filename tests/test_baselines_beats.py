"""Across the tasks: systems without a weight against simpler ones, and the defaults that make a row the paper's."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import easydgl_mini as em
from easydgl_mini.baselines import REGISTRY
from easydgl_mini.baselines.graph_wavenet import DILATIONS
from easydgl_mini.baselines.grec import DILATIONS as GAPS
from easydgl_mini.baselines.static import LAYERS, TITLES, StaticEncoder

# --- what needs no training still has to find what is there


def two_communities(steps=10, each=30, links=4, loyal=0.9, seed=0):
    """A graph that grows by ``each`` nodes a step; a node joins earlier ones, nine in ten of its own community.

    Features say nothing.
    """
    rng = np.random.default_rng(seed)
    step = np.repeat(np.arange(steps), each)
    side = rng.integers(0, 2, len(step))
    src, dst = [], []
    for node in range(each, len(step)):
        wanted = np.where(rng.random(links) < loyal, side[node], 1 - side[node])
        earlier = np.flatnonzero(step < step[node])
        src += [rng.choice(earlier[side[earlier] == w]) for w in wanted]
        dst += [node] * links
    graph = em.TemporalGraph(src, dst, len(step), times=step[dst] + 0.5)
    return SimpleNamespace(graph=graph, features=np.zeros((len(step), 1), np.float32), labels=side, step=step)


def test_label_propagation_finds_two_communities():
    """Margin: macro-F1 0.3 above the majority's, on steps whose labels it was not told."""
    data = two_communities()
    found = {}
    for name in ("label_propagation", "majority"):
        model = REGISTRY[name]("node", num_classes=2).fit(data, train_until=6, valid_until=7)
        found[name] = model.score(data, steps=(8, 9))["macro_f1"]
    assert found["label_propagation"] > found["majority"] + 0.3, found


def test_what_is_usual_wins_an_hour_ahead_and_the_last_reading_a_quarter():
    """Four weeks of freeway. Margin: mean absolute error at least 10 % below the other's, each at its own horizon."""
    world = em.simulate.freeway("small")
    usual, last = (REGISTRY[name]("traffic").fit(world).score(world) for name in ("historical_average", "last_value"))
    assert usual["mae@12"] < 0.9 * last["mae@12"] and last["mae@3"] < 0.9 * usual["mae@3"]
    assert abs(usual["mae@12"] / usual["mae@3"] - 1) < 0.05  # it does not look at the present


# --- defaults

DEFAULTS = {  # from the paper's supplement; # ours or the authors' where it gives none
    "link": {
        "gru4rec": {"num_layers": 2},
        "sasrec": {"num_layers": 2, "num_heads": 8},
        "grec": {"mask_rate": 0.2},
        "bert4rec": {"num_layers": 3, "num_heads": 8, "mask_rate": 0.2},
        "tgat": {"num_layers": 3, "num_heads": 1},
        "tisasrec": {"num_layers": 2, "num_heads": 8, "span": 256},  # span: the authors'
        "ctsma": {"num_layers": 2, "num_heads": 4, "causal": True},
        "easydgl": {"num_layers": 2, "num_heads": 2, "mask_rate": 0.2, "causal": False},
        "gat": {"num_heads": 4},
        "mrfcf": {"ridge": 1.0, "alpha": 0.75},  # the authors'
    },
    "node": {
        "gat": {"num_heads": 4},
        "evolvegcn": {"num_layers": 2},
        "tgat": {"num_layers": 3, "num_heads": 1},  # as for links
        "tgn": {"num_layers": 3, "num_heads": 5, "chunks": 5},
        "easydgl": {"num_heads": 2, "mask_rate": 0.2},
        "random_forest": {"trees": 50},  # Weber et al.'s
        "label_propagation": {"alpha": 0.9, "rounds": 50},  # ours
    },
    "traffic": {
        "gat": {"num_heads": 4, "window": 1},
        "dcrnn": {"num_layers": 1, "order": 2, "window": 12},
        "stgcn": {"order": 3, "window": 12},  # order: the authors'
        "stid": {"num_layers": 3, "window": 12, "lr": 2e-3, "dropout": 0.15},  # but the window: the authors'
        "graph_wavenet": {"order": 2, "place_dim": 10, "window": 12, "dropout": 0.3},  # the authors'
        "easydgl": {"num_heads": 8, "mask_rate": 0.2, "window": 1},
    },
}
EVERYWHERE = {"link": {"max_len": 30}, "node": {"dim": 32}, "traffic": {"dim": 32}}


@pytest.mark.parametrize("task", DEFAULTS)
def test_defaults_are_the_papers(task):
    for name, expected in DEFAULTS[task].items():
        estimator = REGISTRY[name](task)
        assert {key: getattr(estimator, key) for key in expected} == expected, name
    for name, entry in REGISTRY.items():
        if task in entry.tasks:
            estimator, expected = entry(task), EVERYWHERE[task]
            assert {key: getattr(estimator, key) for key in expected} == expected, name


def test_defaults_arrive_in_the_models():
    """A setting that is right and not used would be worse than none: count what was built."""
    build = lambda name, task, **sizes: REGISTRY[name](task)._build(**sizes)  # noqa: E731
    roads = {"num_nodes": 4, "num_edges": 5, "minutes": 5.0}
    assert build("gru4rec", "link", num_items=9).gru.num_layers == 2
    assert len(build("sasrec", "link", num_items=9).blocks) == len(build("tisasrec", "link", num_items=9).blocks) == 2
    bert = build("bert4rec", "link", num_items=9)
    assert len(bert.blocks) == 3 and {block.num_heads for block in bert.blocks} == {8}
    assert GAPS == (1, 2, 2, 4, 4, 8) and len(build("grec", "link", num_items=9).decoder) == 6
    for name, heads in (("tgat", 1), ("tgn", 5)):
        layers = build(name, "node", in_feats=3).layers
        assert [layer.heads[0] for layer in layers] == [heads] * 3
    assert build("tgn", "node", in_feats=3).memory.chunks == 5
    assert len(build("evolvegcn", "node", in_feats=3).weights) == 2
    dcrnn, stgcn = build("dcrnn", "traffic", **roads), build("stgcn", "traffic", **roads)
    assert [cell.gates.order for cell in (*dcrnn.encoder, *dcrnn.decoder)] == [2, 2]
    assert [(b.order, b.before.kernel, b.after.kernel) for b in stgcn.blocks] == [(3, 3, 3)] * 2
    wave, stid = build("graph_wavenet", "traffic", **roads), build("stid", "traffic", **roads)
    assert DILATIONS == (1, 2) * 4 and [layer.space.order for layer in wave.layers] == [2] * 8
    assert wave.sources.shape == wave.targets.shape == (4, 10) and len(stid.layers) == 3


def test_static_systems_have_the_supplements_layers():
    """One layer of two hops each; GraphSAGE two of one; GAT four heads; APPNP ten steps, back with a tenth."""
    encoders = {kind: StaticEncoder(kind, 3, 8) for kind in TITLES}
    assert {kind: len(encoder.layers) for kind, encoder in encoders.items()} == {
        kind: 2 if kind == "sage" else 1 for kind in TITLES
    }
    first = {kind: encoder.layers[0] for kind, encoder in encoders.items()}
    assert first["gat"].num_heads == 4 and first["gcn"].hops == first["chebynet"].hops == len(first["arma"].W) == 2
    assert (first["appnp"].steps, first["appnp"].alpha, len(first["arma"].V)) == (10, 0.1, 2)
    assert {kind for kind in TITLES if LAYERS[kind][2] is torch.tanh} == {"gat", "arma"}
