"""The link predictors the paper compares with: each has a property that only the right implementation has."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import easydgl_mini as em
from easydgl_mini.baselines import REGISTRY, gsimc
from easydgl_mini.baselines.blocks import Block, allow
from easydgl_mini.baselines.closed import signals
from easydgl_mini.baselines.grec import DilatedConv
from easydgl_mini.baselines.gsimc import BGSIMC, GSIMC, KERNELS, waves
from easydgl_mini.baselines.mrfcf import MRFCF, Covariance, neighbourhoods, precision_weights, sparse_weights
from easydgl_mini.baselines.tgat import TemporalAttention
from easydgl_mini.baselines.tgat_node import TemporalConv
from easydgl_mini.baselines.tisasrec import intervals
from easydgl_mini.encode.models import places
from easydgl_mini.events import Histories
from easydgl_mini.train import LinkPredictor, Recommender
from easydgl_mini.train.link import RankingTask, Windows, ask, before, log_popularity, windows

CAUSAL = ("sasrec", "gru4rec", "tisasrec", "tgat")
MASKED = ("bert4rec", "grec")
TRAINED = (*CAUSAL, *MASKED, "ctsma")
CLOSED = ("popularity", "mrfcf", "gsimc", "bgsimc")
SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2, "max_len": 8}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny():
    return em.simulate.bazaar("tiny").events


@pytest.fixture(scope="module")
def small():
    return em.simulate.bazaar("small").events.split_users((70, 5, 25))


def model_of(name, **more):
    """A fresh model for 20 items, in float64, with its weights shaken so that nothing is zero by chance."""
    estimator = REGISTRY[name]("link", **(SMALL | more))
    sizes = {"num_items": 20} | ({"num_clusters": 3} if name == "ctsma" else {})
    model = estimator._build(**sizes).double().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        if name == "ctsma":
            model.encoder.item_clusters.copy_(torch.arange(20) % 3)
    return model


def history(seed=0, padding=0, length=8):
    draw = np.random.default_rng(seed)
    time = np.cumsum(draw.integers(1, 9, (2, length)), 1).astype(float)
    rows = [torch.from_numpy(x) for x in (draw.integers(0, 20, (2, length)), time, np.diff(time, prepend=0.0))]
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[:, :padding] = False
    item, time, gap = torch.where(mask, rows[0], -1), torch.where(mask, rows[1], 0), torch.where(mask, rows[2], 0)
    return Histories(torch.arange(2), item, time, gap, mask)


def changed(rows, **columns):
    """Rows with some of their fields' entries replaced: ``item=(j, value)``."""
    new = {name: getattr(rows, name).clone() for name in columns}
    for name, (j, value) in columns.items():
        new[name][:, j] = value
    return dataclasses.replace(rows, **new)


def embed(model, rows, hidden=None):
    with torch.no_grad():
        return model(rows, torch.zeros_like(rows.mask) if hidden is None else hidden)


def moved(a, b):
    """Which positions (T,) differ."""
    return ((a - b).abs() > 1e-9).any(-1).any(0)


# --- what goes in


def test_every_link_row_of_the_registry_is_a_recommender():
    for name in (*TRAINED, *CLOSED, "easydgl"):
        estimator = REGISTRY[name]("link")
        assert isinstance(estimator, Recommender) and estimator.max_len == 30 and estimator.dim == 64
    papers = {"sasrec": (2, 8), "bert4rec": (3, 8), "tisasrec": (2, 8), "tgat": (3, 1), "ctsma": (2, 4)}
    for name, (layers, heads) in papers.items():
        estimator = REGISTRY[name]("link")
        assert (estimator.num_layers, estimator.num_heads) == (layers, heads)
    assert REGISTRY["bert4rec"]("link").mask_rate == REGISTRY["grec"]("link").mask_rate == 0.2


def test_windows_hold_no_more_than_the_log(tiny):
    pieces = Windows(tiny, 30)
    assert pieces.log is tiny
    numbers = sum(getattr(pieces, name).size for name in ("user", "start", "end"))
    assert numbers <= 3 * (len(tiny.users) + len(tiny) / 30)
    rows, whole = pieces.take(torch.tensor([5, 2])), windows(tiny, 30)
    for name in ("user", "item", "time", "gap", "mask"):
        assert torch.equal(getattr(rows, name), getattr(whole, name)[[5, 2]])


def test_the_last_window_is_the_users_history(tiny):
    rows = Windows(tiny, 7, 2.0, "last", alone=True).take(torch.arange(len(tiny.users)))
    expected = tiny.histories(7, 2.0)
    for name in ("user", "item", "time", "gap", "mask"):
        assert torch.equal(getattr(rows, name), getattr(expected, name)), name


def test_last_windows_teach_only_with_two_events():
    log = em.EventLog(user=[0, 1, 1, 1, 2, 2], item=[0, 1, 2, 3, 0, 1], time=[0.0, 0.0, 1.0, 2.0, 0.0, 3.0])
    pieces = Windows(log, 2, sampling="last")
    rows = pieces.take(torch.arange(len(pieces)), seed=1, epoch=5)
    assert rows.item.tolist() == [[2, 3], [0, 1]] and pieces.key([0, 1]).tolist() == [1, 2]
    assert Windows(log, 2, sampling="last", alone=True).take([0, 1, 2]).item.tolist() == [[-1, 0], [2, 3], [0, 1]]


def test_random_windows_are_consecutive_events_and_depend_on_seed_epoch_and_user_alone(tiny):
    pieces = Windows(tiny, 6, sampling="random")
    ids = torch.arange(len(pieces))
    rows = pieces.take(ids, seed=3, epoch=4)
    for n in range(len(pieces)):
        mine = slice(tiny.offsets[pieces.user[n]], tiny.offsets[pieces.user[n] + 1])
        item, real = tiny.item[mine], rows.item[n][rows.mask[n]].numpy()
        assert len(real) == min(len(item), 6)  # short histories whole
        assert any(np.array_equal(item[k : k + len(real)], real) for k in range(len(item) - len(real) + 1))
    some = tiny.select(np.isin(tiny.user, tiny.users[::3]))  # other users, other order, other batches: the same draw
    fewer = Windows(some, 6, sampling="random")
    again = fewer.take(torch.arange(len(fewer)).flip(0), seed=3, epoch=4)
    where = {int(u): n for n, u in enumerate(rows.user)}
    assert all(torch.equal(again.item[n], rows.item[where[int(u)]]) for n, u in enumerate(again.user))
    for seed, epoch in ((3, 5), (2, 4)):
        assert (pieces.take(ids, seed, epoch).item != rows.item).any(1).double().mean() > 0.5
    keys = pieces.key(torch.tensor([4, 1]))
    assert keys.tolist() == [int(pieces.user[4]), int(pieces.user[1])]


