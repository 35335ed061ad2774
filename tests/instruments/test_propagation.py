from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import ALL, Propagation
from lisse.instruments.propagation import _stacked
from lisse.instruments.propagation.numbers import Rings
from lisse.maths.attention_distance import attention_distance, attention_mass, mass_profile, uniform_attention
from lisse.maths.integral import offset_defect
from lisse.maths.masking import attention_residuals, interpolation_bound, span_weights
from lisse.maths.similarity import linear_cka
from lisse.maths.variation import token_norm, token_variation
from lisse.networks import zoo
from lisse.networks.masked import to_huggingface
from lisse.networks.zoo.mae import MaskedAutoencoder
from lisse.networks.zoo.vit import Block, VisionTransformer

N = 10
IMAGES = torch.rand(N, 3, 16, 16, generator=torch.Generator().manual_seed(0))
FEW = Propagation(kernels=8, lemma=2)


def shaken(network, size=0.2):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=generator))
    return network.eval()


def vit(**options) -> VisionTransformer:
    return shaken(zoo.build("vit_small", size=16, patch=4, width=12, heads=2, depth=2, **options))


def mae(**options) -> MaskedAutoencoder:
    wanted = {
        "size": 16, "patch": 4, "width": 12, "heads": 2, "depth": 2, "decoder_width": 8, "decoder_heads": 2,
        "decoder_depth": 2, **options,
    }  # fmt: skip
    return shaken(zoo.build("mae_small", **wanted))


def value(profile, quantity, layer, **at):
    found = [row for row in profile.rows if (row.quantity, row.layer, dict(row.at)) == (quantity, layer, at)]
    assert len(found) == 1, (quantity, layer, at, len(found))
    return found[0]


def states(network: VisionTransformer, images=IMAGES):
    """What enters and leaves every part of every block, written out."""
    patches = network.patch_embed(images)
    tokens = torch.cat((network.cls_token.expand(len(patches), -1, -1), patches), 1) + network.pos_embed
    found = []
    for block in network.blocks:
        u = block.norm1(tokens)
        q, k, v = block.attn.projected(u)
        a = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        z = block.attn(u)
        after = block(tokens)
        found.append({"v": tokens, "u": u, "z": z, "a": a, "value": v, "after": after, "q": q, "k": k})
        tokens = after
    return found


@pytest.fixture(scope="module")
def seen():
    network = vit()
    with torch.no_grad():
        return network, states(network), Propagation(kernels=N, ablation=True).measure(network, IMAGES)


# -- against the formulas, written out ------------------------------------------------------------------------------


def test_the_two_sides_of_theorem_5_1(seen):
    _, blocks, profile = seen
    for place, state in enumerate(blocks):
        layer = f"blocks.{place}"
        v, u, z, after = (state[name][:, 1:] for name in ("v", "u", "z", "after"))
        mixed = (state["a"].mean(1) @ state["u"])[:, 1:]
        for of, first, second in (
            ("attention", u, mixed), ("sublayer", v, v + z), ("sublayer without skip", v, z), ("block", v, after),
        ):  # fmt: skip
            change = token_norm(second - first)
            ratio = change / (token_norm(first) + token_variation(first))
            assert value(profile, "change", layer, of=of).value == pytest.approx(float(change.mean()), rel=1e-4)
            row = value(profile, "ratio", layer, of=of)
            assert row.value == pytest.approx(float(ratio.mean()), rel=1e-4)
            assert (row.n, row.kind) == (N, "estimate")
            assert row.low < row.value < row.high
            scaled = value(profile, "scaled_ratio", layer, of=of)
            assert scaled.value == pytest.approx(4 * row.value, rel=1e-6)
        assert value(profile, "norm", layer, of="block").value == pytest.approx(float(token_norm(v).mean()), rel=1e-5)
        variation = value(profile, "variation", layer, of="block").value
        assert variation == pytest.approx(float(token_variation(v).mean()), rel=1e-5)


