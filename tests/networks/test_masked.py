from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse import load_model
from lisse.maths.integral import attention_kernel
from lisse.maths.variation import patchify
from lisse.models import save_checkpoint
from lisse.networks import masked, zoo
from lisse.networks.attention import weights_of
from lisse.networks.decoder_frames import decoder_frames
from lisse.networks.zoo.vit import SplitHeadAttention

SMALL = {
    "size": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "decoder_width": 8, "decoder_heads": 2,
    "decoder_depth": 2,
}  # fmt: skip


def small(**options):
    return zoo.build("mae_small", **{**SMALL, **options}).eval()


def images(n=3, size=16, channels=3):
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def noise(n=3, p=16, seed=2):
    return torch.rand(n, p, generator=torch.Generator().manual_seed(seed))


def shaken(network):
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    return network


# -- patches and positions --------------------------------------------------------------------------------------------


def test_patches_are_those_of_the_mathematics_and_come_back():
    network, x = small(), images()
    patches = network.patchify(x)
    assert patches.shape == (3, 16, 48)
    assert torch.equal(network.unpatchify(patches), x)
    assert torch.equal(patches[1], patchify(x[1], 4))


def test_a_position_holds_its_column_then_its_row():
    found = masked.sincos_positions(3, 8).double()
    for row in range(3):
        for column in range(3):
            angles = [column, column / 100, row, row / 100]  # 10000^(-1/2) = 1/100
            expected = [
                math.sin(angles[0]), math.sin(angles[1]), math.cos(angles[0]), math.cos(angles[1]),
                math.sin(angles[2]), math.sin(angles[3]), math.cos(angles[2]), math.cos(angles[3]),
            ]  # fmt: skip
            assert found[3 * row + column].tolist() == pytest.approx(expected, abs=1e-6)


def test_sizes_are_the_published_ones():
    with torch.device("meta"):
        counts = {name: sum(p.numel() for p in zoo.NETWORKS[name]().parameters()) for name in ("mae_small", "mae_base")}
    assert counts == {"mae_small": 3_503_536, "mae_base": 111_655_680}


# -- masks and loss ---------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(ratio=st.floats(0.1, 0.9), seed=st.integers(0, 1000))
def test_the_patches_with_the_largest_noise_are_hidden_and_the_loss_is_theirs(ratio, seed):
    network, x = small(), images(2)
    drawn = noise(2, seed=seed)
    out = network(x, drawn, ratio)
    kept = int(16 * (1 - ratio))
    assert (out["mask"] == 0).sum(1).tolist() == [kept, kept]
    for one, hides in zip(drawn, out["mask"].bool(), strict=True):
        assert one[hides].min() > one[~hides].max()
    error = (out["logits"] - network.patchify(x)).square().mean(-1)
    assert out["loss"].item() == pytest.approx(float(error[out["mask"].bool()].mean()), rel=1e-5)


def test_hidden_pixels_do_not_reach_the_output():
    network, x = shaken(small()), images()
    out = network(x, noise())
    changed = network.patchify(x).clone()
    changed[out["mask"].bool()] = 7.0
    other = network(network.unpatchify(changed), noise())
    assert torch.equal(out["logits"], other["logits"])


def test_normalised_pixels_are_each_patch_less_its_mean_over_its_deviation():
    network, x = small(norm_pix=True), images()
    target = network.target(x)
    assert target.mean(-1).abs().max() < 1e-5
    assert target.std(-1).sub(1).abs().max() < 1e-3
    assert not torch.allclose(target, small().target(x))


def test_evaluation_has_one_mask_and_training_draws_anew():
    network, x = small(), images(4)
    masks = network(x)["mask"]
    assert bool((masks == masks[0]).all())
    assert torch.equal(masks, network(x)["mask"])
    network.train()
    torch.manual_seed(0)
    assert not torch.equal(network(x)["mask"], network(x)["mask"])


def test_without_positions_all_masked_outputs_coincide():
    out = shaken(small(positions=False))(images(), noise())
    for logits, hides in zip(out["logits"], out["mask"].bool(), strict=True):
        assert torch.allclose(logits[hides], logits[hides][:1].expand_as(logits[hides]), atol=1e-5)
    other = shaken(small())(images(), noise())
    assert other["logits"][0][other["mask"][0].bool()].std(0).max() > 1e-3