def test_every_random_window_has_the_same_chance():
    log = em.EventLog([7] * 10 + [9] * 3, list(range(10)) + [0, 1, 2], list(range(10)) + [0, 1, 2])
    pieces = Windows(log, 4, sampling="random")
    first = [int(pieces.take(torch.tensor([0]), seed, epoch).item[0, 0]) for seed in range(5) for epoch in range(700)]
    counts = np.bincount(first, minlength=7)
    assert len(counts) == 7  # starts 0 … 6
    assert ((counts - 500) ** 2 / 500).sum() < 22.5  # chi-squared, 6 degrees of freedom, 0.1 %
    assert pieces.take(torch.tensor([1]), 0, 0).item.tolist() == [[-1, 0, 1, 2]]


def test_random_sampling_depends_on_seed_epoch_and_user_alone(tiny):
    settings = {"dim": 8, "epochs": 2, "max_len": 6, "sampling": "random", "dropout": 0.0, "num_clusters": 2}
    one, two = (LinkPredictor(**settings).fit(tiny) for _ in range(2))
    assert one.result_.history == two.result_.history
    model, pieces = one.model_, Windows(tiny, 6, 1.0, "random")
    both = [one._task().rows(model, pieces, ids, 5, 3) for ids in (torch.arange(9), torch.tensor([7, 2]))]
    (rows, hidden), (some, also) = both  # in a batch of nine, and of two in another order
    assert torch.equal(rows.item[[7, 2]], some.item) and torch.equal(hidden[[7, 2]], also)
    other = pieces.take(torch.arange(9), 5, 4)
    assert not torch.equal(rows.time, other.time)
    assert LinkPredictor(**(settings | {"sampling": "all"})).fit(tiny).result_.history != one.result_.history
    with pytest.raises(ValueError, match="sampling must be one of all, random, last, got 'some'"):
        LinkPredictor(sampling="some")


