"""Contraction: closed forms, a naive loop with POT, no bound under what is measured, every architecture and option."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import ALL, Contraction, Propagation
from lisse.instruments.contraction.local import head_sizes
from lisse.maths.bounds import attention_on_ball, attention_worst_token, lookup_norm
from lisse.maths.bounds.between import on_ball
from lisse.maths.markov import Bilinear
from lisse.maths.transport import wasserstein_infinity
from lisse.networks.attention import weights_of
from lisse.networks.bounds import of_module
from lisse.networks.zoo.attention_only import AttentionOnly
from lisse.networks.zoo.text import EncoderDecoder
from lisse.networks.zoo.vit import VisionTransformer
from lisse.profile import Profile
from lisse.run import Run
from lisse.taps import feed, find, still, tapped

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 40,
    "max_position_embeddings": 24,
}  # fmt: skip


def texts(n, seed, longest=7, shortest=3):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (n,), generator=generator)
    lengths[0] = longest
    mask = (torch.arange(longest)[None] < lengths[:, None]).long()
    ids = torch.randint(5, 40, (n, longest), generator=generator) * mask
    return Dataset(f"texts{seed}", {"input_ids": ids, "attention_mask": mask}, None, lengths)


def pairs(n=9):
    """Sentences of 3 to 7 tokens beside others of 3 to 9."""
    first, second = texts(n, 0), texts(n, 1, longest=9)
    return Dataset("pairs", first.inputs, None, first.lengths, second)


def images(n=9):
    generator = torch.Generator().manual_seed(3)
    return Dataset("images", torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8))


def bert(scale=0.3, **options):
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SMALL, initializer_range=scale, **options))


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=16, n_head=2, n_layer=2, vocab_size=40, n_positions=24, bos_token_id=1, eos_token_id=1,
        initializer_range=0.3,
    )  # fmt: skip
    return transformers.GPT2Model(config)


def llama():
    torch.manual_seed(0)
    return transformers.LlamaModel(
        transformers.LlamaConfig(**SMALL | {"num_key_value_heads": 1}, initializer_range=0.3)
    )


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=16, d_kv=8, num_heads=2, num_layers=2, num_decoder_layers=2, d_ff=32, vocab_size=40,
        decoder_start_token_id=0,
    )  # fmt: skip
    return EncoderDecoder(transformers.T5ForConditionalGeneration(config))


def bart():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=40, init_std=0.3,
    )  # fmt: skip
    return EncoderDecoder(transformers.BartForConditionalGeneration(config))


def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32, image_size=8, patch_size=4
    )
    return transformers.ViTModel(config)


def zoo_vit():
    torch.manual_seed(0)
    return VisionTransformer(3, 8, 5, width=16, heads=2, depth=2, patch=4, eps=1e-6)


class Encoder(nn.Module):
    """PyTorch's own, samples not first inside."""

    def __init__(self, batch_first=False):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.first = batch_first

    def forward(self, x):
        return self.encoder(x) if self.first else self.encoder(x.transpose(0, 1)).transpose(0, 1)


def vectors(n=9):
    generator = torch.Generator().manual_seed(4)
    return Dataset("vectors", torch.randn(n, 5, 16, generator=generator))


def measured(model, data, **options):
    run = {key: options.pop(key) for key in ("batch", "seed", "memory", "cache", "layers") if key in options}
    run["order"] = "given"  # what they are compared with is in the order of the data
    defaults = {"points": 2, "shown": 0}
    return Contraction(**{**defaults, **options}).measure(model, data, **run)


@functools.cache
def usual(case):
    """A network on its data with the options of these tests: measured once for all of them."""
    model, data = CASES[case]
    return measured(model(), data())


def value(profile, quantity, layer=None, **at):
    rows = [
        row
        for row in profile.rows
        if row.quantity == quantity and (layer is None or row.layer == layer) and dict(row.at) == at
    ]
    assert len(rows) == 1, [(row.layer, row.at) for row in rows]
    return rows[0]


# --- closed forms ---------------------------------------------------------------------------------------------------


def one_token(c=3.0):
    """An image is one token, and attention of one token is its lookup: c times the token, for any queries and keys."""
    torch.manual_seed(0)
    model = AttentionOnly(3, 8, 2, width=6, heads=1, depth=1, patch=8, residual=False)
    layer = model.blocks[0].attention
    with torch.no_grad():
        layer.value.weight.copy_(torch.eye(6))
        layer.out.weight.copy_(c * torch.eye(6))
    return model