def test_without_decoder_blocks_masked_patches_know_nothing_of_the_image():
    network = shaken(small(decoder_depth=0))
    a, b = network(images(1), noise(1)), network(1 - images(1), noise(1))
    hides = a["mask"][0].bool()
    assert torch.allclose(a["logits"][0, hides], b["logits"][0, hides], atol=1e-6)


# -- Hugging Face -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"norm_pix": True}, {"decoder_depth": 0}, {"mask_ratio": 0.5, "eps": 1e-12}])
def test_hugging_face_gives_the_same_with_our_weights(options):
    pytest.importorskip("transformers")
    ours = shaken(small(**options))
    theirs = masked.to_huggingface(ours)
    x, drawn = images(), noise()
    a, b = ours(x, drawn), theirs(pixel_values=x, noise=drawn)
    assert (a["logits"] - b.logits).abs().max() < 1e-5
    assert a["loss"].item() == pytest.approx(b.loss.item(), rel=1e-5)
    assert torch.equal(a["mask"], b.mask)
    assert torch.equal(a["ids_restore"], b.ids_restore)
    assert theirs.config.norm_pix_loss is options.get("norm_pix", False)


def test_we_give_the_same_with_hugging_face_weights_and_back():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        decoder_hidden_size=8, decoder_intermediate_size=32, decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2, norm_pix_loss=True,
    )  # fmt: skip
    theirs = shaken(transformers.ViTMAEForPreTraining(config).eval())
    ours = masked.from_huggingface(theirs)
    x, drawn = images(), noise()
    assert (ours(x, drawn)["logits"] - theirs(pixel_values=x, noise=drawn).logits).abs().max() < 1e-5
    again = masked.to_huggingface(ours).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in theirs.state_dict().items())


def test_other_hidden_widths_convert_both_ways():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        decoder_hidden_size=8, decoder_intermediate_size=64, decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
    )  # fmt: skip
    theirs = shaken(transformers.ViTMAEForPreTraining(config).eval())
    ours = masked.from_huggingface(theirs)
    assert (ours.hidden, ours.decoder_hidden) == (24, 64)
    x, drawn = images(), noise()
    expected = theirs(pixel_values=x, noise=drawn).logits
    assert (ours(x, drawn)["logits"] - expected).abs().max() < 1e-5
    again = masked.to_huggingface(ours)
    assert (again.config.intermediate_size, again.config.decoder_intermediate_size) == (24, 64)
    assert (again(pixel_values=x, noise=drawn).logits - expected).abs().max() < 1e-5
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in theirs.state_dict().items())
    with pytest.raises(ValueError, match=r"got hidden_act=relu. .* the other instruments take it as it is"):
        masked.from_huggingface(transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(
            image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=24, hidden_act="relu", decoder_hidden_size=8, decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
        )))  # fmt: skip


def test_hugging_faces_older_names_are_read():
    pytest.importorskip("transformers")
    ours = shaken(small())
    theirs = masked.to_huggingface(ours)
    old = {}
    for name, value in theirs.state_dict().items():
        name = name.replace("vit.layers", "vit.encoder.layer")
        for new, before in zip(masked.BLOCKS[0].values(), masked.BLOCKS[1].values(), strict=True):
            name = name.replace(f".{new}.", f".{before}.")
        old[name] = value
    assert "vit.encoder.layer.0.attention.attention.query.weight" in old
    assert "decoder.decoder_layers.1.output.dense.bias" in old
    found = masked._ours(old, small())
    assert all(torch.equal(found[name], value) for name, value in ours.state_dict().items())