@pytest.mark.parametrize("name", [*TRAINED, "easydgl"])
def test_cutting_padding_leaves_the_loss_and_its_gradient(name):
    """Batches by length change which histories meet, and nothing else: in one batch, nothing."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(6), [2, 3, 5, 2, 4, 3])
    log = em.EventLog(user, rng.integers(0, 20, len(user)), rng.random(len(user)).cumsum(), num_users=6, num_items=20)
    found = []
    for by_length in (False, True):
        own = {"mask_rate": 0.5} if "mask_rate" in vars(REGISTRY[name]("link")) else {}
        estimator = REGISTRY[name](
            "link", **SMALL | own | {"dropout": 0.0, "sampling": "random", "by_length": by_length}
        )
        torch.manual_seed(0)
        own = {"num_clusters": 3} if name in ("ctsma", "easydgl") else {}
        model, task = estimator._build(num_items=20, **own).double(), estimator._task()
        pieces = Windows(log, 8, sampling="random")
        rows, asked = task.rows(model, pieces, torch.arange(6), 3, 1)
        assert rows.item.shape == asked.shape == ((6, 5) if by_length else (6, 8))
        parts = task.loss(model, pieces, torch.arange(6), 3, 1)
        sum(weight * parts[key][0] / parts[key][1] for key, weight in task.terms.items()).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append(({key: (float(s.detach()), int(c)) for key, (s, c) in parts.items()}, grads))
        assert (task.lengths(pieces) is not None) == by_length
    (one, some), (two, others) = found
    assert one.keys() == two.keys() and all(one[key] == pytest.approx(two[key], rel=1e-9) for key in one)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(some, others, strict=True))


def test_lengths_are_those_of_the_windows(tiny):
    for sampling in ("all", "random"):
        pieces = Windows(tiny, 6, sampling=sampling)
        assert torch.equal(pieces.lengths, pieces.take(torch.arange(len(pieces)), 1, 1).mask.sum(1)), sampling


def test_the_causal_loss_is_on_every_event_with_one_before_it(tiny):
    estimator = REGISTRY["gru4rec"]("link", dim=8, max_len=5)
    model, pieces = estimator._build(num_items=tiny.num_items), Windows(tiny, 5)
    task, ids = RankingTask(estimator), torch.arange(11)
    total, count = task.loss(model.eval(), pieces, ids, 0, 0)["loss"]
    rows, by_hand, n = pieces.take(ids), 0.0, 0
    with torch.no_grad():
        log_p = model.scores(model(rows, None)).log_softmax(-1)
    for b in range(len(ids)):
        for j in range(1, 5):
            if rows.mask[b, j - 1]:
                by_hand, n = by_hand - log_p[b, j, rows.item[b, j]].item(), n + 1
    assert count == n == (rows.mask.sum(1) - 1).sum() and total.item() == pytest.approx(by_hand, rel=1e-5)


def test_names_start_at_the_items_popularity(tiny):
    shares = (np.bincount(tiny.item, minlength=tiny.num_items) + 1.0) / (len(tiny) + tiny.num_items)
    np.testing.assert_allclose(log_popularity(tiny).exp(), shares)
    estimator = REGISTRY["sasrec"]("link", **SMALL)
    estimator._start(tiny)
    np.testing.assert_allclose(estimator.model_.bias.detach().exp(), shares, rtol=1e-5)


def test_small_helpers_by_hand():
    x = torch.tensor([[3, 4, 5]])
    assert before(x, -1).tolist() == [[-1, 3, 4]]
    assert places(5, 3).tolist() == [2, 2, 2, 1, 0]  # the last is 0, the oldest share a place
    rows = ask(em.EventLog([0, 0], [6, 2], [1.0, 4.0]).histories(3), torch.tensor([9.0], dtype=torch.float64))
    assert rows.item.tolist() == [[-1, 6, 2, -1]] and rows.time.tolist() == [[0, 1, 4, 9]]
    assert rows.gap.tolist() == [[0, 0, 3, 5]] and rows.mask.tolist() == [[False, True, True, True]]


# --- causal models


@pytest.mark.parametrize("name", CAUSAL)
def test_an_item_names_later_ones_only(name):
    model, rows = model_of(name), history()
    h = embed(model, rows)
    for j in range(7):
        after = moved(h, embed(model, changed(rows, item=(j, 19))))
        assert not after[: j + 1].any() and after[j + 1], (name, j)
    hidden = torch.zeros_like(rows.mask)
    hidden[:, 3] = True
    assert not moved(h, embed(model, rows, hidden)).any()  # hiding means nothing to them


@pytest.mark.parametrize("name", [*CAUSAL, "ctsma"])
def test_no_position_hears_of_later_times(name):
    model, rows = model_of(name), history()
    h = embed(model, rows)
    later = changed(rows, time=(slice(5, None), rows.time[:, 5:] + 11), gap=(5, rows.gap[:, 5] + 11))
    assert not moved(h, embed(model, later))[:5].any()


def test_ctsma_is_causal_for_what_it_is_told():
    model, rows, hidden = model_of("ctsma"), history(), torch.zeros(2, 8, dtype=torch.bool)
    hidden[:, 2] = hidden[:, 5] = True
    h = embed(model, rows, hidden)
    for j in range(8):
        after = moved(h, embed(model, changed(rows, item=(j, 19)), hidden))
        assert not after[:j].any() and after[j] == (j not in (2, 5)), j
    assert REGISTRY["ctsma"]("link").causal and not REGISTRY["easydgl"]("link").causal


@pytest.mark.parametrize("name", [*CAUSAL, *MASKED, "ctsma"])
def test_padding_does_not_matter(name):
    model, rows = model_of(name), history(padding=3)
    hidden = torch.zeros_like(rows.mask)
    hidden[:, 6] = True
    short = Histories(rows.user, *(getattr(rows, k)[:, 3:] for k in ("item", "time", "gap", "mask")))
    torch.testing.assert_close(embed(model, rows, hidden)[:, 3:], embed(model, short, hidden[:, 3:]))


@pytest.mark.parametrize("name", ["sasrec", "gru4rec", "bert4rec", "grec", "tisasrec"])
def test_the_order_of_items_matters(name):
    model, rows = model_of(name), history()
    swapped = changed(rows, item=([1, 2], rows.item[:, [2, 1]]))
    hidden = torch.zeros_like(rows.mask)
    hidden[:, -1] = True
    assert moved(embed(model, rows, hidden), embed(model, swapped, hidden))[-1]


def test_gru4rec_is_torchs_gru_step_by_step():
    """Row by row and item by item, from its weights; padding is not even looked at."""
    model, rows = model_of("gru4rec"), history(padding=2)
    h, gru = embed(model, rows), model.gru
    sigma = torch.sigmoid
    with torch.no_grad():
        for b in range(2):
            state = [torch.zeros(16, dtype=torch.float64)] * 2
            for j in range(2, 8):
                x = model.items.weight[rows.item[b, j - 1]] * 4.0 if j > 2 else torch.zeros(16, dtype=torch.float64)
                for n in range(2):
                    ih, hh = getattr(gru, f"weight_ih_l{n}"), getattr(gru, f"weight_hh_l{n}")
                    a, c = ih @ x + getattr(gru, f"bias_ih_l{n}"), hh @ state[n] + getattr(gru, f"bias_hh_l{n}")
                    r, z = sigma(a[:16] + c[:16]), sigma(a[16:32] + c[16:32])
                    x = (1 - z) * torch.tanh(a[32:] + r * c[32:]) + z * state[n]
                    state[n] = x
                torch.testing.assert_close(h[b, j], x)


def test_sasrec_by_hand():
    """One block, one head, the query's row computed with loops."""
    model, rows = model_of("sasrec", num_layers=1, num_heads=1), history(length=4)
    h, block = embed(model, rows), model.blocks[0]
    with torch.no_grad():
        for b in range(2):
            x = []
            for j in range(4):
                item = model.items.weight[rows.item[b, j - 1]] * 4.0 if j else torch.zeros(16, dtype=torch.float64)
                x.append(item + model.places.weight[3 - j])
            x = torch.stack(x)
            q, k, v = block.qkv(block.norms[0](x)).chunk(3, -1)
            e = torch.stack([q[3] @ k[i] / 4.0 for i in (1, 2, 3)])  # the first position has no item: it is no key
            y = x[3] + block.out(sum(w * v[i] for w, i in zip(e.softmax(0), (1, 2, 3), strict=True)))
            y = y + block.mixer(block.norms[1](y))
            torch.testing.assert_close(h[b, 3], model.norm(y))


# --- gap filling


@pytest.mark.parametrize("name", MASKED)
def test_a_hidden_item_does_not_name_itself(name):
    model, rows, hidden = model_of(name), history(), torch.zeros(2, 8, dtype=torch.bool)
    hidden[:, 3] = hidden[:, 6] = True
    h = embed(model, rows, hidden)
    for j in range(8):
        after = moved(h, embed(model, changed(rows, item=(j, 19)), hidden))
        if name == "bert4rec":
            assert after.any() == (j not in (3, 6)) and (after.all() or not after.any())
        elif j in (3, 6):  # the decoder knows what came before, hidden from the encoder or not
            assert not after[: j + 1].any() and (j == 6 or after[j + 1])
        else:  # told items are heard on both sides
            assert after[j] and after[j + 1 :].all() and after[:j].any() == (j > 0)