def test_how_far_attention_looks(seen):
    _, blocks, profile = seen
    patches = blocks[1]["a"][..., 1:, 1:]
    patches = patches / patches.sum(-1, keepdim=True)
    apart = attention_distance(patches).mean(-1)  # images, heads
    row = value(profile, "attention_distance", "blocks.1", over="mean")
    assert row.value == pytest.approx(float(apart.mean()), rel=1e-4)
    nearest = value(profile, "attention_distance", "blocks.1", over="nearest head").value
    assert nearest == pytest.approx(float(apart.amin(1).mean()), rel=1e-4)
    uniform = value(profile, "attention_distance", "blocks.1", over="uniform")
    assert uniform.value == pytest.approx(float(attention_distance(uniform_attention(16)).mean()), rel=1e-9)
    mass = value(profile, "attention_mass", "blocks.1", radius=1).value
    assert mass == pytest.approx(float(attention_mass(patches, 1).mean()), rel=1e-4)
    arrays = profile["propagation"].arrays
    assert np.allclose(arrays["attention_distance"][1], apart.mean(0).numpy(), rtol=1e-4)
    # Every radius, head by head, beside what uniform attention would give.
    assert arrays["attention_mass_radii"][1].tolist() == [0, 1, 2, 3]
    every = mass_profile(patches).mean((0, 2))  # heads, radii
    assert np.allclose(arrays["attention_mass"][1], every.numpy(), rtol=1e-4)
    assert np.allclose(arrays["attention_mass_uniform"][1], mass_profile(uniform_attention(16)).mean(0).numpy())


def test_the_kernel(seen):
    _, blocks, profile = seen
    state = blocks[0]
    worst = value(profile, "row_sum_error", "blocks.0")
    assert (worst.kind, worst.low) == ("exact", None)
    assert worst.value == pytest.approx(float((state["a"].sum(-1) - 1).abs().max()), abs=1e-7)
    assert worst.value < 1e-5
    q, k = state["q"][:, :, 1:].double(), state["k"][:, :, 1:].double()
    kernel = (q @ k.mT / 6**0.5).exp()
    norm = torch.linalg.matrix_norm
    expected = (norm(kernel - kernel.mT) / (2 * norm(kernel))).mean()
    assert value(profile, "asymmetry", "blocks.0", of="kernel").value == pytest.approx(float(expected), rel=1e-4)
    patches = state["a"][..., 1:, 1:].double()
    patches = patches / patches.sum(-1, keepdim=True)
    other = (-torch.cdist(q, k).square() / (2 * 6**0.5)).softmax(-1)
    apart = (patches - other).abs().sum(-1).mean() / 2
    found = value(profile, "reading_distance", "blocks.0", to="gauss_qk").value
    assert found == pytest.approx(float(apart), rel=1e-3)
    uneven = (norm(patches - patches.mT) / (2 * norm(patches))).mean()
    assert value(profile, "asymmetry", "blocks.0", of="rows").value == pytest.approx(float(uneven), rel=1e-4)
    defect = offset_defect(patches.mean(1)).mean()
    assert value(profile, "offset_defect", "blocks.0").value == pytest.approx(float(defect), rel=1e-4)
    w = q - k
    other = (-torch.cdist(w, w).square() / (2 * 6**0.5)).softmax(-1)
    apart = (patches - other).abs().sum(-1).mean() / 2
    assert value(profile, "reading_distance", "blocks.0", to="rbf_w").value == pytest.approx(float(apart), rel=1e-3)
    shares = [value(profile, "norm_term", "blocks.0", of=of).value for of in ("query", "key", "difference")]
    assert sum(shares) == pytest.approx(1, rel=1e-6)
    sizes = torch.stack(
        [
            q.square().sum(-1).mean(-1) / 2,
            k.square().sum(-1).mean(-1) / 2,
            torch.cdist(q, k).square().mean((-1, -2)) / 2,
        ],
        -1,
    )
    assert shares == pytest.approx((sizes / sizes.sum(-1, keepdim=True)).mean((0, 1)).tolist(), rel=1e-3)


def test_rank_and_similarity(seen):
    _, blocks, profile = seen
    state = blocks[0]
    y, after = (state["v"] + state["z"])[:, 1:].double(), state["after"][:, 1:].double()

    def rank(tokens):
        sigma = torch.linalg.svdvals(tokens)
        return (sigma > 1e-3 * sigma[..., :1]).sum(-1)

    expected = (rank(torch.cat((y, after), 1)) - rank(y)).double().mean()
    assert value(profile, "added_rank", "blocks.0").value == pytest.approx(float(expected))
    table = profile["propagation"].arrays["similarity"]
    assert table.shape == (3, 3)
    assert np.allclose(table, table.T)
    assert np.allclose(np.diag(table), 1)
    for layer, pair, entry in (("blocks.0", "neighbours", (1, 0)), ("blocks.1", "neighbours", (2, 1)),
                               ("blocks.1", "first", (2, 0))):  # fmt: skip
        assert value(profile, "similarity", layer, pair=pair).value == pytest.approx(float(table[entry]))
    flat = [blocks[0]["v"][:, 1:].flatten(1)[:4], blocks[0]["after"][:, 1:].flatten(1)[:4]]
    few = Propagation(samples=4, kernels=0).measure(vit(), IMAGES, order="given")["propagation"].arrays["similarity"]
    assert few[0, 1] == pytest.approx(float(linear_cka(*flat, estimator="unbiased").detach()), abs=1e-3)