@pytest.mark.parametrize(("ground", "p"), [(1, 1.0), (2, 1.0), (1, 2.0), (1, math.inf), (2, math.inf)])
def test_one_token_is_stretched_by_its_lookup(ground, p):
    profile = measured(one_token(), images(), ground=ground, p=p)
    name = "blocks.0.attention"
    assert value(profile, "stretch", name).value == pytest.approx(3.0, rel=1e-5)
    assert value(profile, "stretch_mean", name).value == pytest.approx(3.0, rel=1e-5)
    # The head alone is the identity.
    assert value(profile, "stretch", name, head=0).value == pytest.approx(1.0, rel=1e-5)
    assert value(profile, "local_stretch", name).value == pytest.approx(3.0, rel=1e-4)
    assert value(profile, "local_bound", name).value == pytest.approx(3.0, rel=1e-4)  # nothing spreads
    before, after = value(profile, "distance_before", name), value(profile, "distance_after", name)
    assert after.value == pytest.approx(3 * before.value, rel=1e-5)
    assert value(profile, "log_bound", name).value >= math.log10(3)
    # The worst token is the only one.
    assert value(profile, "token_stretch", name).value == pytest.approx(3.0, rel=1e-5)
    assert value(profile, "token_stretch", name).n == 2
    if (p, ground) == (1.0, 2):
        # Of two images the hull is a line: 3, and what the potential's slope adds on it.
        assert value(profile, "log_token_bound", name).value >= math.log10(3)
        with torch.no_grad():
            model = one_token()
            model.blocks[0].attention.query.weight.zero_()
        flat = measured(model, images(), ground=ground, p=p)
        assert value(flat, "log_token_bound", name).value == pytest.approx(math.log10(3), abs=1e-6)
        assert value(flat, "log_token_room", name).value == pytest.approx(0.0, abs=1e-5)


def test_attention_that_looks_everywhere_alike_gives_the_mean():
    """Without queries every token becomes the mean: the distance behind is that of the means, whatever the lengths."""
    model = bert()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    data = pairs()
    profile = measured(model, data)
    site = "encoder.layer.0.attention.self"
    weight = model.encoder.layer[0].attention
    product = weight.output.dense.weight.detach().double() @ weight.self.value.weight.detach().double()
    expected = []
    for a, b in zip(*(tokens(model, side, f"{site}:in") for side in (data, data.partner)), strict=True):
        expected.append(float((product @ (a.mean(0) - b.mean(0))).abs().sum()))
    assert value(profile, "distance_after", site).value == pytest.approx(np.mean(expected), rel=1e-4)
    # Then the bounds are the lookup's, and every one is attained by single tokens.
    norm = sum(head_sizes_by_hand(weight))
    assert value(profile, "log_bound", site).value == pytest.approx(math.log10(norm), abs=1e-9)
    assert value(profile, "log_hull_bound", site).value == pytest.approx(math.log10(norm), abs=1e-9)


def head_sizes_by_hand(attention):
    out, v = attention.output.dense.weight.double(), attention.self.value.weight.double()
    return [float((out[:, h : h + 8] @ v[h : h + 8]).abs().sum(0).max().detach()) for h in (0, 8)]


def tokens(model, data, layer):
    """Valid tokens at a place, sample by sample."""
    (batch,) = data.batches(len(data))
    (tap,) = find(model, batch.inputs, [layer])
    seen = []
    with still(model), tapped(model, [tap], lambda _, value: seen.append(value.double())):
        feed(model, batch.inputs)
    mask = batch.inputs["attention_mask"].bool() if isinstance(batch.inputs, dict) else None
    return [x if mask is None else x[mask[k]] for k, x in enumerate(seen[0])]


# --- a naive loop ---------------------------------------------------------------------------------------------------


def test_distances_are_those_of_a_naive_loop_with_pot():
    import ot

    model, data, profile = bert(), pairs(), usual("bert")

    def mean_distance(place, part=slice(None)):
        found = []
        for x, y in zip(*(tokens(model, side, place) for side in (data, data.partner)), strict=True):
            x, y = x[:, part].numpy(), y[:, part].numpy()
            cost = ot.dist(x, y, "cityblock")
            found.append(ot.emd2(np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y)), cost))
        return np.array(found)

    for layer in (0, 1):
        site = f"encoder.layer.{layer}.attention.self"
        before = mean_distance(f"{site}:in")
        after = mean_distance(f"encoder.layer.{layer}.attention.output.dense")
        assert value(profile, "distance_before", site).value == pytest.approx(before.mean(), rel=1e-5)
        assert value(profile, "distance_after", site).value == pytest.approx(after.mean(), rel=1e-5)
        assert value(profile, "stretch", site).value == pytest.approx((after / before).max(), rel=1e-5)
        for head in (0, 1):
            own = mean_distance(f"encoder.layer.{layer}.attention.output.dense:in", slice(8 * head, 8 * head + 8))
            assert value(profile, "stretch", site, head=head).value == pytest.approx((own / before).max(), rel=1e-5)
    entry, end = mean_distance("encoder.layer.0:in"), mean_distance("encoder.layer.1")
    assert value(profile, "distance", "encoder.layer.1").value == pytest.approx(end.mean(), rel=1e-5)
    assert profile["contraction"].arrays["depth/0"] == pytest.approx(entry, rel=1e-5)
    means = [torch.stack([x.mean(0) for x in tokens(model, side, "encoder.layer.1")]) for side in (data, data.partner)]
    apart = (means[0] - means[1]).abs().sum(1).numpy()
    assert value(profile, "output_distance").value == pytest.approx(apart.mean(), rel=1e-5)
    assert value(profile, "correlation").value == pytest.approx(np.corrcoef(entry, apart)[0, 1], abs=1e-5)