def test_grec_reaches_as_far_as_its_dilations():
    """Three taps 1, 2, 2, 4, 4, 8 apart: 21 positions to each side, not one more."""
    model = model_of("grec", max_len=60)
    rows = history(length=60)
    x = torch.zeros(2, 60, 16, dtype=torch.float64)
    for layers, past, future in ((model.encoder, 21, 21), (model.decoder, 42, 0)):
        y, bumped = x, x.clone()
        bumped[:, 25 if future else 5] += 1.0
        with torch.no_grad():
            for layer in layers:
                y, bumped = layer(y, rows.mask), layer(bumped, rows.mask)
        where = moved(y, bumped).nonzero()[:, 0]
        start = 25 if future else 5
        assert (where.min(), where.max()) == (start - future, start + past)


def test_bert4rec_is_torchs_encoder_given_its_weights():
    model, rows, hidden = model_of("bert4rec"), history(padding=2), torch.zeros(2, 8, dtype=torch.bool)
    hidden[:, 4] = True
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "dtype": torch.float64}
    with torch.no_grad():
        x = torch.where(hidden[..., None], model.token, model.items(rows.item.clamp_min(0)))
        x = model.norm(x + model.places.weight.flip(0))
        for block in model.blocks:
            layer = torch.nn.TransformerEncoderLayer(16, 2, 64, **settings).eval()
            layer.self_attn.in_proj_weight.copy_(block.qkv.weight)
            layer.self_attn.in_proj_bias.copy_(block.qkv.bias)
            for ours, theirs in (
                (block.out, layer.self_attn.out_proj),
                (block.mixer[0], layer.linear1),
                (block.mixer[2], layer.linear2),
                (block.norms[0], layer.norm1),
                (block.norms[1], layer.norm2),
            ):
                theirs.load_state_dict(ours.state_dict())
            x = layer(x, src_key_padding_mask=~rows.mask)
    torch.testing.assert_close(embed(model, rows, hidden)[:, 2:], x[:, 2:])
    W, b, norm = *model.head[0].parameters(), model.head[2]
    named = F.layer_norm(F.gelu(x @ W.t() + b), (16,), norm.weight, norm.bias)
    torch.testing.assert_close(model.scores(x), named @ model.items.weight.t() + model.bias)


@pytest.mark.parametrize("name", MASKED)
def test_masked_models_are_asked_with_the_token_at_the_end_and_nowhere_else(name, tiny, monkeypatch):
    model, asked = REGISTRY[name]("link", dim=8, epochs=1, max_len=6, num_heads=2).fit(tiny), []
    forward = type(model.model_).forward

    def listen(self, rows, hidden):
        asked.append(hidden.clone())
        return forward(self, rows, hidden)

    monkeypatch.setattr(type(model.model_), "forward", listen)
    model.predict(([1, 2, 3], [0.0, 1.0, 2.0]), at=3.0)
    (hidden,) = asked
    assert hidden[:, -1].all() and not hidden[:, :-1].any()


# --- clocks


def test_tisasrec_counts_in_the_users_own_intervals():
    time = torch.tensor([[0.0, 5.0, 5.0, 9.0, 11.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True, True, True, True]])
    expected = [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [3, 3, 1, 0]]  # shortest so far: none, none, 4, 2
    assert intervals(time, mask, 9)[0, 1:, 1:].tolist() == expected
    assert intervals(time, mask, 2)[0, 4].tolist() == [0, 2, 2, 1, 0]  # clipped; padding has no time
    third = torch.tensor([[0.0, 0.1, 0.3]], dtype=torch.float64)  # 0.3 / 0.1 is a little less than 3
    assert intervals(third, torch.ones(1, 3, dtype=torch.bool), 9)[0, 2].tolist() == [3, 2, 0]


def test_tisasrec_knows_intervals_not_times():
    model, rows = model_of("tisasrec"), history()
    h = embed(model, rows)
    assert not moved(h, embed(model, dataclasses.replace(rows, time=rows.time + 977.0))).any()
    for unit in (8, 1 / 60, 1 / 7):  # their own unit, in any rounding
        assert not moved(h, embed(model, dataclasses.replace(rows, time=rows.time * unit))).any()
    later = changed(rows, time=(slice(4, None), rows.time[:, 4:] + 10 * rows.gap.max()))
    after = moved(h, embed(model, later))  # position 5 is the first whose items are on both sides of the gap
    assert not after[:5].any() and after[5:].all()
    assert not moved(h, embed(model, changed(rows, time=(7, rows.time[:, 7] + 50)))).any()  # when it is asked


def test_tisasrec_attention_with_loops():
    model, rows = model_of("tisasrec", num_layers=1, num_heads=1), history(length=4)
    block, r = model.blocks[0], intervals(before(rows.time, 0.0), before(rows.mask, False), 256)
    h = embed(model, rows)
    with torch.no_grad():
        for b in range(2):
            x = torch.stack([model.embed(before(rows.item, -1))[b, j] for j in range(4)])
            y = block.norms[0](x)
            k, v = block.keys(y).chunk(2, -1)
            place, span = (table.weight.chunk(2, -1) for table in (model.places, model.spans))
            q = block.query(y[3])
            e = [q @ (k[i] + place[0][3 - i] + span[0][r[b, 3, i]]) / 4.0 for i in (1, 2, 3)]
            e = torch.stack(e).softmax(0)
            z = sum(w * (v[i] + place[1][3 - i] + span[1][r[b, 3, i]]) for w, i in zip(e, (1, 2, 3), strict=True))
            z = x[3] + z
            torch.testing.assert_close(h[b, 3], model.norm(z + block.mixer(block.norms[1](z))))


def test_tgat_on_sequences_is_tgat_on_graphs():
    """Sums of products of waves against the encoding of every single age, on the graph of what is allowed."""
    torch.manual_seed(0)
    dense, conv = TemporalAttention(6, 2).double().eval(), TemporalConv(6, 2).double().eval()
    conv.load_state_dict(dense.state_dict())
    with torch.no_grad():
        dense.clock.phase += torch.randn(6)
        conv.clock.phase.copy_(dense.clock.phase)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 6, generator=draw, dtype=torch.float64)
    time = torch.tensor([[0.0, 2.0, 2.5, 7.0, 30.0]], dtype=torch.float64)
    allowed = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    allowed[3, 1] = False
    dst, src = allowed.nonzero().T
    with torch.no_grad():
        h = dense(x, time, x, time, allowed.unsqueeze(0))[0]
        expected = conv(em.TemporalGraph(src, dst, 5), x[0], time[0, dst] - time[0, src])
    torch.testing.assert_close(h, expected)