def test_without_skips_the_network_is_another_one(seen):
    network, _, profile = seen

    class Bare(nn.Module):
        """A block without the skip around its attention."""

        def __init__(self, block: Block) -> None:
            super().__init__()
            self.block = block

        def forward(self, x):
            y = self.block.attn(self.block.norm1(x))
            return y + self.block.mlp(self.block.norm2(y))

    tokens = states(network)[0]["v"]
    for place, block in enumerate(network.blocks):
        after = Bare(block)(tokens)
        change = token_norm((after - tokens)[:, 1:]).mean()
        row = value(profile, "change", f"blocks.{place}", of="block without skips")
        assert row.value == pytest.approx(float(change.detach()), rel=1e-4)
        tokens = after


# -- masked autoencoders --------------------------------------------------------------------------------------------


def test_a_decoder_shows_what_mask_tokens_do():
    network = mae()
    options = Propagation(samples=N, kernels=2, lemma=2)
    profile = options.measure(network, IMAGES, batch=4, order="given")
    same = options.measure(network, IMAGES, batch=10, order="given")
    for quantity, at in (("mask_mass", {"queries": "masked"}), ("lemma_share", {"construction": "restricted"})):
        row, other = (value(one, quantity, "decoder_blocks.0", **at) for one in (profile, same))
        assert row.value == pytest.approx(other.value, rel=1e-5)  # masks do not depend on the batch
    from lisse.run import Run

    run = Run(network, Dataset("x", IMAGES), order="given")
    noise = run.draw("propagation masks", 0, N, (16,), law="uniform")
    out = network(IMAGES, noise)
    hides = out["mask"].bool()
    tokens = network.filled(network.encode(IMAGES, noise.argsort(1)[:, :4]), out["ids_restore"])
    attention = network.decoder_blocks[0].attn
    q, k, v = attention.projected(network.decoder_blocks[0].norm1(tokens))
    a = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).detach()
    onto = (a[:, :, 1:, 1:] * hides[:, None, None, :]).sum(-1).mean(1)
    expected = torch.stack([one[mask].mean() for one, mask in zip(onto, hides, strict=True)]).mean()
    row = value(profile, "mask_mass", "decoder_blocks.0", queries="masked")
    assert row.value == pytest.approx(float(expected), rel=1e-4)
    expected = torch.stack([one[~mask].mean() for one, mask in zip(onto, hides, strict=True)]).mean()
    row = value(profile, "mask_mass", "decoder_blocks.0", queries="unmasked")
    assert row.value == pytest.approx(float(expected), rel=1e-4)
    shares: dict[str, list[float]] = {}
    for image in range(2):
        here = torch.cat((torch.zeros(1, dtype=torch.bool), hides[image]))
        found = [attention_residuals(a[image, h].double(), v[image, h].detach().double(), here) for h in range(2)]
        size = sum((a[image, h] @ v[image, h].detach())[here].norm(dim=-1).mean() for h in range(2))
        for name in ("restricted", "zeroed", "refitted", "simplex", "least_squares"):
            share = sum(getattr(one, name)[here].mean() for one in found) / size
            shares.setdefault(name, []).append(float(share))
    for name, each in shares.items():
        row = value(profile, "lemma_share", "decoder_blocks.0", construction=name)
        assert row.value == pytest.approx(sum(each) / 2, rel=1e-3, abs=1e-6), name
    assert (row.n, row.kind) == (2, "exact")
    row = value(profile, "span_residual", "decoder_blocks.0")
    assert row.value == pytest.approx(sum(shares["least_squares"]) / 2, rel=1e-3, abs=1e-6)
    painted = network.unpatchify(out["logits"]).detach()
    bounds = [interpolation_bound(painted[i], IMAGES[i], hides[i]) for i in (0, 1)]
    row = value(profile, "interpolation_constant", "decoder_blocks.1")
    assert row.value == pytest.approx(float(sum(bound.constant for bound in bounds) / 2), rel=1e-4)
    for of, each in (
        ("masked patches", [bound.left.max() for bound in bounds]),
        ("unmasked patches", [bound.unmasked for bound in bounds]),
        ("remainder", [bound.remainder for bound in bounds]),
    ):
        row = value(profile, "interpolation_error", "decoder_blocks.1", of=of)
        assert row.value == pytest.approx(float(sum(each) / 2), rel=1e-4), of
    assert any("one mask per image" in note for note in profile.notes)