def test_the_worst_token_is_that_of_a_naive_loop_and_its_bound_that_of_the_pairs_hull():
    model, data, profile = bert(), pairs(), usual("bert")
    for index in (0, 1):
        site, layer = f"encoder.layer.{index}.attention.self", model.encoder.layer[index].attention
        before, after = (
            [tokens(model, side, place)[:2] for side in (data, data.partner)]
            for place in (f"{site}:in", f"encoder.layer.{index}.attention.output.dense")
        )
        stretch = max(
            float(wasserstein_infinity(fx, fy) / wasserstein_infinity(x, y))
            for x, y, fx, fy in zip(*before, *after, strict=True)
        )
        assert value(profile, "token_stretch", site).value == pytest.approx(stretch, rel=1e-5)
        out = layer.output.dense.weight.detach().double()
        largest = 0.0
        for x, y in zip(*before, strict=True):
            together, apart = [], []
            for part in (slice(0, 8), slice(8, 16)):
                q, k, v = (getattr(layer.self, n).weight[part].detach().double() for n in ("query", "key", "value"))
                potential = Bilinear(q, k, 8**-0.5, layer.self.query.bias[part].detach().double())
                for sizes, lookup in ((together, out[:, part] @ v), (apart, v)):
                    sizes.append(attention_worst_token(potential, atoms=torch.cat([x, y]), lookup=lookup).value)
            norm = float(torch.linalg.matrix_norm(out, 2))
            largest = max(largest, min(sum(together), norm * math.hypot(*apart)))
        bound = value(profile, "log_token_bound", site).value
        assert bound == pytest.approx(math.log10(largest), abs=1e-5)
        assert value(profile, "log_token_room", site).value == pytest.approx(bound - math.log10(stretch), abs=1e-5)


def test_the_bound_is_theorem_1_of_the_layers_weights():
    model, data, profile = bert(), pairs(), usual("bert")
    site, layer = "encoder.layer.1.attention.self", model.encoder.layer[1].attention
    radius = max(float(x.norm(dim=1).max()) for side in (data, data.partner) for x in tokens(model, side, f"{site}:in"))
    assert value(profile, "radius", site).value == pytest.approx(radius, rel=1e-6)
    total = 0.0
    sizes = head_sizes_by_hand(layer)
    for head, part in enumerate((slice(0, 8), slice(8, 16))):
        q, k, v = (getattr(layer.self, name).weight[part].detach().double() for name in ("query", "key", "value"))
        bias = layer.self.query.bias[part].detach().double()
        potential = Bilinear(q, k, 8**-0.5, bias)
        bound = attention_on_ball(16, radius, potential=potential)
        total += bound.value * sizes[head]
        own = value(profile, "log_bound", site, head=head)
        assert own.value == pytest.approx(math.log10(bound.value * lookup_norm(v)), abs=1e-6)
    assert value(profile, "log_bound", site).value == pytest.approx(math.log10(total), abs=1e-6)
    loose = value(profile, "log_bound", site).value - math.log10(value(profile, "stretch", site).value)
    assert value(profile, "log_looseness", site).value == pytest.approx(loose, abs=1e-9)


# --- no bound is under what is measured -----------------------------------------------------------------------------


CASES = {
    "bert": (bert, pairs), "gpt2": (gpt2, pairs), "llama": (llama, pairs), "t5": (t5, pairs), "bart": (bart, pairs),
    "vit": (vit, images), "zoo": (zoo_vit, images), "torch": (Encoder, vectors),
    "torch, samples first": (lambda: Encoder(True), vectors),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ground"),
    [
        *((case, 1) for case in CASES),
        ("bert", 2),
        *(pytest.param(case, 2, marks=pytest.mark.slow) for case in CASES if case != "bert"),
    ],
)
def test_no_bound_is_under_what_is_measured(case, ground):
    model, data = CASES[case]
    profile = usual(case) if ground == 1 else measured(model(), data(), ground=2)
    by_layer = {}
    for row in profile.rows:
        if row.layer is not None:
            by_layer.setdefault(row.layer, {})[row.quantity, tuple(row.at.items())] = row
    sites = [rows for rows in by_layer.values() if ("radius", ()) in rows]
    assert sites
    for rows in sites:
        for over, under in (
            ("log_bound", "stretch"), ("local_bound", "local_stretch"),
            ("log_sequence_bound", "local_stretch"), ("log_token_bound", "token_stretch"),
        ):  # fmt: skip
            if (over, ()) in rows and (under, ()) in rows:
                bound = rows[over, ()].value if over.startswith("log_") else math.log10(rows[over, ()].value)
                assert math.log10(rows[under, ()].value) <= bound + 1e-6
                assert (rows[over, ()].kind, rows[under, ()].kind) == ("upper", "lower")
        for head in (0, 1):
            at = (("head", head),)
            if ("log_bound", at) in rows:
                assert math.log10(rows["stretch", at].value) <= rows["log_bound", at].value
        for name in ("pair", "noise"):
            at = (("keys", name),)
            if ("key_stretch", at) in rows:
                seen = math.log10(rows["key_stretch", at].value)
                assert seen <= rows["log_key_hull_bound", ()].value <= rows["log_key_bound", ()].value
        if ("log_hull_bound", ()) in rows:
            assert rows["log_hull_bound", ()].value <= rows["log_bound", ()].value + 1e-9


