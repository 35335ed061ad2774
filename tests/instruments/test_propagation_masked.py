"""What Propagation reads in decoders when all heads share their weights, and how its groups of samples are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lisse.data import Dataset
from lisse.instruments import Propagation
from lisse.maths.attention_distance import attention_distance, attention_mass
from lisse.maths.similarity import CKAStream
from lisse.networks import masked, zoo
from lisse.run import Run

IMAGES = torch.rand(66, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TOGETHER = "masked, all heads together"


def mae(**options):
    wanted = {
        "size": 16, "patch": 4, "width": 12, "heads": 2, "depth": 1, "decoder_width": 8, "decoder_heads": 2,
        "decoder_depth": 2, **options,
    }  # fmt: skip
    network = zoo.build("mae_small", **wanted)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return network.eval()


def rows(profile, quantity, layer="decoder_blocks.0", **at):
    return [row for row in profile.rows if (row.quantity, row.layer, dict(row.at)) == (quantity, layer, at)]


def first_decoder_block(network, n):
    """Attention [n, M, t, t], values [n, M, t, h] and masked tokens [n, t] of the first decoder block."""
    noise = Run(network, Dataset("x", IMAGES)).draw("propagation masks", 0, n, (16,), law="uniform")
    with torch.no_grad():
        out = network(IMAGES[:n], noise)
        tokens = network.filled(
            network.encode(IMAGES[:n], noise.argsort(1)[:, : network.visible_count()]), out["ids_restore"]
        )
        block = network.decoder_blocks[0]
        q, k, v = block.attn.projected(block.norm1(tokens))
    a = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).double()
    return a, v.double(), torch.cat((torch.zeros(n, 1), out["mask"]), 1).bool()


def test_all_heads_together_have_one_set_of_weights_in_the_full_width():
    network = mae()
    profile = Propagation(samples=10, kernels=0, lemma=3, radii=(1,)).measure(network, IMAGES, order="given")
    a, v, hides = first_decoder_block(network, 3)
    shares, far, near = [], [], []
    for image in range(3):
        here = hides[image]
        values = np.concatenate([v[image, head].numpy() for head in range(2)], 1)
        output = np.concatenate([(a[image, head] @ v[image, head]).numpy() for head in range(2)], 1)
        weights = np.linalg.lstsq(values[~here].T, output[here].T, rcond=None)[0].T
        left = output[here] - weights @ values[~here]
        shares.append(np.linalg.norm(left, axis=1).mean() / np.linalg.norm(output[here], axis=1).mean())
        whole = torch.zeros(16, 16, dtype=torch.float64)
        whole[here[1:].nonzero(), (~here[1:]).nonzero()[:, 0]] = torch.from_numpy(weights[:, 1:])
        chosen = {"queries": here[1:], "keys": ~here[1:]}
        far.append(float(attention_distance(whole, **chosen).mean()))
        near.append(float(attention_mass(whole, 1, **chosen).mean()))
    (row,) = rows(profile, "span_residual", queries="masked, all heads together")
    assert row.value == pytest.approx(np.mean(shares), rel=1e-4)
    assert (row.n, row.value > 0.01) == (3, True)
    at = {"queries": "masked, weights of (25), all heads together"}
    (row,) = rows(profile, "attention_distance", over="mean", **at)
    assert row.value == pytest.approx(np.mean(far), rel=1e-4)
    (row,) = rows(profile, "attention_mass", radius=1, **at)
    assert row.value == pytest.approx(np.mean(near), rel=1e-4)
    assert not rows(profile, "attention_distance", over="nearest head", **at)


@pytest.mark.parametrize(
    ("options", "trivial"),
    [
        ({"decoder_width": 16, "decoder_heads": 2}, []),  # 5 seen tokens, heads of 8
        (
            {"decoder_width": 20, "decoder_heads": 4},
            ["Head by head (25) says nothing: 5 tokens are seen and a head is 5"],
        ),
        (
            {"decoder_width": 8, "decoder_heads": 2},
            ["Head by head (25) says nothing: 5 tokens are seen and a head is 4"],
        ),
        (
            {"decoder_width": 8, "decoder_heads": 2, "mask_ratio": 0.5},  # 9 of 17
            ["Head by head (25) says nothing: 9", "(25) says nothing even for all heads together: 9 tokens are seen"],
        ),
    ],
)
def test_a_span_that_is_everything_is_said(options, trivial):
    profile = Propagation(samples=8, kernels=0).measure(mae(**options), IMAGES)
    told = [note for note in profile.notes if "(25) says nothing" in note]
    assert len(told) == len(trivial)
    assert all(note.startswith(start) for note, start in zip(told, trivial, strict=True))
    (by_head,), (whole,) = rows(profile, "span_residual"), rows(profile, "span_residual", queries=TOGETHER)
    assert (by_head.value < 1e-10) == (len(trivial) > 0)
    assert (whole.value < 1e-10) == (len(trivial) > 1)


def test_the_lemma_has_intervals_by_default_and_says_where_it_has_none():
    profile = Propagation(samples=8, kernels=0).measure(mae(), IMAGES)
    for quantity, at in (
        ("lemma_share", {"construction": "restricted"}),
        ("lemma_residual", {"construction": "simplex"}),
        ("span_residual", {"queries": TOGETHER}),
    ):
        (row,) = rows(profile, quantity, **at)
        assert (row.kind, row.n) == ("estimate", 8)
        assert row.low < row.high
    assert not any("too few" in note for note in profile.notes)
    notes = Propagation(samples=8, kernels=3, lemma=1).measure(mae(), IMAGES).notes
    assert any(note.startswith("Kernels and ranks: 3 images are too few for intervals") for note in notes)
    assert any(note.startswith("Lemma 6.1: 1 image is too few for intervals") for note in notes)
    vit = zoo.build("vit_small", size=16, patch=4, width=8, heads=2, depth=1)
    assert not any("Lemma" in note for note in Propagation(samples=8, lemma=1).measure(vit, IMAGES).notes)


def test_similarity_does_not_depend_on_the_batch():
    network, look = mae(), Propagation(samples=66, kernels=0, lemma=0)
    found = {batch: look.measure(network, IMAGES, batch=batch, order="given") for batch in (100, 7, 3, 1)}
    whole = found[100]
    table = whole["propagation"].arrays["similarity_encoder"]
    assert np.isfinite(table).all()
    for profile in found.values():
        for part in ("encoder", "decoder"):
            other = profile["propagation"].arrays[f"similarity_{part}"]
            assert np.allclose(other, whole["propagation"].arrays[f"similarity_{part}"], rtol=1e-6, atol=1e-7)
        kinds = {row.kind for row in profile.rows if row.quantity == "similarity"}
        assert kinds == {"estimate"}
        assert any("similarity: the last 2 of 66 samples are left out" in note for note in profile.notes)
    # Eight groups of eight, written out.
    stream = CKAStream()
    with torch.no_grad():
        tokens = torch.cat(
            ((network.cls_token + network.pos_embed[:, :1]).expand(66, -1, -1), network.embedded(IMAGES)), 1
        )
        layers = [tokens[:, 1:].flatten(1), network.blocks[0](tokens)[:, 1:].flatten(1)]
    for start in range(0, 64, 8):
        stream.update([layer[start : start + 8] for layer in layers])
    assert np.allclose(table, stream.value().numpy(), rtol=1e-5)


def test_a_killed_run_goes_on_with_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "patience", 0.0)
    look, network, events = Propagation(samples=18, kernels=6, lemma=3, sides=(2, 4, 6)), mae(), []
    expected = look.measure(network, IMAGES, batch=5, progress=events.append)
    tasks = [event.task for event in events]
    for moment in (tasks.index("propagation: encoder") + 1, tasks.index("propagation: decoder") + 2):
        ticks = iter(range(len(events)))

        def listen(event, ticks=ticks, moment=moment):
            if next(ticks) == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            look.measure(network, IMAGES, batch=5, cache=tmp_path / str(moment), progress=listen)
        profile = look.measure(network, IMAGES, batch=5, cache=tmp_path / str(moment))
        assert [repr(row) for row in profile.rows] == [repr(row) for row in expected.rows]
        assert profile.notes == expected.notes


def test_a_rest_of_four_is_a_group_of_its_own():
    profile = Propagation(samples=12, kernels=0, lemma=0).measure(mae(), IMAGES, batch=5)
    whole = Propagation(samples=12, kernels=0, lemma=0).measure(mae(), IMAGES)
    tables = [one["propagation"].arrays["similarity_decoder"] for one in (profile, whole)]
    assert np.allclose(*tables, rtol=1e-6, atol=1e-7)
    assert not any("left out, for it" in note for note in profile.notes)
    note = "similarity has no interval: 12 samples make 3 groups of 4, and it needs 8 (32 samples)."
    assert note in profile.notes
    few = Propagation(samples=3, kernels=0, lemma=0).measure(mae(), IMAGES)
    assert "No similarity: it needs 4 samples, got 3." in few.notes
    assert not [row for row in few.rows if row.quantity == "similarity"]


def test_hugging_faces_autoencoder_with_other_hidden_widths_is_measured_and_on_other_grids():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        image_size=16, patch_size=4, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20,
        decoder_hidden_size=8, decoder_intermediate_size=64, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.ViTMAEForPreTraining(config).eval()
    with torch.no_grad():  # some versions leave positions at zero
        theirs.vit.embeddings.position_embeddings[0, 1:] = masked.sincos_positions(4, 12)
        theirs.decoder.decoder_pos_embed[0, 1:] = masked.sincos_positions(4, 8)
    look = Propagation(samples=8, kernels=2, lemma=2, sides=(2, 4, 6))
    ours = look.measure(masked.from_huggingface(theirs), IMAGES)
    for row, other in zip(ours.rows, look.measure(theirs, IMAGES).rows, strict=True):
        assert (row.quantity, row.layer, row.at) == (other.quantity, other.layer, other.at)
        assert row.value == pytest.approx(other.value, rel=1e-3, abs=1e-4)
    assert any(row.quantity == "lemma_slope" for row in ours.rows)


def test_advice_is_that_of_the_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    swin, images = transformers.SwinModel(config).eval(), torch.rand(4, 3, 32, 32)
    with pytest.raises(ValueError, match=r"16 tokens .* Part of them is merged .*: pass grid=\(rows, columns\)"):
        Propagation(kernels=0).measure(swin, images)
    assert Propagation(kernels=0, grid=(4, 4)).measure(swin, images).rows
    encoder = transformers.ViTMAEModel(
        transformers.ViTMAEConfig(
            image_size=16, patch_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    )
    with pytest.raises(ValueError, match="Part of them is hidden: give the whole ViTMAEForPreTraining"):
        Propagation(kernels=0).measure(encoder.eval(), IMAGES[:4])


def test_a_copy_is_made_only_where_it_is_read(monkeypatch):
    pytest.importorskip("transformers")
    theirs, data, copies = masked.to_huggingface(mae()), Dataset("x", IMAGES[:4]), []
    whole = masked.from_huggingface
    monkeypatch.setattr(masked, "from_huggingface", lambda model: copies.append(1) or whole(model))
    assert Propagation().fits(Run(theirs, data)) is None
    assert masked.holds_masked(theirs)
    assert not masked.holds_masked(torch.nn.Linear(2, 2))
    assert not copies
    profile = Propagation(kernels=0, lemma=0).measure(theirs, data)
    assert len(copies) == 1
    assert not any(name.startswith("filmstrip/") for name in profile["propagation"].arrays)
    (name,) = Propagation().pictures(Run(theirs, data))
    assert name.startswith("filmstrip/")
    assert len(copies) == 2