def test_how_far_masked_patches_look_and_how_far_the_weights_of_25_reach():
    network = mae(decoder_heads=2)
    profile = Propagation(samples=N, kernels=2, lemma=2, radii=(1,)).measure(network, IMAGES, order="given")
    from lisse.run import Run

    noise = Run(network, Dataset("x", IMAGES), order="given").draw("propagation masks", 0, N, (16,), law="uniform")
    with torch.no_grad():
        out = network(IMAGES, noise)
        tokens = network.filled(network.encode(IMAGES, noise.argsort(1)[:, :4]), out["ids_restore"])
        q, k, v = network.decoder_blocks[0].attn.projected(network.decoder_blocks[0].norm1(tokens))
    a = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    hides = out["mask"].bool()
    by_head = torch.stack(
        [attention_distance(a[i][:, 1:, 1:], queries=hides[i], keys=~hides[i]).mean(-1) for i in range(N)]
    )  # images, heads
    at = {"queries": "masked, unmasked keys"}
    row = value(profile, "attention_distance", "decoder_blocks.0", over="mean", **at)
    assert row.value == pytest.approx(float(by_head.mean()), rel=1e-4)
    arrays = profile["propagation"].arrays
    assert np.allclose(arrays["attention_distance_masked_decoder"][0], by_head.mean(0).numpy(), rtol=1e-4)
    mass = torch.stack(
        [mass_profile(a[i][:, 1:, 1:], queries=hides[i], keys=~hides[i]).mean(1) for i in range(N)]
    ).mean(0)
    assert np.allclose(arrays["attention_mass_masked_decoder"][0], mass.numpy(), rtol=1e-4)
    even = torch.stack([mass_profile(uniform_attention(16), queries=one, keys=~one).mean(0) for one in hides])
    assert np.allclose(arrays["attention_mass_masked_uniform_decoder"][0], even.mean(0).numpy(), rtol=1e-5)
    distances, masses = [], []
    for i in range(2):
        masked = torch.cat((torch.zeros(1, dtype=torch.bool), hides[i]))
        for head in range(2):
            values = v[i, head].double()
            weights = span_weights((a[i, head].double() @ values)[masked], values[~masked])[:, 1:]  # no class token
            whole = torch.zeros(16, 16, dtype=torch.float64)
            whole[hides[i].nonzero(), (~hides[i]).nonzero()[:, 0]] = weights
            distances.append(attention_distance(whole, queries=hides[i], keys=~hides[i]).mean())
            masses.append(attention_mass(whole, 1, queries=hides[i], keys=~hides[i]).mean())
    at = {"queries": "masked, weights of (25)"}
    row = value(profile, "attention_distance", "decoder_blocks.0", over="mean", **at)
    assert row.value == pytest.approx(float(torch.stack(distances).mean()), rel=1e-4)
    assert row.n == 2
    row = value(profile, "attention_mass", "decoder_blocks.0", radius=1, **at)
    assert row.value == pytest.approx(float(torch.stack(masses).mean()), rel=1e-4)


def test_the_encoder_is_read_whole():
    network = mae()
    profile = FEW.measure(network, IMAGES)
    tokens = torch.cat(((network.cls_token + network.pos_embed[:, :1]).expand(N, -1, -1), network.embedded(IMAGES)), 1)
    expected = token_norm(tokens[:, 1:]).mean()
    assert value(profile, "norm", "blocks.0", of="block").value == pytest.approx(float(expected.detach()), rel=1e-5)
    assert network.training is False
    network.train()
    FEW.measure(network, IMAGES)
    assert all(module.training for module in network.modules())


def test_hugging_faces_autoencoder_gives_the_same():
    pytest.importorskip("transformers")
    network = mae()
    ours = FEW.measure(network, IMAGES)
    theirs = FEW.measure(to_huggingface(network), IMAGES)
    assert len(ours.rows) == len(theirs.rows)
    for row, other in zip(ours.rows, theirs.rows, strict=True):
        assert (row.quantity, row.layer, row.at) == (other.quantity, other.layer, other.at)
        assert row.value == pytest.approx(other.value, rel=1e-3, abs=1e-4)