def test_the_hull_bound_holds_for_its_very_pairs():
    model, data = bert(), pairs()
    few = Dataset("few", {k: v[:3] for k, v in data.inputs.items()}, None, data.lengths[:3], data.partner.take(3))
    profile = measured(model, few, points=3)
    for layer in (0, 1):
        site = f"encoder.layer.{layer}.attention.self"
        assert math.log10(value(profile, "stretch", site).value) <= value(profile, "log_hull_bound", site).value
        assert value(profile, "log_hull_bound", site).n == 3


def alike(n=5, length=6):
    """Pairs of one length: sentences whose tokens lie at the same places."""
    ids = torch.randint(5, 40, (2, n, length), generator=torch.Generator().manual_seed(8))
    first, second = ({"input_ids": side, "attention_mask": torch.ones_like(side)} for side in ids)
    lengths = torch.full((n,), length)
    return Dataset("alike", first, None, lengths, Dataset("partner", second, None, lengths))


@pytest.mark.parametrize("model", [bert, gpt2, llama, t5, bart])
def test_the_worst_tokens_bound_holds_under_masks_tables_and_rotations(model):
    profile = measured(model(), alike(), points=5)
    stretches = [row for row in profile.rows if row.quantity == "token_stretch"]
    bounds = {row.layer: row for row in profile.rows if row.quantity == "log_token_bound"}
    assert len(stretches) >= 2
    assert {row.layer for row in stretches} == set(bounds)
    for row in stretches:
        assert math.log10(row.value) <= bounds[row.layer].value
        assert (row.kind, bounds[row.layer].kind, row.n) == ("lower", "upper", 5)


def test_where_order_matters_sentences_of_other_lengths_have_no_worst_token():
    profile = usual("gpt2")
    assert not names(profile) & {"token_stretch", "log_token_bound", "log_token_room"}
    assert any("order matters there, and no pair looked at" in note for note in profile.notes)


def test_a_bound_of_the_worst_token_that_says_nothing_is_left_out_with_the_reason():
    profile = measured(bert(), pairs(), vacuous=0.5)
    assert "token_stretch" in names(profile)
    assert not names(profile) & {"log_token_bound", "log_token_room"}
    (note,) = [note for note in profile.notes if note.startswith("log_token_bound is left out")]
    assert "more than 0.5 powers of ten above what was measured" in note


# --- which bounds hold for whom -------------------------------------------------------------------------------------


def names(profile):
    return {row.quantity for row in profile.rows}


def test_a_causal_mask_refuses_the_bounds_of_measures():
    profile = usual("gpt2")
    assert not names(profile) & {"log_bound", "log_hull_bound", "log_printed_bound", "log_looseness"}
    assert names(profile) >= {"stretch", "log_sequence_bound", "local_bound", "local_stretch"}
    assert any("causal: order matters" in note and "log_sequence_bound" in note for note in profile.notes)


def test_relative_positions_refuse_them_too_and_turned_queries_refuse_all():
    profile = usual("t5")
    selfs = {row.quantity for row in profile.rows if row.layer and row.layer.endswith("SelfAttention")}
    assert not selfs & {"log_bound", "log_hull_bound"}
    assert selfs >= {"stretch", "log_sequence_bound", "local_bound"}
    assert any("adds a table to its logits" in note for note in profile.notes)
    profile = usual("llama")
    assert not {name for name in names(profile) if "bound" in name}
    assert names(profile) >= {"stretch", "local_stretch", "distance_before"}
    assert any("weights alone do not give its output" in note for note in profile.notes)


def test_cross_attention_is_measured_in_its_keys():
    for case in ("t5", "bart"):
        profile = usual(case)
        cross = {row.layer for row in profile.rows if row.quantity == "key_stretch"}
        assert len(cross) == 2
        assert all("EncDecAttention" in layer or "encoder_attn" in layer for layer in cross)
        rows = {row.quantity for row in profile.rows if row.layer in cross}
        assert rows == {
            "radius", "key_stretch", "log_key_bound", "log_key_hull_bound", "log_printed_key_bound", "local_key_bound",
        }  # fmt: skip
        assert any("at a query of 0 it is 0" in note for note in profile.notes)