def test_tgat_knows_ages_not_times():
    model, rows = model_of("tgat"), history()
    h = embed(model, rows)
    torch.testing.assert_close(embed(model, dataclasses.replace(rows, time=rows.time + 977.0)), h)
    later = changed(rows, time=(7, rows.time[:, 7] + 5))
    after = moved(h, embed(model, later))
    assert after[7] and not after[:7].any()  # asked later, answered differently


@pytest.mark.parametrize("name", ["tgat", "ctsma"])
def test_continuous_time_models_answer_by_the_time_asked(name, tiny):
    model = REGISTRY[name]("link", dim=8, epochs=1, max_len=6).fit(tiny)
    now, later = (model.predict(([3, 5], [0.0, 2.0]), at=t) for t in (3.0, 40.0))
    assert (now - later).abs().max() > 1e-5


# --- closed forms


def some_log(users=60, items=12, seed=0):
    draw = np.random.default_rng(seed)
    taste = draw.random((users, 3)) ** 4 @ draw.random((3, items)) ** 3
    user, item = np.nonzero(draw.random((users, items)) < np.clip(taste, 0.05, 0.9))
    return em.EventLog(user, item, draw.random(len(user)), users, items)


def test_popularity_counts():
    log = some_log()
    model = REGISTRY["popularity"]("link").fit(log)
    counts = np.bincount(log.item, minlength=12)
    scores = model.predict(([0, 3], [0.0, 1.0]), at=1.0)
    assert np.array_equal(np.argsort(-scores.numpy(), kind="stable"), np.argsort(-counts, kind="stable"))
    again = em.EventLog([0, 0, 0, 1], [2, 2, 2, 1], [0.0, 1.0, 2.0, 0.0], 2, 3)  # events, not users
    shares = REGISTRY["popularity"]("link").fit(again).predict(([0], [0.0]), at=1.0).exp()
    torch.testing.assert_close(shares, torch.tensor([1.0, 2.0, 4.0]) / 7)  # one more of each


