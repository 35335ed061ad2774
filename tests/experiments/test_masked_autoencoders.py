from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch

from lisse.data import load_data
from lisse.models import load_model
from lisse.networks import zoo
from lisse.profile import Row
from lisse_experiments import Task, form, study
from lisse_experiments.masked_autoencoders import networks, tables
from lisse_experiments.masked_autoencoders.pretrain import Work, pretrained, side_by_side
from lisse_experiments.masked_autoencoders.probe import features, linear_probe
from lisse_experiments.masked_autoencoders.reconstruction import (
    BestLinear,
    PrincipalComponents,
    errors,
    hidden,
    mean_filled,
    nearest_filled,
    noise_for,
    painted,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# -- ways of painting -----------------------------------------------------------------------------------------------


def test_the_mean_is_that_of_the_visible_pixels_of_a_channel():
    patches = torch.rand(2, 4, 6, generator=generator())  # 3 pixels of 2 channels
    mask = torch.tensor([[True, True, False, False], [True, False, True, True]])
    found = mean_filled(patches, mask, 2)
    seen = patches[1, 1].reshape(3, 2).mean(0)
    assert torch.allclose(found[1, 0].reshape(3, 2), seen.expand(3, 2))
    assert torch.allclose(found[0, 0, 1::2], patches[0, 2:].reshape(-1, 2)[:, 1].mean().expand(3))


def test_the_nearest_visible_patch_is_copied():
    patches = torch.arange(9.0)[None, :, None].expand(1, 9, 2)
    mask = torch.ones(1, 9, dtype=torch.bool)
    mask[0, [0, 8]] = False
    found = nearest_filled(patches, mask, 3)[0, :, 0]
    assert found.tolist() == [0, 0, 0, 0, 0, 8, 0, 8, 8]  # the first of two that are as near


def test_principal_components_are_the_conditional_mean_of_a_gaussian():
    basis = torch.randn(2, 8, generator=generator(1), dtype=torch.float64)
    data = torch.randn(4000, 2, generator=generator(2), dtype=torch.float64) @ basis
    data = data + 0.3 * torch.randn(data.shape, generator=generator(3), dtype=torch.float64) + 1.0
    patches = data.reshape(-1, 4, 2)
    mask = torch.zeros(4000, 4, dtype=torch.bool)
    mask[:, :2] = True
    fitted = PrincipalComponents(patches, mask)
    k = 2
    found = fitted.filled(patches[:5], mask[:5], k).reshape(5, 8)
    rest = fitted.values[k:].mean()
    covariance = fitted.vectors[:, :k] @ torch.diag(fitted.values[:k] - rest) @ fitted.vectors[:, :k].T
    covariance = covariance + rest * torch.eye(8, dtype=torch.float64)
    gain = covariance[:4, 4:] @ torch.linalg.inv(covariance[4:, 4:])
    expected = fitted.mean[:4] + (data[:5, 4:] - fitted.mean[4:]) @ gain.T
    assert torch.allclose(found[:, :4], expected, atol=1e-8)


def test_the_best_linear_estimate_is_the_regression_on_the_visible_pixels():
    mixed = torch.randn(6, 12, generator=generator(1), dtype=torch.float64)
    data = torch.randn(3000, 6, generator=generator(2), dtype=torch.float64) @ mixed
    data = data + 0.5 * torch.randn(data.shape, generator=generator(3), dtype=torch.float64) + 2.0
    patches = data.reshape(-1, 4, 3)
    hide = torch.tensor([[True, False, True, False], [False, False, True, True], [True, True, False, False]])
    found = BestLinear(patches).filled(patches[:3], hide, batch=2)
    for one in range(3):
        seen = (~hide[one]).repeat_interleave(3)
        known = torch.cat([data[:, seen], torch.ones(3000, 1, dtype=torch.float64)], 1)
        expected = known[one] @ torch.linalg.lstsq(known, data[:, ~seen]).solution
        torch.testing.assert_close(found[one].flatten()[~seen], expected, atol=0.02, rtol=0)  # ε is a thousandth
    exact = BestLinear(patches)
    exact.noise = torch.tensor(0.0, dtype=torch.float64)
    torch.testing.assert_close(exact.filled(patches[2:3], hide[2:])[0].flatten()[~seen], expected, atol=1e-9, rtol=0)


def test_an_error_is_over_hidden_pixels_alone():
    patches = torch.zeros(1, 4, 3)
    found = torch.ones(1, 4, 3)
    found[0, 0] = 100.0
    mask = torch.tensor([[False, True, True, False]])
    assert errors(found, patches, mask).tolist() == [1.0]


def test_a_model_paints_in_the_units_of_the_image_and_the_mask_is_its_own():
    spec = "zoo:mae_small?in_channels=1&size=8&patch=2&width=8&heads=2&depth=1&decoder_width=8&decoder_heads=2"
    x = torch.rand(3, 1, 8, 8, generator=generator())
    for more in ("&decoder_depth=1&mean=0.3&std=0.4", "&decoder_depth=1&mean=0.3&std=0.4&norm_pix=true"):
        model = load_model(spec + more)
        network = model.network
        noise = noise_for(3, network, 5)
        out = network((x - 0.3) / 0.4, noise)
        assert torch.equal(hidden(noise, 0.75), out["mask"].bool())
        found = painted(model, x, noise, batch=2)
        logits = out["logits"]
        if network.norm_pix:
            own = network.patchify((x - 0.3) / 0.4)
            logits = logits * (own.var(-1, keepdim=True) + 1e-6).sqrt() + own.mean(-1, keepdim=True)
        assert torch.allclose(found, logits * 0.4 + 0.3, atol=1e-5)


# -- probes ---------------------------------------------------------------------------------------------------------


def test_a_probe_finds_a_line_and_nothing_where_there_is_none():
    x = torch.randn(300, 4, generator=generator())
    y = (x[:, 0] > 0).long()
    probe = linear_probe(x[:200], y[:200], x[200:], y[200:])
    assert probe.accuracy > 0.95
    assert probe.n == 100
    assert probe.low < probe.accuracy <= probe.high
    random = torch.randint(0, 2, (300,), generator=generator(1))
    assert linear_probe(x[:200], random[:200], x[200:], random[200:]).accuracy < 0.7


def test_features_are_means_over_patches_behind_the_last_norm():
    x = torch.rand(2, 3, 8, 8, generator=generator())
    autoencoder = zoo.build("mae_small", size=8, patch=2, width=8, heads=2, depth=1, decoder_width=8, decoder_heads=2)
    with torch.no_grad():
        assert torch.allclose(features(autoencoder, x), autoencoder.encode(x)[:, 1:].mean(1))
    vit = zoo.build("vit_small", size=8, patch=2, width=8, heads=2, depth=1).eval()
    kept = []
    handle = vit.norm.register_forward_hook(lambda _, args, out: kept.append(out[:, 1:].mean(1)))
    with torch.no_grad():
        vit(x)
    handle.remove()
    assert torch.allclose(features(vit, x), kept[0], atol=1e-6)
    with pytest.raises(TypeError, match="must be a masked autoencoder or a ViT, got Linear"):
        features(torch.nn.Linear(2, 2), x)


# -- the whole ------------------------------------------------------------------------------------------------------


def test_the_networks_are_those_of_the_questions():
    assert [network.name for network in networks.paper()] == list(networks.LABELS)
    assert [network.name for network in networks.small()] == [n for n in networks.LABELS if n != networks.LONG]
    for made in (networks.paper(), networks.small()):
        for network in made:
            load_model(network.with_seed(1))
    paper = {network.name: load_model(network.spec) for network in networks.paper()}
    assert [len(paper[name].network.decoder_blocks) for name in ("mae", "mae_decoder1", "mae_decoder0")] == [4, 1, 0]
    assert float(paper["mae_no_positions"].network.pos_embed.abs().max()) == 0
    assert paper["mae_rbf"].network.blocks[0].attn.reading == "rbf_w"
    assert len(paper["vit"].network.blocks) == len(paper["mae"].network.blocks)


def test_pretraining_leaves_results_and_goes_on(tmp_path):
    few = [
        dataclasses.replace(network, recipe=dataclasses.replace(network.recipe, epochs=1, batch=64))
        for network in networks.small()
        if network.name in ("mae", "vit")
    ]
    data, test = load_data("digits", split="train", limit=128), load_data("digits", split="test", limit=40)
    work = Work(tuple(few), data, test, tmp_path, "cpu", minutes=0.001, precision="bf16-mixed")
    results = pretrained(work)
    assert set(results["mae"]["errors"]) == {"model", "mean", "nearest", "pca", "linear"}
    assert {"mae", "vit", "random", "pixels"} <= results.keys()
    assert results["mae"]["probe"]["n"] == 40
    assert results["mae"]["training"]["floor_images_per_second"] > 0
    assert results["vit"]["training"]["epochs"] >= 1
    assert results["vit"]["accuracy"]["n"] == 40
    file = tmp_path / "results.json"
    kept = json.loads(file.read_text())
    before = (tmp_path / "mae.safetensors").stat().st_mtime_ns
    # Stopped after a training, before its evaluation was written: nothing of it is lost.
    file.write_text(json.dumps({name: value for name, value in kept.items() if name != "vit"}))
    again = pretrained(work)
    assert again["vit"]["training"] == kept["vit"]["training"]
    assert again["vit"]["accuracy"] == kept["vit"]["accuracy"]
    assert (tmp_path / "mae.safetensors").stat().st_mtime_ns == before
    assert pretrained(work) == again


PART = """
import json, pathlib, sys
name, out = sys.argv[2], pathlib.Path(sys.argv[4])
if name == "vit" and not (out.parent.parent / "mended").exists():
    sys.exit(3)
out.mkdir(parents=True)
(out / "results.json").write_text(json.dumps({"seed": 0, name: {"was": name, "training": {}}}))
(out / f"{name}.safetensors").write_text(name)
"""


def test_networks_side_by_side_are_put_together_and_go_on_after_a_failure(tmp_path):
    few = tuple(network for network in networks.small() if network.name in ("mae", "mae_rbf", "vit"))
    data, test = load_data("digits", split="train", limit=64), load_data("digits", split="test", limit=20)
    work, command = Work(few, data, test, tmp_path, "cpu"), [sys.executable, "-c", PART]
    with pytest.raises(RuntimeError, match="vit must end well, got exit code 3"):
        side_by_side(work, 1, command)
    first = json.loads((tmp_path / "results.json").read_text())
    assert first["alone"]["images_per_second"] > 0
    assert {"mae", "mae_rbf"} < first.keys()
    (tmp_path / "mended").touch()
    side_by_side(work, 3, command)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == first | {"vit": {"was": "vit", "training": {"side_by_side": True}}}
    assert (tmp_path / "vit.safetensors").read_text() == "vit"
    assert not (tmp_path / "parts").exists()


def test_a_range_over_layers_is_words_and_no_interval():
    rows = [
        Row("asymmetry", value, "estimate", 8, layer=str(value), depth=value, low=value - 0.1, high=value + 0.2)
        for value in (0.25, 0.75)
    ]
    low, high, note = tables.over_layers(rows)
    assert low is high is None
    assert note == "mean of 2 layers, which go from 0.15 to 0.95, ends of their intervals"
    low, high, note = tables.over_layers(rows[:1])
    assert (low, high, note) == (pytest.approx(0.15), pytest.approx(0.45), "")


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_what_is_committed_tells_its_networks_apart(scale):
    """Break it: write a tolerance that is not relative, or the ends over layers where an interval stands."""
    committed = form.expected(study("masked_autoencoders").about.folder)[scale]["findings"]
    pairs = [
        ("q2/error/model", "q2/error/linear"),
        ("q2/error/model", "error/mae_rbf"),
        ("q2/error/model", "error/mae_no_positions"),
        ("q2/error/pca", "q2/error/linear"),
        ("q2/error/mean", "error/mae_no_positions"),
        ("probe/mae", "probe/mae_no_positions"),
        ("probe/random", "probe/pixels"),
        ("q1/asymmetry/mae", "q1/asymmetry/random"),
        ("q3/cka/mae", "q3/cka/random"),
    ]
    if scale == "paper":
        pairs += [("q2/error/model", "error/mae_decoder1"), ("q2/error/model", "error/mae_long")]
        pairs += [("probe/mae", "probe/mae_long"), ("error/mae_long", "q2/error/linear")]
    for one, other in pairs:
        apart = abs(committed[one]["value"] - committed[other]["value"])
        assert 0 < committed[one]["within"] < apart, (one, other)
    layers = [was for was in committed.values() if "layers" in was.get("note", "")]
    assert len(layers) > 40
    assert not any("low" in was or "high" in was for was in layers)


@pytest.mark.slow
def test_smoke(tmp_path):
    outcome = study("masked_autoencoders").run(Task("smoke", tmp_path))
    claims = {claim.key: claim.holds for claim in outcome.claims}
    for key in ("q2/beats_mean", "q2/beats_nearest", "q1/positions", "q3/alike", "q3/skip", "q5/global"):
        assert claims[key], key
    for key in ("q1/symmetric", "q1/norm_terms", "q5/span", "q5/slope"):
        assert not claims[key], key
    names = {file.name for file in outcome.files}
    assert {"figure-3.png", "painted.png", "propagation.png"} <= names
    committed = form.expected(study("masked_autoencoders").about.folder)["smoke"]
    assert committed["claims"].keys() == claims.keys()
    findings = {finding.key for finding in outcome.findings}
    assert committed["findings"].keys() == findings