def test_a_vacuous_bound_is_called_vacuous_and_a_small_one_is_not():
    profile = measured(bert(scale=1.0), pairs())
    assert any(note.startswith("log_bound is vacuous at encoder.layer.0") for note in profile.notes)
    assert value(profile, "log_bound", "encoder.layer.0.attention.self").value > 10
    assert any(note.startswith("log_hull_bound is vacuous at encoder.layer.0") for note in profile.notes)
    # A pair that is twice the same does not make it less so.
    data = pairs()
    ids, mask = (data.partner.inputs[name].clone() for name in ("input_ids", "attention_mask"))
    ids[1], mask[1] = 0, 0
    for mine, theirs in ((ids, "input_ids"), (mask, "attention_mask")):
        mine[1, : data.inputs[theirs].shape[1]] = data.inputs[theirs][1]
    twin = Dataset("twin", {"input_ids": ids, "attention_mask": mask}, None, mask.sum(1))
    profile = measured(bert(scale=1.0), Dataset("pairs", data.inputs, None, data.lengths, twin), points=0)
    assert value(profile, "stretch", "encoder.layer.0.attention.self").n == len(data) - 1
    assert any(note.startswith("log_bound is vacuous at encoder.layer.0") for note in profile.notes)
    assert not any("log_hull_bound is vacuous" in note for note in profile.notes)
    # One token: bound and stretch are of one size.
    model = one_token()
    with torch.no_grad():
        model.blocks[0].attention.query.weight.zero_()
    assert not any("vacuous" in note for note in measured(model, images()).notes)


def test_the_printed_bound_says_that_it_is_no_theorem():
    model = one_token()
    with torch.no_grad():
        model.blocks[0].attention.query.weight.mul_(1e-3)
    profile = measured(model, images())
    row = value(profile, "log_printed_bound", "blocks.0.attention")
    assert row.kind == "heuristic"
    assert row.value < math.log10(value(profile, "stretch", "blocks.0.attention").value)  # false here
    assert any("the printed value is not below the proved one" in note for note in profile.notes)


# --- padding, batches, resume ---------------------------------------------------------------------------------------


def numbers(profile):
    return {(r.quantity, r.layer, tuple(r.at.items())): r.value for r in profile.rows}


def test_padding_is_not_data():
    data = pairs()

    def padded(side, by):
        ids, mask = side.inputs["input_ids"], side.inputs["attention_mask"]
        more = torch.full((len(ids), by), 7)
        return {"input_ids": torch.cat([ids, more], 1), "attention_mask": torch.cat([mask, 0 * more], 1)}

    partner = Dataset("b", padded(data.partner, 2), None, data.partner.lengths)
    wide = Dataset("a", padded(data, 3), None, data.lengths, partner)
    left, right = (numbers(measured(bert(), each)) for each in (data, wide))
    assert left.keys() == right.keys()
    for key, number in left.items():
        if key[0] != "log_sequence_bound" and not key[0].startswith("local_stretch"):
            assert right[key] == pytest.approx(number, rel=1e-4), key


@pytest.mark.parametrize("change", [{"batch": 2}, {"memory": "60KB"}])
def test_batches_and_memory_change_nothing(change):
    left, right = numbers(usual("bert")), numbers(measured(bert(), pairs(), **change))
    assert left.keys() == right.keys()
    for key, number in left.items():
        assert right[key] == pytest.approx(number, rel=1e-4), key


def test_finished_work_is_not_done_again(tmp_path, monkeypatch):
    from lisse.instruments.contraction import Distances, LocalConstants

    first = measured(bert(), pairs(), cache=tmp_path, batch=4)

    def refuse(*_):
        raise AssertionError("done again")

    monkeypatch.setattr(LocalConstants, "block", refuse)
    monkeypatch.setattr(Distances, "block", refuse)
    run = Run(bert(), pairs(), cache=tmp_path, batch=4, order="given")
    again = Contraction(points=2, shown=0).part(run)  # the part itself, not the part's own copy
    assert [row.value for row in again.rows] == [row.value for row in first.rows]


def test_the_seed_moves_what_is_random_alone():
    left, right = usual("t5"), measured(t5(), pairs(), seed=1)
    layer = "network.decoder.block.0.layer.1.EncDecAttention"
    assert value(left, "key_stretch", layer, keys="pair").value == value(right, "key_stretch", layer, keys="pair").value
    assert (
        value(left, "key_stretch", layer, keys="noise").value != value(right, "key_stretch", layer, keys="noise").value
    )


def test_a_profile_is_saved_and_loaded(tmp_path):
    profile = measured(bert(), pairs(), shown=2)
    profile.save(tmp_path / "x.profile")
    loaded = Profile.load(tmp_path / "x.profile")
    assert loaded.rows == profile.rows
    assert loaded["contraction"].arrays["pair/1/before/plan"].sum() == pytest.approx(1.0)


# --- options --------------------------------------------------------------------------------------------------------


def test_pairs_by_the_data_or_by_choice():
    model = zoo_vit()
    corrupted = measured(model, images())
    assert any("gaussian_noise of severity 3" in note for note in corrupted.notes)
    shuffled = measured(model, images(), against="shuffled")
    site = "blocks.0.attn"
    # Another image is further away than a noisy one.
    assert value(shuffled, "distance_before", site).value > value(corrupted, "distance_before", site).value
    assert any("another one, drawn at random" in note for note in shuffled.notes)
    assert any("its partner" in note for note in usual("bert").notes)