def test_mrfcf_columns_are_ridge_regressions_on_all_others():
    R = signals(some_log()).toarray()
    model = MRFCF(ridge=0.3, alpha=0.6).fit(some_log())
    centred = R - R.mean(0)
    B, scale = model.weights().toarray(), np.linalg.norm(centred, axis=0) ** 0.6
    Z = centred / scale
    assert np.all(np.diag(B) == 0)
    for j in range(12):
        rest = np.arange(12) != j
        S = Z.T @ Z  # products, not means over users: λ is on the scale of counts, as in the original
        by_hand = np.linalg.solve(S[np.ix_(rest, rest)] + 0.3 * np.eye(11), S[rest, j])
        np.testing.assert_allclose(B[rest, j], by_hand / scale[rest] * scale[j], rtol=1e-4, atol=1e-6)
    y = np.zeros(12)
    y[[2, 7]] = 1.0
    scores = model.predict(([2, 7], [0.0, 1.0]), at=1.0)
    np.testing.assert_allclose(scores, y @ B, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block", [512, 5])
def test_mrfcf_on_neighbourhoods_is_the_regression_on_neighbours(block, monkeypatch):
    monkeypatch.setattr("easydgl_mini.baselines.mrfcf.COLUMNS", block)
    R = signals(some_log())
    S = Covariance(R, 0.75)
    full = S[np.arange(12)]
    products = R.shape[0] * np.cov(R.toarray().T, bias=True)
    np.testing.assert_allclose(S.scale, np.diag(products) ** 0.375, atol=1e-12)
    np.testing.assert_allclose(full, products / np.outer(S.scale, S.scale), atol=1e-12)
    np.testing.assert_allclose(S.among([4, 1]), full[np.ix_([4, 1], [4, 1])], atol=1e-12)
    ids = neighbourhoods(S, 5, 12)
    for i in range(12):
        order = sorted(range(12), key=lambda j: -np.inf if j == i else -abs(full[i, j]))  # noqa: B023
        assert ids[i].tolist() == order[:5]
    B = sparse_weights(S, ids, 0.3, share=0.0).toarray()
    for j in range(12):
        near = ids[j, 1:]
        by_hand = np.linalg.solve(full[np.ix_(near, near)] + 0.3 * np.eye(4), full[near, j])
        np.testing.assert_allclose(B[near, j], by_hand, rtol=1e-8)
        assert np.count_nonzero(B[:, j]) == 4
    shared = sparse_weights(S, ids, 0.3, share=0.6).toarray()
    centre = ids[0, :3]  # one inversion serves the first centre and its two nearest
    np.testing.assert_allclose(
        shared[np.ix_(ids[0], centre)], precision_weights(full[np.ix_(ids[0], ids[0])], 0.3)[:, :3], atol=1e-12
    )
    assert (shared != 0).any(0).all() and np.all(np.diag(shared) == 0)
    whole = sparse_weights(S, neighbourhoods(S, 12, 12), 0.3, share=0.5).toarray()
    np.testing.assert_allclose(whole, precision_weights(full, 0.3), atol=1e-10)  # everybody is everybody's neighbour


def test_mrfcf_fits_on_neighbourhoods():
    """The estimator's way to the sparse weights: its ridge, its neighbours, and the scales put back."""
    log = some_log()
    S = Covariance(signals(log), 0.75)
    full, ids = S[np.arange(12)], neighbourhoods(S, 5, 12)
    B = MRFCF(ridge=0.3, neighbours=5, share=0.0).fit(log).weights().toarray()
    for j in range(12):
        near = ids[j, 1:]
        by_hand = np.linalg.solve(full[np.ix_(near, near)] + 0.3 * np.eye(4), full[near, j])
        np.testing.assert_allclose(B[near, j], by_hand * S.scale[j] / S.scale[near], rtol=1e-4, atol=1e-6)
        assert np.count_nonzero(B[:, j]) == 4


def dense_laplacian(R):
    users, items = R.sum(1), R.sum(0)
    return np.eye(R.shape[1]) - (R / users[:, None]).T @ R / np.sqrt(np.outer(items, items))


@pytest.mark.parametrize("count", [4, 12])
def test_waves_are_eigenvectors_of_the_hypergraph_laplacian(count):
    R = signals(some_log())
    values, vectors = waves(R, count)
    L = dense_laplacian(R.toarray())
    np.testing.assert_allclose(values, np.linalg.eigvalsh(L)[:count], atol=1e-10)
    np.testing.assert_allclose(L @ vectors, vectors * values, atol=1e-9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-9)
    assert abs(values[0]) < 1e-12


FUNCTIONS = {
    "diffusion": lambda L, c: _expm(L * c / 2),
    "random_walk": lambda L, c: np.linalg.inv(c * np.eye(len(L)) - L),
    "inverse_cosine": lambda L, c: np.linalg.inv(_cosm(L * np.pi / 4)),
}


def _expm(A):
    from scipy.linalg import expm

    return expm(A)


def _cosm(A):
    from scipy.linalg import cosm

    return cosm(A)


@pytest.mark.parametrize("kernel", sorted(FUNCTIONS))
def test_gsimc_minimises_its_objective(kernel):
    """All frequencies: (R(L) + φ) y = φ s, with R(L) a function of the matrix, solved without any eigenvector."""
    log = some_log()
    R, s = signals(log).toarray(), np.zeros(12)
    s[[1, 5, 6]] = 1.0
    root = np.sqrt(R.sum(0))
    model = GSIMC(kernel=kernel, num_waves=12, strength=2.5, trust=0.7).fit(log)
    penalty = FUNCTIONS[kernel](dense_laplacian(R), 2.5)
    by_hand = root * np.linalg.solve(penalty + 0.7 * np.eye(12), 0.7 * s / root)
    np.testing.assert_allclose(model.predict(([1, 5, 6], [0.0, 1, 2]), at=2.0), by_hand, rtol=1e-4, atol=1e-6)
    h = model._filter()
    assert (np.diff(h) <= 1e-12).all() and h[0] > h[-1]  # low frequencies pass


def test_gsimc_recovers_bandlimited_signals():
    log = some_log()
    model = GSIMC(kernel="bandlimited", num_waves=5).fit(log)
    values, vectors = waves(signals(log), 5)
    root = np.sqrt(signals(log).toarray().sum(0))
    smooth = (np.random.default_rng(0).standard_normal((3, 5)) @ vectors.T) * root
    from scipy.sparse import csr_array

    np.testing.assert_allclose(model._recover(csr_array(smooth)), smooth, atol=1e-10)
    rough = np.random.default_rng(1).standard_normal((3, 12))
    once = model._recover(csr_array(rough))
    np.testing.assert_allclose(model._recover(csr_array(once)), once, atol=1e-10)  # a projection …
    assert np.abs(once - rough).max() > 0.1  # … that does remove something
    assert set(KERNELS) == {"bandlimited", "diffusion", "random_walk", "inverse_cosine"}


@pytest.mark.parametrize("scale", [0.5, 0.25, 0.0])
def test_bgsimc_without_news_is_gsimc(scale):
    log, asked = some_log(), ([4, 2, 9, 1], [0.0, 1.0, 2.0, 3.0])
    plain = GSIMC(num_waves=6, scale=scale).fit(log).predict(asked, at=3.0)
    torch.testing.assert_close(BGSIMC(num_waves=6, arrivals=0, scale=scale).fit(log).predict(asked, at=3.0), plain)
    deaf = BGSIMC(num_waves=6, arrivals=3, noise=1e12, scale=scale).fit(log)
    torch.testing.assert_close(deaf.predict(asked, at=3.0), plain)  # what arrives is still counted, as GSIMC does
    last = BGSIMC(num_waves=6, arrivals=3, noise=0.0, scale=scale).fit(log).predict(asked, at=3.0)
    band = GSIMC(kernel="bandlimited", num_waves=6, scale=scale).fit(log)
    torch.testing.assert_close(last, band.predict(([1], [3.0]), at=3.0))  # without noise only the last item counts


def test_bgsimc_is_the_posterior_mean_of_its_gaussian_model():
    """All states and measurements jointly Gaussian; condition by the textbook formula instead of filtering."""
    log, items = some_log(), [4, 2, 9]
    model = BGSIMC(num_waves=6, arrivals=2, drift=0.2, noise=0.5).fit(log)
    values, root = model.model_.values.numpy(), np.sqrt(signals(log).toarray().sum(0))
    vectors = model.model_.vectors.numpy()
    z = vectors[items] / root[items, None]
    H = model._filter()
    P0 = 1 / (KERNELS["inverse_cosine"](values, 2.0) + 10.0)
    mean = np.empty(6)
    for f in range(6):
        m = np.array([H[f] * (z[0, f] + z[1, f]), H[f] * z[:, f].sum()])  # states after one and after two arrivals
        C = np.array([[P0[f] + 0.2, P0[f] + 0.2], [P0[f] + 0.2, P0[f] + 0.4]])
        mean[f] = m[1] + C[1] @ np.linalg.solve(C + 0.5 * np.eye(2), z[1:, f] - m)
    # the prediction of the second step adds H z to the *filtered* state; conditioning is linear, so both agree
    scores = model.predict((items, [0.0, 1.0, 2.0]), at=2.0)
    np.testing.assert_allclose(scores, (vectors @ mean) * root, rtol=1e-4, atol=1e-6)


def test_bgsimc_users_do_not_mix():
    log = some_log()
    model = BGSIMC(num_waves=6, arrivals=4).fit(log)
    together = model.predict(log, at=2.0)
    for n in (0, 7, 30):
        mine = slice(log.offsets[log.users[n]], log.offsets[log.users[n] + 1])
        alone = model.predict((log.item[mine], log.time[mine]), at=2.0)
        torch.testing.assert_close(together[n], alone, rtol=1e-5, atol=1e-6)
    twice, once = model.predict(([3, 3], [0.0, 1.0]), at=1.0), model.predict(([3], [0.0]), at=1.0)
    assert torch.isfinite(twice).all() and (twice - once).abs().max() > 1e-6


# --- all of them


@pytest.mark.parametrize("name", [*TRAINED, *CLOSED])
def test_saved_and_loaded_they_say_the_same(name, tiny, tmp_path):
    model = REGISTRY[name]("link", dim=8, epochs=1, max_len=6, num_heads=2).fit(tiny)
    expected = model.predict(tiny, at=2000.0)
    assert expected.shape == (len(tiny.users), tiny.num_items) and torch.isfinite(expected).all()
    model.save(tmp_path / "model.pt")
    again = type(model).load(tmp_path / "model.pt")
    assert torch.equal(again.predict(tiny, at=2000.0), expected)
    torch.testing.assert_close(again.predict(int(tiny.users[3]), at=2000.0), expected[3], rtol=1e-4, atol=1e-5)
    assert again.score(tiny) == model.score(tiny)
    with pytest.raises(ValueError, match="ask later"):
        model.predict(([1, 2], [0.0, 5.0]), at=4.0)


@pytest.mark.parametrize("name", CAUSAL + MASKED)
def test_they_train_in_half_precision_too(name, tiny):
    model = REGISTRY[name]("link", dim=8, epochs=1, max_len=6, num_heads=2, precision="bf16").fit(tiny)
    assert np.isfinite(model.result_.history[0]["train_loss"])


def test_bad_settings_are_named():
    for settings, message in (
        ({"num_waves": 0}, "num_waves"),
        ({"kernel": "box"}, "kernel must be one of"),
        ({"kernel": "random_walk", "strength": 1.5}, "strength must be at least 2"),
        ({"trust": 0.0}, "trust"),
    ):
        with pytest.raises(ValueError, match=message):
            GSIMC(**settings)
    for cls, settings in ((BGSIMC, {"noise": -1.0}), (MRFCF, {"ridge": 0.0}), (MRFCF, {"share": 2.0})):
        with pytest.raises(ValueError, match=next(iter(settings))):
            cls(**settings)
    with pytest.raises(ValueError, match="dim must be divisible by num_heads"):
        REGISTRY["sasrec"]("link", dim=10, num_heads=4)._build(num_items=3)
    with pytest.raises(ValueError, match="no events"):
        MRFCF().fit(em.EventLog([], [], []))


FAST = {"dim": 32, "max_len": 10, "lr": 0.01, "batch_size": 64, "epochs": 4, "schedule": "cosine", "sampling": "random"}
BAZAAR = {
    "tgat": {"time_unit": 24.0, "num_layers": 1},
    "tisasrec": {"num_heads": 2},
    "sasrec": {"num_heads": 2},
    "grec": {"lr": 5e-3, "epochs": 25, "mask_rate": 0.4},  # few gaps to learn from in an epoch: more epochs
    "ctsma": {"mask_rate": 0.5, "num_heads": 2, "calendar": "hours", "origin": "2024-01-01"},
    "mrfcf": {"ridge": 3000.0, "alpha": 0.0},  # hardly anything but best-sellers: strong shrinkage
    "gsimc": {"num_waves": 12},
    "bgsimc": {"num_waves": 12},
}


@pytest.mark.parametrize("name", ["gru4rec", *BAZAAR])
def test_each_beats_popularity(name, small):
    """Margin, on users that training did not see: 5 % in NDCG@100."""
    train, valid, test = small
    popular = REGISTRY["popularity"]("link").fit(train).score(test)
    scores = REGISTRY[name]("link", **(FAST | BAZAAR.get(name, {}))).fit(train, valid).score(test)
    assert scores["users"] == popular["users"] > 450
    assert scores["ndcg@100"] > 1.05 * popular["ndcg@100"], (scores["ndcg@100"], popular["ndcg@100"])


@pytest.mark.parametrize("name", MASKED)
def test_gap_fillers_learn_what_follows(name):
    """Users walk around a ring of forty items: a simpler world, as who fills gaps takes longer to learn.

    On bazaar BERT4REC needs some hundred epochs to leave popularity behind, and with some seeds more. Margin: three
    times popularity's NDCG@10.
    """
    start = np.random.default_rng(0).integers(0, 40, 300)
    item = (start[:, None] + np.arange(12)) % 40
    log = em.EventLog(np.repeat(np.arange(300), 12), item.ravel(), np.tile(np.arange(12.0), 300), 300, 40)
    train, valid, test = log.split_users((6, 1, 3))
    settings = {"dim": 32, "num_heads": 2, "num_layers": 2, "max_len": 6, "epochs": 12, "lr": 3e-3, "batch_size": 32}
    scores = REGISTRY[name]("link", **settings).fit(train, valid).score(test)
    assert scores["ndcg@10"] > 3 * REGISTRY["popularity"]("link").fit(train).score(test)["ndcg@10"]


def test_what_a_user_has_twice_counts_once():
    log = some_log()
    again = em.EventLog(np.repeat(log.user, 2), np.repeat(log.item, 2), np.repeat(log.time, 2), 60, 12)
    assert signals(again).max() == 1 and (signals(again) != signals(log)).nnz == 0
    model = MRFCF(ridge=0.3).fit(log)
    once, twice = (model.predict((i, np.arange(len(i), dtype=float)), at=9.0) for i in ([3, 5], [3, 5, 3]))
    torch.testing.assert_close(twice, once)


def test_bgsimc_that_trusts_no_arrival_is_gsimc_also_with_repeats():
    log, asked = some_log(), ([4, 2, 4, 9, 2], [0.0, 1.0, 2.0, 3.0, 4.0])
    plain = GSIMC(num_waves=6).fit(log).predict(asked, at=5.0)
    deaf = BGSIMC(num_waves=6, arrivals=3, noise=1e12).fit(log)
    torch.testing.assert_close(deaf.predict(asked, at=5.0), plain)


def test_gsimc_scales_by_its_own_power_of_the_degrees():
    log, s = some_log(), np.zeros(12)
    s[[1, 5]] = 1.0
    R = signals(log).toarray()
    values, U = np.linalg.eigh(dense_laplacian(R))
    model = GSIMC(kernel="bandlimited", num_waves=4, scale=0.2).fit(log)
    root = R.sum(0) ** 0.2
    by_hand = root * (U[:, :4] @ (U[:, :4].T @ (s / root)))
    np.testing.assert_allclose(model.predict(([1, 5], [0.0, 1.0]), at=2.0), by_hand, rtol=1e-4, atol=1e-6)


def test_gsimc_decomposes_as_it_is_told(monkeypatch):
    seen, real = [], gsimc.decompose
    monkeypatch.setattr(gsimc, "decompose", lambda *a, **k: seen.append(a[3]) or real(*a, **k))
    for method in ("krylov", "nystrom"):
        GSIMC(num_waves=4, method=method).fit(some_log())
    assert seen == ["krylov", "nystrom"]


def test_tisasrec_by_hand_with_two_heads():
    model, rows = model_of("tisasrec", num_layers=1, num_heads=2), history(length=4)
    block, r = model.blocks[0], intervals(before(rows.time, 0.0), before(rows.mask, False), 256)
    h = embed(model, rows)
    with torch.no_grad():
        for b in range(2):
            x = model.embed(before(rows.item, -1))[b]
            y = block.norms[0](x)
            k, v = block.keys(y).chunk(2, -1)
            place, span = (table.weight.chunk(2, -1) for table in (model.places, model.spans))
            q, z = block.query(y[3]), []
            keys, values = (
                torch.stack([x[i] + place[n][3 - i] + span[n][r[b, 3, i]] for i in (1, 2, 3)])
                for n, x in enumerate((k, v))
            )
            for head in (slice(0, 8), slice(8, 16)):
                z.append((keys[:, head] @ q[head] / 8**0.5).softmax(0) @ values[:, head])
            z = x[3] + torch.cat(z)
            torch.testing.assert_close(h[b, 3], model.norm(z + block.mixer(block.norms[1](z))))


def test_grec_convolution_by_hand():
    draw = torch.Generator().manual_seed(0)
    x, mask = torch.randn(1, 7, 4, generator=draw), torch.tensor([[False] + [True] * 6])
    for causal, offsets in ((True, (-4, -2, 0)), (False, (-2, 0, 2))):
        layer = DilatedConv(4, 2, causal, 0.5).eval()
        W, b = layer.conv.weight.detach(), layer.conv.bias.detach()
        with torch.no_grad():
            layer.norm.bias += 0.3
            out = layer(x, mask)[0]
            for j in range(7):
                heard = b.clone()
                for tap, o in enumerate(offsets):
                    if 0 < j + o < 7:  # the first is padding
                        heard = heard + W[:, :, tap] @ x[0, j + o]
                torch.testing.assert_close(out[j], x[0, j] + layer.norm(heard).relu())


def test_grec_by_hand():
    """Encoder on what is told, projector, then the decoder on that and the items before, and a last norm."""
    model, rows, hidden = model_of("grec"), history(padding=2), torch.zeros(2, 8, dtype=torch.bool)
    hidden[:, 3] = hidden[:, 6] = True
    h, real = embed(model, rows, hidden), rows.mask[0].tolist()

    def convolved(x, layer, offsets):
        """Position by position; padding and what lies outside say nothing."""
        out = []
        for j in range(8):
            heard = layer.conv.bias
            for tap, o in enumerate(offsets):
                if 0 <= j + o < 8 and real[j + o]:
                    heard = heard + layer.conv.weight[:, :, tap] @ x[j + o]
            out.append(x[j] + layer.norm(heard).relu())
        return torch.stack(out)

    with torch.no_grad():
        for b in range(2):
            E = [4.0 * model.items.weight[i] if i >= 0 else torch.zeros(16).double() for i in rows.item[b].tolist()]
            x = torch.stack([model.token if hidden[b, j] else E[j] for j in range(8)])
            for layer, d in zip(model.encoder, (1, 2, 2, 4, 4, 8), strict=True):
                x = convolved(x, layer, (-d, 0, d))
            x = x @ model.projector.weight.T + model.projector.bias
            x = x + torch.stack([torch.zeros(16).double(), *E[:-1]])
            for layer, d in zip(model.decoder, (1, 2, 2, 4, 4, 8), strict=True):
                x = convolved(x, layer, (-2 * d, -d, 0))
            torch.testing.assert_close(h[b, 2:], model.norm(x)[2:])


def test_tgat_by_hand():
    """Events and users hear the events strictly before them."""
    model, rows = model_of("tgat", num_layers=2), history(padding=1, length=5)
    h = embed(model, rows)
    with torch.no_grad():
        for b in range(2):
            item, time = rows.item[b, 1:], rows.time[b, 1:]
            z = model.items.weight[item] * 4.0
            u = model.user + torch.cat([torch.zeros(1, 16, dtype=z.dtype), z[:-1]])
            for layer, norm in zip(model.layers, model.norms, strict=True):
                new = []
                for x in (z, u):
                    for j in range(4):
                        ok = torch.ones(1, 1, max(j, 1), dtype=torch.bool) & (j > 0)
                        n = max(j, 1)
                        heard = layer(z[None, :n], time[None, :n], x[None, j : j + 1], time[None, j : j + 1], ok)
                        new.append(norm(x[j] + heard[0, 0]))
                z, u = torch.stack(new[:4]), torch.stack(new[4:])
            torch.testing.assert_close(h[b, 1:], u)


def test_attention_weights_are_dropped_in_training_only():
    block = Block(4, 1, 4, torch.nn.ReLU(), 0.5, True).train()
    block.dropout.p = 0.0
    x, allowed = torch.randn(1, 3, 4), allow(torch.ones(1, 3, dtype=torch.bool))
    assert not torch.equal(block(x, allowed), block(x, allowed))
    block.eval()
    assert torch.equal(block(x, allowed), block(x, allowed))