def test_the_slope_in_n_is_that_of_its_points():
    profile = Propagation(samples=8, kernels=0, lemma=2, sides=(2, 4, 6)).measure(mae(), IMAGES, order="given")
    rows = [row for row in profile.rows if row.quantity == "lemma_slope"]
    assert {row.at["construction"] for row in rows} >= {"restricted", "zeroed", "simplex"}
    assert all(row.low <= row.value <= row.high for row in rows)
    # The same weights on other grids, written out: mean residuals of two images, then a line in logarithms.
    from lisse.run import Run

    run, sizes = Run(mae(), Dataset("x", IMAGES), order="given"), []
    for side in (2, 4, 6):
        other = mae(size=4 * side)  # sine-cosine positions of its own grid
        own = {name: weight for name, weight in mae().state_dict().items() if not name.endswith("pos_embed")}
        other.load_state_dict(own, strict=False)
        images = nn.functional.interpolate(IMAGES[:2], (4 * side, 4 * side), mode="bilinear", antialias=True)
        noise = run.draw(f"propagation side {side}", 0, 2, (side * side,), law="uniform")
        with torch.no_grad():
            out = other(images, noise)
            tokens = other.filled(other.encode(images, noise.argsort(1)[:, : side * side // 4]), out["ids_restore"])
            q, k, v = other.decoder_blocks[0].attn.projected(other.decoder_blocks[0].norm1(tokens))
        a = (q @ k.mT / 2).softmax(-1).double()  # heads of width 4
        left = []
        for i in range(2):
            here = torch.cat((torch.zeros(1, dtype=torch.bool), out["mask"][i].bool()))
            left += [attention_residuals(a[i, h], v[i, h].double(), here).restricted[here].mean() for h in range(2)]
        sizes.append(float(torch.stack(left).mean()))
    slope = np.polyfit(np.log([2, 4, 6]), np.log(sizes), 1)[0]
    row = value(profile, "lemma_slope", "decoder_blocks.0", construction="restricted", sides=3)
    assert row.value == pytest.approx(slope, rel=1e-3, abs=1e-4)
    with pytest.raises(ValueError, match="positions are not the sine-cosine ones"):
        Propagation(samples=8, kernels=0, lemma=2, sides=(2, 4, 6)).measure(mae(positions=False), IMAGES, order="given")
    network = mae()
    network.decoder_pos_embed.zero_()
    told = []
    with pytest.raises(ValueError, match=r"positions are not the sine-cosine ones, got others in the decoder"):
        Propagation(sides=(2, 4, 6)).measure(network, IMAGES, progress=told.append, order="given")
    assert not any("propagation" in event.task for event in told)  # before anything is read
    notes = Propagation(samples=8, kernels=0, sides=(2, 4, 6)).measure(vit(), IMAGES, order="given").notes
    assert any("No slope in n" in note for note in notes)


def test_the_symmetric_kernel_is_symmetric():
    profile = FEW.measure(vit(attention="rbf_w"), IMAGES)
    assert value(profile, "asymmetry", "blocks.0", of="kernel").value < 1e-6
    assert value(profile, "asymmetry", "blocks.0", of="rows").value > 1e-4
    assert value(profile, "reading_distance", "blocks.0", to="rbf_w").value < 1e-5


# -- other models ---------------------------------------------------------------------------------------------------


def test_words_lie_on_a_line_and_padding_is_not_data():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    torch.manual_seed(0)
    model = shaken(transformers.BertModel(config))
    ids = torch.randint(0, 50, (8, 9))
    mask = torch.ones(8, 9, dtype=torch.long)
    mask[4:, 6:] = 0
    profile = Propagation(kernels=4).measure(model, Dataset("t", {"input_ids": ids, "attention_mask": mask}))
    layer = "encoder.layer.0"
    entered = []

    def keep(_, args, out):
        entered.append(args[0])

    handle = model.encoder.layer[0].register_forward_hook(keep)
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
    handle.remove()
    sizes = [
        token_variation(x[:6] if short else x, grid=(1, 6 if short else 9))
        for x, short in zip(entered[0], [False] * 4 + [True] * 4, strict=True)
    ]
    row = value(profile, "variation", layer, of="block")
    assert row.value == pytest.approx(float(torch.stack(sizes).mean()), rel=1e-4)
    assert value(profile, "row_sum_error", layer).value < 1e-5
    assert value(profile, "asymmetry", layer, of="rows").n == 4


def test_texts_shorter_than_a_radius_are_near_altogether_and_have_their_own_uniform():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    lengths = torch.tensor([9, 2, 3, 9, 5, 9, 2, 9])
    mask = (torch.arange(9) < lengths[:, None]).long()
    data = Dataset("t", {"input_ids": torch.randint(0, 50, (8, 9)), "attention_mask": mask})
    profile = Propagation(radii=(1, 4), kernels=1).measure(model, data)
    for radius in (1, 4):
        even = [float(attention_mass(uniform_attention(k), radius, grid=(1, k)).mean()) for k in lengths.tolist()]
        row = value(profile, "attention_mass", "encoder.layer.0", radius=radius, over="uniform")
        assert row.value == pytest.approx(sum(even) / 8, rel=1e-9)
    assert profile["propagation"].arrays["attention_mass"].shape == (1, 2, 9)


def bert(**options):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=50,
        **{"intermediate_size": 24, **options},
    )  # fmt: skip
    torch.manual_seed(0)
    return shaken(transformers.BertModel(config))


def test_padding_changes_nothing():
    model = bert()
    ids = torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    padded = {"input_ids": nn.functional.pad(ids, (0, 3), value=7), "attention_mask": nn.functional.pad(mask, (0, 3))}
    options = Propagation(kernels=8, ablation=True)
    long = options.measure(model, Dataset("t", padded))
    short = options.measure(model, Dataset("t", {"input_ids": ids, "attention_mask": mask}))
    assert {row.quantity for row in long.rows} >= {"asymmetry", "reading_distance", "added_rank", "similarity"}
    assert len(long.rows) == len(short.rows)
    for row, other in zip(long.rows, short.rows, strict=True):
        assert (row.quantity, row.layer, row.at, row.n) == (other.quantity, other.layer, other.at, other.n)
        assert row.value == pytest.approx(other.value, rel=1e-3, abs=2e-6), (row.quantity, row.layer, row.at)
    for of in ("block", "block without skips"):  # the first block's input is the same with and without skips
        first = [value(long, name, "encoder.layer.0", of=of).value for name in ("norm", "variation")]
        assert first == pytest.approx(
            [value(long, name, "encoder.layer.0", of="block").value for name in ("norm", "variation")], rel=1e-6
        )


def test_padding_before_the_words_is_refused():
    ids = torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[3, :2] = 0
    with pytest.raises(ValueError, match=r"attention_mask must be ones and then zeros.*Pad on the right"):
        Propagation().measure(bert(), Dataset("t", {"input_ids": ids, "attention_mask": mask}))


def test_the_rank_of_a_block_with_its_norms_behind_is_that_of_its_feed_forward_network():
    model = bert(intermediate_size=2)
    ids = torch.randint(0, 50, (8, 5), generator=torch.Generator().manual_seed(1))
    profile = Propagation(kernels=8).measure(model, Dataset("t", {"input_ids": ids}))
    seen = {}
    block = model.encoder.layer[1]
    handles = [
        block.intermediate.dense.register_forward_pre_hook(lambda _, args: seen.update(fed=args[0].double())),
        block.output.dense.register_forward_hook(lambda _, args, out: seen.update(given=out.double())),
    ]
    with torch.no_grad():
        model(input_ids=ids)
    for handle in handles:
        handle.remove()
    x, y = seen["fed"], seen["fed"] + seen["given"]

    def rank(tokens):
        sigma = torch.linalg.svdvals(tokens)
        return (sigma > 1e-3 * sigma[..., :1]).sum(-1)

    expected = (rank(torch.cat((x, y), 1)) - rank(x)).double().mean()
    assert value(profile, "added_rank", "encoder.layer.1").value == pytest.approx(float(expected))
    assert expected <= 3  # two hidden units and a bias


def test_a_network_that_looks_back_is_compared_with_kernels_that_do():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=16)
    torch.manual_seed(0)
    model = shaken(transformers.GPT2Model(config))
    ids = torch.randint(0, 50, (8, 6))
    profile = Propagation(kernels=8).measure(model, Dataset("t", {"input_ids": ids}))
    with torch.no_grad():
        u = model.h[0].ln_1(model.wte(ids) + model.wpe(torch.arange(6)))
        q, k, _ = (
            part.unflatten(-1, (2, 8)).transpose(1, 2).double() for part in model.h[0].attn.c_attn(u).chunk(3, -1)
        )
    past = torch.ones(6, 6, dtype=torch.bool).triu(1)
    root = 8**0.5
    mine = (q @ k.mT / root).masked_fill(past, -torch.inf).softmax(-1)
    other = (-torch.cdist(q, k).square() / (2 * root)).masked_fill(past, -torch.inf).softmax(-1)
    expected = (mine - other).abs().sum(-1).mean() / 2
    row = value(profile, "reading_distance", "h.0", to="gauss_qk")
    assert row.value == pytest.approx(float(expected), rel=1e-3)
    spread = (k.square().sum(-1) / (2 * root)).std(-1, correction=0).mean()
    assert value(profile, "key_spread", "h.0").value == pytest.approx(float(spread), rel=1e-4)


def test_a_block_with_two_attentions_is_read_at_the_first():
    transformers = pytest.importorskip("transformers")
    from lisse.networks.zoo.text import EncoderDecoder

    config = transformers.BartConfig(
        d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=50, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = EncoderDecoder(shaken(transformers.BartForConditionalGeneration(config)))
    ids = torch.randint(5, 50, (9, 6), generator=torch.Generator().manual_seed(1))
    data = Dataset("t", {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    profile = Propagation(kernels=8, ablation=True).measure(model, data)
    blocks = [f"network.model.{part}.layers.{k}" for part, k in (("encoder", 0), ("decoder", 0), ("decoder", 1))]
    assert list(dict.fromkeys(row.layer for row in profile.rows)) == blocks
    for block in blocks:
        assert {row.n for row in profile.rows if row.layer == block and row.quantity == "change"} == {9}
    for block in blocks[1:]:
        note = f"Not read: {block}.encoder_attn, the second attention of its block {block}."
        assert note in profile.notes


def test_layers_of_unlike_heads_are_filled_up_with_nan():
    found = _stacked([np.ones((2, 3)), np.zeros((4, 1))])
    assert found.shape == (2, 4, 3)
    assert np.isnan(found).sum() == 6 + 8
    assert found[0, :2].sum() == 6


def test_any_transformer_by_torch_with_a_grid():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    tokens = torch.randn(N, 10, 8)
    line = FEW.measure(model, tokens)
    assert value(line, "variation", "layers.0", of="block").value == pytest.approx(
        float(token_variation(tokens, grid=(1, 10)).mean()), rel=1e-4
    )
    assert any("on a line" in note for note in line.notes)
    wide = Propagation(grid=(2, 5)).measure(model, tokens)
    assert value(wide, "variation", "layers.0", of="block").value == pytest.approx(
        float(token_variation(tokens, grid=(2, 5)).mean()), rel=1e-4
    )
    ratio, scaled = (value(wide, name, "layers.0", of="block").value for name in ("ratio", "scaled_ratio"))
    assert scaled == pytest.approx(10**0.5 * ratio, rel=1e-6)
    led = Propagation(grid=(3, 3)).measure(model, tokens)
    assert value(led, "variation", "layers.0", of="block").value == pytest.approx(
        float(token_variation(tokens[:, 1:]).mean()), rel=1e-4
    )
    assert any("left out" in note for note in led.notes)
    first = Propagation(grid=(3, 3), leading=0).measure(model, tokens)
    assert value(first, "variation", "layers.0", of="block").value == pytest.approx(
        float(token_variation(tokens[:, :9]).mean()), rel=1e-4
    )


def test_what_has_no_attention_is_not_measured():
    profile = Propagation().measure(zoo.build("lenet"), torch.rand(4, 3, 32, 32))
    assert profile.rows == ()
    assert "it reads attention, and" in profile.notes[0]
    profile = Propagation().measure(lisse.load_model("zoo:lenet"), torch.rand(4, 3, 32, 32))
    assert "it reads attention, and lenet has none" in profile.notes[0]


def test_part_of_the_patches_is_no_grid():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    with pytest.raises(ValueError, match=r"got 5 tokens .* 4 × 4 patches. Part of them is hidden"):
        Propagation().measure(transformers.ViTMAEModel(config).eval(), IMAGES)


# -- options --------------------------------------------------------------------------------------------------------


def test_it_is_offered_and_every_row_is_described():
    assert Propagation in ALL
    profile = Propagation(samples=8, kernels=2, lemma=1, sides=(2, 3, 4), ablation=True).measure(mae(), IMAGES)
    assert {quantity.name for quantity in Propagation.QUANTITIES} == {row.quantity for row in profile.rows}
    for quantity in Propagation.QUANTITIES:
        assert quantity.says.endswith(".")
        assert quantity.formula
        assert quantity.reference.startswith("[")


def test_the_first_rows_are_one_of_each_kind():
    rows = FEW.measure(vit(), IMAGES).rows
    sets = list(dict.fromkeys((row.quantity, row.where()) for row in rows))
    assert sets[:8] == [
        *((name, "of=block") for name in ("scaled_ratio", "ratio", "change", "norm", "variation")),
        ("similarity", "pair=neighbours"),
        ("attention_distance", "over=mean"),
        ("asymmetry", "of=kernel"),
    ]


def test_quick_has_no_intervals_and_samples_and_radii_are_taken():
    profile = Propagation(samples=6, radii=(0, 3), kernels=3).measure(vit(), IMAGES)
    assert all(row.low is None for row in profile.rows)
    assert value(profile, "ratio", "blocks.0", of="block").n == 6
    assert value(profile, "added_rank", "blocks.0").n == 3
    assert {row.at["radius"] for row in profile.rows if row.quantity == "attention_mass"} == {0, 3}
    assert not any(row.quantity == "added_rank" for row in Propagation(kernels=0).measure(vit(), IMAGES).rows)
    wide = Propagation(level=0.99, kernels=0).measure(vit(), IMAGES)
    narrow = Propagation(level=0.5, kernels=0).measure(vit(), IMAGES)
    a, b = (value(one, "ratio", "blocks.0", of="block") for one in (wide, narrow))
    assert a.high - a.low > b.high - b.low


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"samples": 0}, "samples must be a whole number of at least 1"),
        ({"level": 1.0}, r"level must lie in \(0, 1\)"),
        ({"radii": (-1,)}, "radii must be a whole number of at least 0"),
        ({"radii": (1.5,)}, r"radii must be a whole number of at least 0, got \(1.5,\)"),
        ({"sides": (2, 4, 6.5)}, "sides must be three or more"),
        ({"grid": (2,)}, r"grid must be \(rows, columns\), got \(2,\)"),
        ({"grid": (2.0, 2.5)}, r"grid must be \(rows, columns\), got \(2.0, 2.5\)"),
        ({"sides": (2, 4)}, "sides must be three or more"),
        ({"grid": (0, 3)}, r"grid must be \(rows, columns\)"),
        ({"leading": -1}, "leading must be a whole number of at least 0"),
        ({"kernels": -1}, "kernels must be a whole number of at least 0"),
        ({"lemma": -1}, "lemma must be a whole number of at least 0"),
    ],
)
def test_options_that_make_no_sense(options, match):
    with pytest.raises(ValueError, match=match):
        Propagation(**options)