def test_a_stronger_corruption_is_further_away():
    found = [
        value(measured(zoo_vit(), images(), severity=severity, points=0), "distance", "stem").value
        for severity in (1, 3, 5)
    ]
    assert found[0] < found[1] < found[2]
    other = measured(zoo_vit(), images(), corruption="brightness", points=0)
    assert value(other, "distance", "stem").value not in found


def test_samples_points_shown_level_and_quick():
    profile = measured(bert(), pairs(), samples=8, points=1, shown=3, level=0.8)
    site = "encoder.layer.0.attention.self"
    row = value(profile, "distance_before", site)
    assert row.n == 8
    assert value(profile, "local_bound", site).n == 1
    assert {key.split("/")[1] for key in profile["contraction"].arrays if key.startswith("pair/")} == {"0", "1", "2"}
    wide = value(measured(bert(), pairs(), samples=8), "distance_before", site)
    assert row.value == wide.value
    assert wide.low < row.low <= row.high < wide.high
    assert not names(measured(bert(), pairs(), points=0)) & {"local_bound", "local_stretch", "log_hull_bound"}
    quick = Contraction.sized("quick").measure(bert(), pairs())
    assert value(quick, "distance_before", site).kind == "estimate"
    assert value(quick, "local_bound", site).n == 2


def test_p_and_noise_change_the_numbers_as_they_must():
    model, data = bert(), pairs()
    site = "encoder.layer.0.attention.self"
    one = sum_ = value(usual("bert"), "distance_before", site).value
    two = value(measured(model, data, p=2.0, points=0), "distance_before", site).value
    assert one < two  # W1 <= W2
    euclid = value(measured(model, data, ground=2, points=0), "distance_before", site).value
    assert euclid < sum_ < 4 * euclid  # ‖x‖₂ <= ‖x‖₁ <= √16 ‖x‖₂
    layer = "network.decoder.block.0.layer.1.EncDecAttention"
    least = measured(t5(), data, noise=1e-4)
    assert value(least, "key_stretch", layer, keys="noise") != value(usual("t5"), "key_stretch", layer, keys="noise")
    near = value(least, "local_key_bound", layer).value
    assert value(least, "key_stretch", layer, keys="noise").value <= near


@pytest.mark.parametrize("ground", [1, 2])
def test_of_infinite_order_it_is_the_worst_token_with_intervals_and_no_exponential(ground, tmp_path):
    model, data = bert(), pairs()
    profile = measured(model, data, p=math.inf, ground=ground, shown=1)
    for index in (0, 1):
        site, layer = f"encoder.layer.{index}.attention.self", model.encoder.layer[index].attention
        (xs, ys), (fxs, fys) = (
            [tokens(model, side, place) for side in (data, data.partner)]
            for place in (f"{site}:in", f"encoder.layer.{index}.attention.output.dense")
        )
        before, after = (
            torch.stack([wasserstein_infinity(x, y, ground=ground) for x, y in zip(*sides, strict=True)])
            for sides in ((xs, ys), (fxs, fys))
        )
        row = value(profile, "distance_before", site)
        assert row.value == pytest.approx(float(before.mean()), rel=1e-5)
        assert row.low < row.value < row.high
        assert value(profile, "distance_after", site).value == pytest.approx(float(after.mean()), rel=1e-5)
        stretch = value(profile, "stretch", site).value
        assert stretch == pytest.approx(float((after / before)[before > 0].max()), rel=1e-5)
        bounds = [value(profile, name, site).value for name in ("log_hull_bound", "log_bound")]
        assert math.log10(stretch) <= bounds[1]
        assert bounds[0] <= bounds[1] <= value(measured(model, data, ground=ground), "log_bound", site).value
        if ground == 2:
            radius = value(profile, "radius", site).value
            attention = nn.Sequential(layer.self, layer.output.dense)
            assert bounds[1] <= of_module(attention, radius=radius, metric="worst_token").log10 + 1e-5
            token = value(profile, "log_token_bound", site).value
            assert token <= bounds[0] + 1e-9
    assert "local_token_bound" not in names(profile)
    assert "W_∞" in " ".join(profile["contraction"].notes)
    arrays = profile["contraction"].arrays
    x, y = (tokens(model, side, "encoder.layer.0.attention.self:in")[0] for side in (data, data.partner))
    plan, distance = arrays["pair/0/before/plan"], arrays["pair/0/before/distance"].item()
    assert distance == pytest.approx(float(wasserstein_infinity(x, y, ground=ground)), rel=1e-5)
    assert plan.sum(0) == pytest.approx(np.full(len(y), 1 / len(y)))
    assert plan.sum(1) == pytest.approx(np.full(len(x), 1 / len(x)))
    assert float(torch.cdist(x, y, p=ground)[torch.as_tensor(plan) > 0].max()) == pytest.approx(distance, rel=1e-5)
    profile.save(tmp_path / "inf.profile")
    assert Profile.load(tmp_path / "inf.profile").rows == profile.rows