# -- attention in other readings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("reading", ["dot", "gauss_qk", "rbf_w", "eq11_literal"])
def test_a_reading_is_the_kernel_of_the_mathematics(reading, qk_norm):
    torch.manual_seed(0)
    layer = SplitHeadAttention(12, 3, reading=reading, qk_norm=qk_norm).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    q, k, v = layer.qkv(x).reshape(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    if qk_norm:
        q, k = (torch.nn.functional.layer_norm(part, (4,)) for part in (q, k))
    kernel = attention_kernel(q, k, kind=reading)
    expected = layer.proj((kernel.matrix @ v).transpose(1, 2).reshape(2, 7, 12))
    assert torch.allclose(layer(x), expected, atol=1e-12)
    layer.fused = True
    assert torch.allclose(layer(x), expected, atol=1e-10)


def test_readings_differ_and_their_bounds_are_not_those_of_the_dot_product():
    outputs = {kind: small(attention=kind)(images(), noise())["logits"] for kind in ("dot", "rbf_w", "eq11_literal")}
    assert not torch.allclose(outputs["dot"], outputs["rbf_w"])
    assert not torch.allclose(outputs["rbf_w"], outputs["eq11_literal"])
    assert weights_of(SplitHeadAttention(8, 2)) is not None
    assert weights_of(SplitHeadAttention(8, 2, reading="rbf_w")) is None
    assert weights_of(SplitHeadAttention(8, 2, qk_norm=True)) is None


# -- files and frames -------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_also_in_half_precision(tmp_path):
    model = load_model("zoo:mae_small?size=16&width=16&heads=2&depth=1&decoder_width=8&decoder_heads=2&decoder_depth=1")
    x = images()
    before = model(x)
    save_checkpoint(model, tmp_path / "a.safetensors")
    assert torch.equal(load_model(str(tmp_path / "a.safetensors"))(x), before)
    save_checkpoint(model.half(), tmp_path / "b.safetensors")
    after = load_model(str(tmp_path / "b.safetensors"))
    assert next(after.parameters()).dtype == torch.float32
    assert torch.allclose(after(x), before, atol=2e-2)


@pytest.mark.parametrize("hugging_face", [False, True])
def test_the_last_frame_is_the_models_own_output(hugging_face):
    network = shaken(small())
    drawn, x = noise(1)[0], images(1)[0]
    model = network
    if hugging_face:
        pytest.importorskip("transformers")
        model = masked.to_huggingface(network)
    film = decoder_frames(model, x, noise=drawn)
    out = network(x[None], drawn[None])
    assert torch.allclose(film.logits, out["logits"][0], atol=1e-5)
    assert torch.allclose(film.frames[-1], network.unpatchify(out["logits"])[0], atol=1e-5)
    assert torch.equal(film.hidden, out["mask"][0].bool())
    assert film.frames.shape == (3, 3, 16, 16)
    assert float(film.errors[-1]) == pytest.approx(math.sqrt(out["loss"].item()), rel=1e-4)
    assert bool(torch.isnan(network.patchify(film.visible[None])[0, film.hidden]).all())
    assert not film.normalised_pixels
    assert not torch.allclose(film.frames[0], film.frames[1])


def test_arrays_are_taken_where_tensors_are():
    network, drawn, x = shaken(small()), noise(1)[0], images(1)[0]
    film, same = decoder_frames(network, x, noise=drawn), decoder_frames(network, x.numpy(), noise=drawn.numpy())
    assert torch.equal(film.frames, same.frames)
    assert torch.equal(film.hidden, same.hidden)


def test_normalised_pixels_are_recognised_and_put_back():
    network = small(norm_pix=True)
    film = decoder_frames(network, images(1)[0], seed=3)
    assert film.normalised_pixels
    own = network.patchify(images(1))
    expected = film.logits * (own.var(-1, keepdim=True) + 1e-6).sqrt() + own.mean(-1, keepdim=True)
    assert torch.allclose(network.patchify(film.frames[-1:])[0], expected[0], atol=1e-5)
    other = decoder_frames(network, images(1)[0], seed=4)
    assert not torch.equal(film.hidden, other.hidden)


def test_frames_of_a_loaded_model_are_in_the_units_of_the_image():
    model = load_model(
        "zoo:mae_small?size=16&width=16&heads=2&depth=1&decoder_width=8&decoder_heads=2&decoder_depth=1&mean=cifar10"
    )
    film = decoder_frames(model, images(1)[0])
    network = masked.masked_network(model)
    normal = (images(1) - model.mean) / model.std
    assert torch.allclose(film.image, images(1)[0])
    restored = network.unpatchify(film.logits[None]) * model.std + model.mean
    assert torch.allclose(film.frames[-1], restored[0], atol=1e-5)
    assert normal.shape == (1, 3, 16, 16)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mask_ratio": 0.0}, r"mae_small: mask_ratio must lie in \(0, 1\), got 0.0"),
        ({"mask_ratio": 1.0}, r"mask_ratio must lie in \(0, 1\), got 1.0"),
        ({"mask_ratio": 0.99}, r"must leave at least one of the 16 patches visible"),
        ({"size": 18}, r"size must be a multiple of patch \(4\), got 18. Use size=16"),
        ({"width": 18, "heads": 3}, r"width must be a multiple of 4 for sine-cosine positions, got 18"),
        ({"decoder_heads": 3}, r"decoder_width must be a multiple of decoder_heads"),
        ({"decoder_depth": -1}, r"decoder_depth must lie in 0..1000"),
    ],
)
def test_what_cannot_be_built_is_said(options, match):
    with pytest.raises(ValueError, match=match):
        small(**options)