def test_bad_runs_are_said():
    with pytest.raises(ValueError, match="left out for a masked autoencoder"):
        Propagation(grid=(4, 4)).measure(mae(), IMAGES)
    with pytest.raises(ValueError, match=r"grid must have at most as many places .* got \(9, 9\)"):
        Propagation(grid=(9, 9)).measure(vit(), IMAGES)
    large, images = zoo.build("vit_small", size=32, width=12, heads=2, depth=1).eval(), torch.rand(4, 3, 32, 32)
    with pytest.raises(ValueError, match=r"a place for every token .* got \(3, 5\) for 65 tokens .* leading=50"):
        Propagation(grid=(3, 5)).measure(large, images)
    assert any("50 tokens before" in note for note in Propagation(grid=(3, 5), leading=50).measure(large, images).notes)
    network = vit()
    with torch.no_grad():
        network.blocks[1].mlp.fc2.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"must be finite, got nan or inf at blocks.1 \(after\)"):
        Propagation().measure(network, IMAGES)


def test_a_loaded_model_is_measured_in_its_own_units():
    model = lisse.load_model(
        "zoo:mae_small?size=16&width=16&heads=2&depth=1&decoder_width=8&decoder_heads=2&decoder_depth=1"
    )
    profile = FEW.measure(model, IMAGES)
    network = model.network
    normal = (IMAGES - model.mean) / model.std
    expected = token_norm(network.embedded(normal)).mean()
    assert value(profile, "norm", "blocks.0", of="block").value == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_shorter_line_reads_the_first_places_of_the_longest():
    whole, alone = Rings((1, 20), (1, 4), (1, 20)), Rings((1, 9), (1, 4), (1, 20))
    line, matrix = whole.first(9), torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    hidden = torch.arange(9).expand(2, -1) % 2 == 0
    torch.testing.assert_close(line.of(matrix), alone.of(matrix))
    torch.testing.assert_close(line.masked(matrix, hidden), alone.masked(matrix, hidden))
    torch.testing.assert_close(line.uniform, alone.uniform)
    assert line.columns.untyped_storage().data_ptr() == whole.columns.untyped_storage().data_ptr()  # no copy is kept