def test_a_higher_order_has_a_smaller_exponential():
    site, data = "encoder.layer.0.attention.self", pairs()
    bounds = [value(measured(bert(), data, ground=2, p=p), "log_bound", site).value for p in (1.0, 2.0, math.inf)]
    assert bounds == sorted(bounds, reverse=True)
    radius, w = value(usual("bert"), "radius", site).value, weights_of(bert().encoder.layer[0].attention.self)
    out = bert().encoder.layer[0].attention.output.dense.weight.detach().double()
    heads = []
    for h, part in enumerate((slice(0, 8), slice(8, 16))):
        a, c = (w.scale * (w.key[h].T @ x) for x in (w.query[h], w.query_bias[h]))
        size = float(torch.linalg.matrix_norm(out[:, part] @ w.value[h], 2))
        heads.append(
            size * on_ball(1.0, float(torch.linalg.matrix_norm(a, 2)), radius, bias_norm=float(c.norm()), p=2.0).value
        )
    assert bounds[1] == pytest.approx(math.log10(sum(heads)), abs=1e-5)


def test_more_steps_come_nearer_to_the_jacobians_norm():
    few, many = (measured(bert(), pairs(), max_iter=steps, tol=1e-6, points=1) for steps in (2, 30))
    site = "encoder.layer.0.attention.self"
    assert value(few, "local_stretch", site).value <= value(many, "local_stretch", site).value * (1 + 1e-6)
    assert any("after 2 steps" in note for note in few.notes)
    assert not any("steps" in note for note in many.notes)
    loose = measured(bert(), pairs(), max_iter=30, tol=0.5, points=1)
    assert value(loose, "local_stretch", site).value <= value(many, "local_stretch", site).value * (1 + 1e-6)


def test_the_local_stretch_is_the_norm_of_the_jacobian_on_valid_tokens():
    """Against the whole Jacobian of the formula, sample by sample, without its padding."""
    from lisse.networks.attention import attended, attention_sites

    model, data = bert(), pairs()
    (batch,) = data.batches(len(data))
    (site, _), _ = attention_sites(model, batch.inputs)
    expected = []
    for x in tokens(model, data, "encoder.layer.0.attention.self:in")[:4]:
        whole = torch.autograd.functional.jacobian(lambda z: attended(site.weights, z[None], z[None])[2][0], x)
        expected.append(float(torch.linalg.matrix_norm(whole.reshape(x.numel(), x.numel()), 2)))
    profile = measured(model, data, points=4, max_iter=40, tol=1e-6)
    assert value(profile, "local_stretch", site.name).value == pytest.approx(max(expected), rel=1e-4)
    assert value(profile, "local_stretch_mean", site.name).value == pytest.approx(np.mean(expected), rel=1e-4)


def test_the_embedding_can_be_chosen():
    model, data = bert(), pairs()
    mean = value(usual("bert"), "output_distance").value
    first = value(measured(model, data, embedding="first", points=0), "output_distance").value
    sides = [torch.stack([x[0] for x in tokens(model, side, "encoder.layer.1")]) for side in (data, data.partner)]
    assert first == pytest.approx(float((sides[0] - sides[1]).abs().sum(1).mean()), rel=1e-5)
    assert mean != first


@pytest.mark.parametrize("layer", ["encoder.layer.1", "encoder.layer.1.attention.self", "encoder.layer.1.**"])
def test_layers_choose_the_attention_inside_them(layer):
    profile = measured(bert(), pairs(), layers=[layer], points=0)
    assert {row.layer for row in profile.rows if row.quantity == "stretch"} == {"encoder.layer.1.attention.self"}


def test_left_padding_is_masked_too():
    data = pairs()

    def turned(side):
        mask = side.inputs["attention_mask"].flip(1)
        return {"input_ids": side.inputs["input_ids"].flip(1), "attention_mask": mask}

    partner = Dataset("b", turned(data.partner))
    profile = measured(bert(), Dataset("a", turned(data), partner=partner))
    site = "encoder.layer.0.attention.self"
    assert math.log10(value(profile, "stretch", site).value) <= value(profile, "log_bound", site).value


# --- one pair, what does not fit, bad input -------------------------------------------------------------------------


def test_a_single_pair_has_no_interval_and_no_correlation():
    profile = measured(bert(), pairs().take(1), points=1, shown=1)
    assert "correlation" not in names(profile)
    assert all(row.low is None for row in profile.rows)
    assert any("1 pairs are too few for an interval" in note for note in profile.notes)


def test_pairs_that_are_the_same_have_no_stretch():
    data = pairs()
    same = Dataset("same", data.inputs, None, data.lengths, Dataset("twin", data.inputs, None, data.lengths))
    profile = measured(bert(), same)
    assert value(profile, "distance_before", "encoder.layer.0.attention.self").value == 0
    assert "stretch" not in names(profile)
    assert any("same tokens on both sides" in note for note in profile.notes)