def test_what_cannot_be_fed_is_said():
    network = small()
    with pytest.raises(ValueError, match=r"images must have shape \[n, 3, 16, 16\], got \[2, 3, 18, 18\]"):
        network(torch.rand(2, 3, 18, 18))
    with pytest.raises(ValueError, match=r"noise must have shape \[3, 16\]"):
        network(images(), noise(3, 9))
    with pytest.raises(ValueError, match=r"mask_ratio must lie in \(0, 1\), got 1.5"):
        network(images(), noise(), 1.5)
    with pytest.raises(ValueError, match="patches must have shape"):
        network.unpatchify(torch.zeros(1, 9, 48))
    with pytest.raises(TypeError, match="must be a masked autoencoder, got Linear"):
        decoder_frames(torch.nn.Linear(2, 2), images(1)[0])
    with pytest.raises(ValueError, match=r"image must have shape \[3, 16, 16\]"):
        decoder_frames(network, torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match=r"noise must have shape \[16\], a number per patch, got \[10\]"):
        decoder_frames(network, images(1)[0], noise=torch.rand(10))
    with pytest.raises(ValueError, match="decoder_frames: noise must be finite"):
        decoder_frames(network, images(1)[0], noise=torch.full((16,), torch.nan))
    with pytest.raises(TypeError, match=r"must be a tensor of floats .*, got torch.uint8. Divide pixels .* by 255"):
        decoder_frames(network, (255 * images(1)[0]).to(torch.uint8))
    with pytest.raises(TypeError, match=r"must be a tensor of floats .*, got uint8"):
        decoder_frames(network, (255 * images(1)[0]).to(torch.uint8).numpy())
    with pytest.raises(TypeError, match=r"must be a tensor of floats .*, got str"):
        decoder_frames(network, "photo.png")
    with pytest.raises(ValueError, match="MaskedAutoencoder: noise must be finite, got NaN"):
        network(images(), noise().index_fill(1, torch.tensor([3]), torch.nan))
    with pytest.raises(TypeError, match="must be a ViTMAEForPreTraining, got Linear"):
        masked.from_huggingface(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="ordinary attention, got 'rbf_w'"):
        masked.to_huggingface(small(attention="rbf_w"))
    with pytest.raises(ValueError, match=r"masks: mask_ratio must lie in \(0, 1\)"):
        masked.masks(2, 16, ratio=0)


def test_a_vision_transformer_refuses_images_that_do_not_fit():
    network = zoo.build("vit_small", size=8, patch=2, width=8, heads=2, depth=1)
    with pytest.raises(ValueError, match=r"multiples of patch=2, got \[1, 3, 7, 8\]"):
        network(torch.rand(1, 3, 7, 8))
    with pytest.raises(ValueError, match=r"must give 16 patches, got 9 from \[1, 3, 6, 6\]"):
        network(torch.rand(1, 3, 6, 6))