def reason(model, data, **options):
    return Contraction(**options).fits(Run(model, data))


def test_what_does_not_fit_is_told():
    plain = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert "no attention layer was found" in reason(plain, Dataset("x", torch.randn(5, 4)))
    assert "texts0 holds no pairs" in reason(bert(), texts(4, 0), against="partner")
    assert "only images can be corrupted" in reason(bert(), texts(4, 0), against="corrupted")
    assert "another sample is needed" in reason(bert(), texts(1, 0))
    assert "needs a [MASK] token" in reason(bert(), pairs(), embedding="mask")
    ids = {"input_ids": texts(3, 0).inputs["input_ids"]}
    mixed = Dataset("mixed", texts(3, 0).inputs, partner=Dataset("other", ids))
    assert "have different inputs" in reason(bert(), mixed)
    assert reason(bert(), texts(4, 0)) is None


def test_values_that_are_not_finite_are_told_with_their_layer():
    model = bert()
    with torch.no_grad():
        model.encoder.layer[0].attention.self.value.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"Contraction: activations at .*layer.0.attention.self:heads must be finite"):
        measured(model, pairs())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ({"points": -1}, "points must be a whole number of at least 0, got -1"),
        ({"shown": 0.5}, "shown must be a whole number of at least 0, got 0.5"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1"),
        ({"against": "me"}, "against must be one of partner, corrupted, shuffled, got 'me'"),
        ({"p": 0.5}, r"p must be at least 1 \(inf: the worst token\), got 0\.5"),
        ({"ground": 3}, "ground must be one of 1, 2, got 3"),
        ({"corruption": "rust"}, "corruption must be one of .*, got 'rust'"),
        ({"severity": 6}, "severity must be one of 1, 2, 3, 4, 5, got 6"),
        ({"embedding": "last"}, "embedding must be one of auto, mean, first, mask, got 'last'"),
        ({"noise": 0.0}, "noise must be positive and finite, got 0.0"),
        ({"vacuous": 0.0}, "vacuous must be positive and finite, got 0.0"),
        ({"tol": -1.0}, "tol must be positive and finite, got -1.0"),
        ({"level": 1.0}, r"level must lie in \(0, 1\), got 1.0"),
    ],
)
def test_bad_options(options, says):
    with pytest.raises(ValueError, match=f"Contraction: {says}"):
        Contraction(**options)


def test_it_is_offered_and_every_row_is_described():
    assert Contraction in ALL
    for case in ("bert", "t5", "zoo"):
        profile = usual(case)
        assert {row.quantity for row in profile.rows} <= {quantity.name for quantity in Contraction.QUANTITIES}
        assert all(row.depth is not None for row in profile.rows if row.layer is not None)


def test_head_sizes_are_the_norms_of_the_products():
    from lisse.networks.attention import attention_sites

    model = bert()
    (batch,) = pairs().batches(9)
    sites, _ = attention_sites(model, batch.inputs)
    assert head_sizes(sites[0].weights, 1) == pytest.approx(head_sizes_by_hand(model.encoder.layer[0].attention))
    out, v = (w.weight.detach().double() for w in (
        model.encoder.layer[0].attention.output.dense, model.encoder.layer[0].attention.self.value
    ))  # fmt: skip
    spectral = [float(torch.linalg.matrix_norm(out[:, h : h + 8] @ v[h : h + 8], 2)) for h in (0, 8)]
    assert head_sizes(sites[0].weights, 2) == pytest.approx(spectral)


@pytest.mark.parametrize(
    ("model", "data", "grid"),
    [(bert, pairs, None), (gpt2, pairs, None), (llama, pairs, None), (t5, pairs, None), (vit, images, None),
     (Encoder, vectors, (1, 5)), (lambda: Encoder(True), vectors, (1, 5))],
)  # fmt: skip
def test_with_propagation_it_makes_one_pass_and_no_other_number(model, data, grid):
    instruments = [Contraction(points=1, max_iter=2, shown=0), Propagation(kernels=2, lemma=0, grid=grid)]
    network, samples = model(), data()
    passes = []
    network.register_forward_pre_hook(lambda *_: passes.append(1))

    def parts_and_passes(*chosen):
        passes.clear()
        return lisse.measure(network, samples, list(chosen), batch=3, on_error="note").parts, len(passes)

    (contraction,), first = parts_and_passes(instruments[0])
    (propagation,), second = parts_and_passes(instruments[1])
    for order in (instruments, instruments[::-1]):
        parts, both = parts_and_passes(*order)
        for part in parts:
            alone = contraction.rows if part.instrument == "contraction" else propagation.rows
            values = [(row.value, row.low or 0.0, row.high or 0.0) for row in part.rows]
            # Strides may differ between what is kept and what is there, and with them the last bit.
            assert values == [pytest.approx((x.value, x.low or 0.0, x.high or 0.0), rel=1e-6, abs=1e-9) for x in alone]
        assert contraction.rows
        assert both <= first + second - 3 or not propagation.rows
