"""Drift on small networks: planted faults are named by layer and part, and what changes nothing raises no alarm."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.overrides import TorchFunctionMode

import lisse
from lisse.instruments.drift import Drift
from lisse.instruments.drift.passes import layer_differences
from lisse.instruments.drift.words import Finding, sentence
from lisse.networks import zoo
from lisse.profile import Row
from lisse.run import Run, RunPair
from lisse.run.pair import profile_of_pair

QUICK = Drift(samples=24, noise=16, swaps=16, likeness=False)


def llama(layers=3, seed=0, **options):
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=48, vocab_size=40, **options
    )
    return transformers.LlamaForCausalLM(config).eval()


def tokens(n=24, length=8):
    ids = torch.randint(1, 40, (n, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[: n // 2, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def first(profile):
    row = next((row for row in profile.rows if row.quantity == "first_parting"), None)
    return None if row is None else (row.layer, row.at["part"])


def value(profile, quantity, layer, **at):
    (row,) = [
        row for row in profile.rows if (row.quantity, row.layer) == (quantity, layer) and at.items() <= row.at.items()
    ]
    return row.value


def scaled(name, factor=1.02):
    def change(model):
        with torch.no_grad():
            model.get_parameter(name).mul_(factor)

    return change


def swapped_query_heads(model):
    weight = model.model.layers[1].self_attn.q_proj.weight
    with torch.no_grad():
        weight[:16] = weight[:16].reshape(2, 8, -1).flip(0).reshape(16, -1).clone()


def heads_swapped_in_all_four(model):
    attention = model.model.layers[1].self_attn
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(attention, name).weight
            weight[:16] = weight[:16].reshape(2, 8, -1).flip(0).reshape(16, -1).clone()
        weight = attention.o_proj.weight
        weight[:, :16] = weight[:, :16].reshape(-1, 2, 8).flip(1).reshape(-1, 16).clone()


def wrong_epsilon(model):
    model.model.layers[2].input_layernorm.variance_epsilon = 1e-2


def other_activation(model):
    model.model.layers[1].mlp.act_fn = nn.GELU()


def wrong_rotary_base(model):
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq**1.2


@pytest.mark.parametrize(
    ("fault", "layer", "part"),
    [
        (scaled("model.embed_tokens.weight"), "stem", "embedding"),
        (scaled("model.layers.1.self_attn.v_proj.weight"), "model.layers.1", "attention"),
        (scaled("model.layers.2.mlp.down_proj.weight"), "model.layers.2", "MLP"),
        (scaled("model.layers.0.post_attention_layernorm.weight"), "model.layers.0", "norm"),
        (scaled("lm_head.weight"), "output", "head"),
        (swapped_query_heads, "model.layers.1", "attention"),
        (wrong_rotary_base, "model.layers.0", "attention"),
        (wrong_epsilon, "model.layers.2", "norm"),
        (other_activation, "model.layers.1", "MLP"),
    ],
)
def test_a_planted_fault_is_named(fault, layer, part):
    a = llama()
    b = copy.deepcopy(a)
    fault(b)
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    assert first(profile) == (layer, part)
    assert f"B parts from A at {layer}, in its {part}: " in profile.notes[0]


def residual_dropped(model):
    """The sum goes on with nine tenths of what it was: no module's work, and before the norm that meets it first."""
    layer = model.model.layers[1]

    def forward(hidden_states, **options):
        mixed, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
        between = 0.9 * hidden_states + mixed
        return between + layer.mlp(layer.post_attention_layernorm(between))

    layer.forward = forward


def other_scale_of_logits(model):
    model.model.layers[2].self_attn.scaling *= 1.2


@pytest.mark.parametrize(
    ("fault", "layer", "words"),
    [
        (residual_dropped, "model.layers.1", "what enters model.layers.1.post_attention_layernorm"),
        (other_scale_of_logits, "model.layers.2", "what enters model.layers.2.self_attn.o_proj"),
        (scaled("model.norm.weight"), "output", "model.norm"),
    ],
)
def test_what_no_module_does_is_said_by_where_it_is_first_seen(fault, layer, words):
    a = llama()
    b = copy.deepcopy(a)
    fault(b)
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    assert first(profile) == (layer, "head" if layer == "output" else "attention")
    assert f"In {layer}, what differs by itself: {words}." in profile.notes


@pytest.mark.parametrize(
    ("build", "weight", "part"),
    [
        (lambda: zoo.build("attention_small", classes=3, size=16), "blocks.4.attention.out.weight", "attention"),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3)), "2.weight", "MLP"),
    ],
)
def test_a_layer_that_is_one_module_is_what_it_is(build, weight, part):
    torch.manual_seed(0)
    a = build().eval()
    b = copy.deepcopy(a)
    scaled(weight, 1.2)(b)
    shape = (6,) if part == "MLP" else (3, 16, 16)
    data = torch.rand(16, *shape, generator=torch.Generator().manual_seed(1))
    assert first(lisse.drift(a, b, data, instrument=QUICK))[1] == part


def test_clouds_and_attention_are_compared():
    a = llama()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.model.layers[1].self_attn.q_proj.weight.mul_(2)
    profile = lisse.drift(a, b, tokens(), instrument=dataclasses.replace(QUICK, likeness=True))
    for quantity, at in (("topology_change", {"dim": 0}), ("token_distance", {"p": 1.0}), ("attention_change", {})):
        layer = "model.layers.{}.self_attn" if quantity == "attention_change" else "model.layers.{}"
        assert value(profile, quantity, layer.format(0), **at) == 0
        assert value(profile, quantity, layer.format(1), **at) > 1e-5
    largest = value(profile, "token_distance", "model.layers.1", p=math.inf)
    assert largest > value(profile, "token_distance", "model.layers.1", p=1.0)
    assert value(profile, "cka", "model.layers.0") == pytest.approx(1)
    assert value(profile, "aligned", "model.layers.1") <= value(profile, "drift", "model.layers.1") * 1.1


def test_a_fault_of_few_samples_says_of_how_many():
    a, data = llama(), tokens(40)
    data["input_ids"][data["input_ids"] == 7] = 8
    data["input_ids"][:5, 3] = 7
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.model.embed_tokens.weight[7] *= 2
    profile = lisse.drift(a, b, data, instrument=Drift(samples=40, noise=40, swaps=40, likeness=False))
    assert first(profile) == ("stem", "embedding")
    assert ", in 5 of 40 samples" in profile.notes[0]
    few = {key: rows[:3] for key, rows in data.items()}
    profile = lisse.drift(a, b, few, instrument=QUICK)
    assert first(profile) == ("stem", "embedding")
    assert any("fewer than 7 samples" in note for note in profile.notes)


def test_two_recordings_are_compared_as_far_as_they_go(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.5)):
        (tmp_path / name).mkdir()
        rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
        save_file({"layer.0": rows, "layer.1": factor * rows}, tmp_path / name / "layers.safetensors")
    profile = lisse.drift(*(f"recorded:{tmp_path / name}" for name in ("a", "b")), instrument=QUICK)
    assert value(profile, "drift", "layer.1") == pytest.approx(0.5)
    assert not [row for row in profile.rows if row.quantity == "injected"]
    assert "in which layer cannot be said" in profile.notes[0]


@pytest.mark.parametrize(
    "change", [lambda model: model, heads_swapped_in_all_four, nn.Module.double, nn.Module.bfloat16]
)  # fmt: skip
def test_what_leaves_the_function_alone_raises_no_alarm(change):
    a = llama()
    b = copy.deepcopy(a)
    change(b)
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    assert first(profile) is None
    assert "does not part" in profile.notes[0]


def test_a_fault_is_injected_where_it_is_and_inherited_behind_it():
    a = llama()
    b = copy.deepcopy(a)
    scaled("model.layers.1.mlp.up_proj.weight", 1.1)(b)
    profile = lisse.drift(a, b, tokens(), instrument=dataclasses.replace(QUICK, alone=True))
    assert value(profile, "injected", "model.layers.0") == value(profile, "drift", "model.layers.0") == 0
    assert value(profile, "injected", "model.layers.1") == value(profile, "drift", "model.layers.1") > 1e-4
    assert value(profile, "injected", "model.layers.2") == 0
    assert value(profile, "inherited", "model.layers.2") == value(profile, "drift", "model.layers.2") > 1e-4
    assert value(profile, "output_share", "model.layers.1", order="both") == pytest.approx(1, abs=1e-4)
    assert value(profile, "alone", "model.layers.1") == pytest.approx(value(profile, "drift", "output"), rel=0.2)
    assert value(profile, "alone", "model.layers.2") == 0
    frame = profile.frame()
    assert {"drift", "injected", "inherited"} <= set(frame["quantity"])


def test_two_faults_share_the_change_in_both_orders():
    a = llama()
    b = copy.deepcopy(a)
    scaled("model.layers.0.mlp.up_proj.weight", 1.1)(b)
    scaled("model.layers.2.mlp.up_proj.weight", 1.1)(b)
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    shares = [value(profile, "output_share", f"model.layers.{index}", order="both") for index in (0, 2)]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert min(shares) > 0.1
    assert "1 more layer differs" in profile.notes[0]
    largest = f" by more than noise, with the largest share, {100 * shares[1]:.0f} %, at model.layers.2."
    assert profile.notes[0].endswith(largest if shares[1] > shares[0] else " by more than noise.")
    scaled("model.layers.2.mlp.up_proj.weight", 3.0)(b)  # the first is not the largest now
    assert lisse.drift(a, b, tokens(), instrument=QUICK).notes[0].endswith("%, at model.layers.2.")


@pytest.mark.parametrize(("n", "size"), [(100, 8), (9, 3), (1, 1)])
def test_noise_is_that_of_another_batch_size_however_few_samples_there_are(n, size):
    pair = RunPair(*[Run(llama(), lisse.as_dataset(tokens())) for _ in range(2)])
    (words, twin), _ = pair.noises(pair.take(n))
    assert (words, twin.piece_size) == (f"{size} samples at a time", size)


def under_autocast(model, dtype):
    class Cast(type(model)):
        def forward(self, *args, **kwargs):
            with torch.autocast("cpu", dtype):
                return super().forward(*args, **kwargs)

    model.__class__ = Cast
    return model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_noise_and_a_fault_under_it_is_found(dtype):
    a, word = llama(), str(dtype).removeprefix("torch.")
    b = under_autocast(copy.deepcopy(a), dtype)
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    assert first(profile) is None, profile.notes[0]
    assert f"under autocast to {word}" in " ".join(profile.notes)
    assert value(profile, "drift", "output") > torch.finfo(dtype).eps / 100
    scaled("model.layers.1.mlp.down_proj.weight", 1.5)(b)
    assert first(lisse.drift(a, b, tokens(), instrument=QUICK)) == ("model.layers.1", "MLP")


def test_where_both_are_cast_noise_is_that_of_float64_which_autocast_leaves_alone():
    a, b = (under_autocast(llama(), torch.bfloat16) for _ in range(2))
    scaled("model.layers.1.mlp.down_proj.weight", 1.5)(b)
    inside = lisse.drift(a, b, tokens(), instrument=QUICK)
    with torch.autocast("cpu", torch.bfloat16):
        around = lisse.drift(*(model.float() for model in (llama(), b)), tokens(), instrument=QUICK)
    for profile in (inside, around):
        assert first(profile) == ("model.layers.1", "MLP")
        assert "in float64" in " ".join(profile.notes)
        assert value(profile, "noise_floor", "model.layers.2") > torch.finfo(torch.bfloat16).eps / 4


def test_another_engines_kernels_are_noise():
    class Kernels(nn.Conv2d):  # of PyTorch itself, which add up in another order than oneDNN's
        def forward(self, x):
            torch.backends.mkldnn.enabled = False
            try:
                return super().forward(x)
            finally:
                torch.backends.mkldnn.enabled = True

    a = zoo.build("resnet20").eval()
    b = copy.deepcopy(a)
    for module in b.modules():
        if isinstance(module, nn.Conv2d):
            module.__class__ = Kernels
    images = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    profile = lisse.drift(a, b, images, instrument=QUICK)
    assert torch.backends.mkldnn.enabled
    assert value(profile, "drift", "stem") > 0
    assert "does not part" in profile.notes[0]


def test_of_several_answers_the_one_that_changes_most_counts_everywhere():
    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = Plain()

        def forward(self, x):
            y = self.plain(x)
            return {"logits": y, "steep": y.exp()}

    a = Double().eval()
    b = copy.deepcopy(a)
    scaled("plain.b.0.weight", 1.2)(b)
    data = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
    profile = lisse.drift(a, b, data, instrument=dataclasses.replace(QUICK, alone=True))
    (output,) = [row.value for row in profile.rows if row.quantity == "drift" and row.depth == 1]
    assert value(profile, "alone", "plain.b") == pytest.approx(output, rel=0.2)


def test_a_little_more_rounding_than_a_has_is_no_news(monkeypatch):
    from lisse.instruments import drift as module

    a = llama()
    original = module.layer_differences

    def rounded(pair, *args, **options):
        numbers = original(pair, *args, **options)
        factor = 2.0 if pair.names == ("A", "B") else 1.0  # the pair, and not one network beside itself
        return {key: factor * 1e-6 + 0 * part if key == "drift/output" else part for key, part in numbers.items()}

    monkeypatch.setattr(module, "layer_differences", rounded)
    profile = lisse.drift(a, copy.deepcopy(a), tokens(), instrument=QUICK)
    assert "does not part" in profile.notes[0]


class Plain(nn.Module):
    def __init__(self, names="abc", width=6):
        super().__init__()
        torch.manual_seed(0)
        for name in names:
            self.add_module(name, nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 6)))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for name, module in self.named_children():
            x = module(x) if name == "head" else x + module(x)
        return x


def test_blocks_of_other_names_stand_for_each_other_by_position():
    data = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
    a, b = Plain("abc"), Plain("xyz")
    with torch.no_grad():
        b.y[2].weight.mul_(1.5)
    profile = lisse.drift(a, b, data, instrument=QUICK)
    assert first(profile)[0] == "b"
    assert any("by position" in note for note in profile.notes)


def test_a_recording_is_a_side_in_both_directions(tmp_path):
    a = Plain()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.b[0].weight.mul_(1.5)
    data = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
    for name, model in (("a", a), ("b", b)):
        recording = lisse.record(model, data)
        layers = {layer: recording[layer].clone() for layer in recording if layer != "input"}
        (tmp_path / name).mkdir()
        if name == "a":
            save_file(layers, tmp_path / name / "layers.safetensors")
        else:
            np.savez(tmp_path / name / "layers.npz", **{layer: rows.numpy() for layer, rows in layers.items()})
    both = lisse.drift(a, b, data, instrument=QUICK)
    for left, right in ((f"recorded:{tmp_path / 'a'}", b), (a, f"recorded:{tmp_path / 'b'}")):
        profile = lisse.drift(left, right, data, instrument=QUICK)
        assert first(profile)[0] == first(both)[0] == "b"
        assert value(profile, "injected", "b") == pytest.approx(value(both, "injected", "b"), rel=1e-4)
    assert "does not part" in lisse.drift(f"recorded:{tmp_path / 'a'}", a, data, instrument=QUICK).notes[0]
    with pytest.raises(ValueError, match="same samples, got 24 and 12"):
        lisse.drift(f"recorded:{tmp_path / 'a'}", a, data[:12], instrument=QUICK)


def test_a_recording_need_not_have_an_answer_nor_its_layers_in_order(tmp_path):
    a = llama()
    b = copy.deepcopy(a)
    scaled("model.layers.0.mlp.down_proj.weight")(b)
    scaled("model.embed_tokens.weight")(b)
    with torch.no_grad():
        given = a(**tokens(), output_hidden_states=True)
    layers = {"stem": given.hidden_states[0], "model.layers.0": given.hidden_states[1]}  # the stem's name comes last
    for name, more in (("some", {}), ("all", {"logits": given.logits})):
        (tmp_path / name).mkdir()
        save_file(
            {key: rows.contiguous() for key, rows in {**layers, **more}.items()}, tmp_path / name / "x.safetensors"
        )
    for left, right in ((f"recorded:{tmp_path / 'some'}", a), (a, f"recorded:{tmp_path / 'some'}")):
        notes = lisse.drift(left, right, tokens(), instrument=QUICK).notes
        assert notes[0].startswith("B does not part from A in a layer that was recorded; whether the answer does")
    profile = lisse.drift(f"recorded:{tmp_path / 'some'}", b, tokens(), instrument=QUICK)
    assert profile.notes[0].startswith("B parts from A at stem.")
    assert any("for it was not recorded" in note for note in profile.notes)
    same = lisse.drift(f"recorded:{tmp_path / 'all'}", a, tokens(), instrument=QUICK)
    assert "no answer differs by more than noise" in same.notes[0]
    assert not any("logits" in note for note in same.notes)
    profile = lisse.drift(f"recorded:{tmp_path / 'all'}", b, tokens(), instrument=QUICK)
    assert profile.notes[0].startswith("B parts from A at stem: ")


def test_what_is_not_finite_is_said_and_everything_before_it_measured():
    a = llama()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    assert any("From model.layers.1 on, 24 of 24 samples are not finite" in note for note in profile.notes)
    assert profile.notes[0].startswith("B parts from A at model.layers.1")
    assert value(profile, "drift", "model.layers.0") == 0


def test_other_vocabularies_and_shapes_are_a_plain_sentence():
    a = llama()
    with pytest.raises(ValueError, match="got what B does not run on"):
        lisse.drift(a, Plain(), tokens(), instrument=QUICK)
    b = llama(layers=2, seed=1)
    profile = lisse.drift(a, b, tokens(), instrument=QUICK)
    assert any("1 layers of A have no counterpart: model.layers.2" in note for note in profile.notes)
    narrow = llama(seed=1)
    narrow.resize_token_embeddings(8)
    with pytest.raises(ValueError, match="vocabulary may be smaller"):
        lisse.drift(a, narrow, tokens(), instrument=QUICK)
    two, three = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, classes)) for classes in (2, 3))
    profile = lisse.drift(two, three, torch.randn(20, 4), instrument=QUICK)
    assert any("they have other shapes" in note for note in profile.notes)
    with pytest.raises(ValueError, match="data must be given"):
        lisse.drift(a, a)


def test_of_vocabularies_that_were_lengthened_what_both_have_is_compared():
    a = llama()
    b = copy.deepcopy(a)
    scaled("model.layers.1.mlp.down_proj.weight")(b)
    alone = lisse.drift(a, b, tokens(), instrument=QUICK)
    b.resize_token_embeddings(48, mean_resizing=False)
    for pair, words in (((a, b), "A answers 40 numbers and B 48"), ((b, a), "A answers 48 numbers and B 40")):
        profile = lisse.drift(*pair, tokens(), instrument=QUICK)
        assert any(f"{words}: the first 40 of both are compared" in note for note in profile.notes)
        assert first(profile) == ("model.layers.1", "MLP")
        assert value(profile, "drift", "output") == pytest.approx(value(alone, "drift", "output"), rel=0.1)


@pytest.mark.parametrize("swap", [False, True])
def test_where_some_samples_are_not_finite_all_that_others_say_is_measured(swap):
    a = llama()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.model.embed_tokens.weight[20] = torch.nan  # no noise does that, however few samples have the token
    pair = (b, a) if swap else (a, b)
    look = dataclasses.replace(QUICK, likeness=True, alone=True)
    profile = lisse.drift(*pair, tokens(), instrument=look)
    assert profile.notes[0] == "B parts from A at stem, in its embedding, in 5 of 24 samples."
    assert value(profile, "parting", "stem") == 0
    assert value(profile, "parting", "model.layers.0") == 1
    for quantity, layer in (("drift", ""), ("token_distance", ""), ("alone", ""), ("attention_change", ".self_attn")):
        at = {"p": 1.0} if quantity == "token_distance" else {}
        assert value(profile, quantity, f"model.layers.1{layer}", **at) == 0
    both = lisse.drift(b, copy.deepcopy(b), tokens(), instrument=look)
    assert "B does not part from A" in both.notes[0]
    assert any("and 5 in neither" in note for note in both.notes)


def test_an_interrupted_comparison_goes_on_and_gives_the_same(tmp_path):
    a = llama()
    b = copy.deepcopy(a)
    scaled("model.layers.1.mlp.up_proj.weight", 1.1)(b)
    kept = lisse.drift(a, b, tokens(), instrument=QUICK, cache=tmp_path)
    again = lisse.drift(a, b, tokens(), instrument=QUICK, cache=tmp_path)
    assert kept.parts == again.parts
    assert again.provenance["forwards"]["patched"] == 0 < kept.provenance["forwards"]["patched"]
    assert kept.parts == lisse.drift(a, b, tokens(), instrument=QUICK).parts
    other = lisse.drift(b, a, tokens(), instrument=QUICK, cache=tmp_path)
    assert other.provenance["forwards"]["patched"] > 0


def test_batches_bound_what_is_held_and_do_not_change_what_is_found():
    a = llama()
    b = copy.deepcopy(a)
    scaled("model.layers.1.mlp.up_proj.weight", 1.1)(b)
    large, small = (lisse.drift(a, b, tokens(), instrument=QUICK, batch=size) for size in (24, 5))
    assert first(large) == first(small)
    assert value(large, "injected", "model.layers.1") == pytest.approx(
        value(small, "injected", "model.layers.1"), rel=1e-4
    )
    runs = [Run(model, lisse.as_dataset(tokens()), memory="20KB") for model in (a, b)]
    pair = RunPair(*runs)
    assert pair.step([layer.a for layer in pair.layers]) < 24


class Doubling(nn.Module):
    """Writes over what it is given, where it is told to."""

    def __init__(self, over):
        super().__init__()
        self.over = over
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = x.mul_(2) if self.over else 2 * x
        return x + self.layer(x).tanh()


def test_a_network_may_write_over_what_its_layers_are_given():
    numbers = []
    for over in (False, True):
        torch.manual_seed(0)
        a, b = (nn.Sequential(nn.Linear(4, 4), *[Doubling(over) for _ in range(3)]) for _ in range(2))
        pair = RunPair(
            *[Run(model, lisse.as_dataset(torch.randn(8, 4)), layers=["0", "1", "2", "3"]) for model in (a, b)]
        )
        numbers.append([layer_differences(pair, start, start + 4) for start in (0, 4)])
    for plain, written in zip(*numbers, strict=True):
        assert plain.keys() == written.keys()
        assert all(torch.equal(plain[key], written[key]) for key in plain)


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a device."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__")
        return func(*args, **(kwargs or {}))


def test_the_host_waits_for_a_device_once_a_batch_and_not_once_a_layer():
    counts = []
    for layers in (2, 6):
        pair = RunPair(*[Run(llama(layers, seed), lisse.as_dataset(tokens())) for seed in (0, 1)])
        with Waits() as waits:
            layer_differences(pair, 0, 24, full=False)
        counts.append(waits.count)
    assert counts[0] == counts[1]


def test_it_is_an_instrument_of_two_networks():
    a = llama()
    profile = lisse.measure(a, tokens(), QUICK)
    assert "looks at 2 networks" in profile.notes[0]
    runs = [Run(model, lisse.as_dataset(tokens())) for model in (a, a)]
    with pytest.raises(ValueError, match="must be for two networks, got sensitivity"):
        profile_of_pair(RunPair(*runs), lisse.instruments.Sensitivity())


def test_the_networks_are_left_as_they_were():
    a, b = llama().train(), llama(seed=1).train()
    before = [parameter.clone() for parameter in (*a.parameters(), *b.parameters())]
    lisse.drift(a, b, tokens(), instrument=QUICK)
    assert all(torch.equal(*pair) for pair in zip(before, (*a.parameters(), *b.parameters()), strict=True))
    assert a.training
    assert b.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for model in (a, b) for module in model.modules())


def test_a_shortage_while_noise_is_measured_is_no_noise(monkeypatch):
    plain = lisse.instruments.drift.layer_differences

    def scarce(pair, start, stop, *, full=True):
        if not full:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return plain(pair, start, stop, full=full)

    monkeypatch.setattr("lisse.instruments.drift.layer_differences", scarce)
    model = zoo.build("fc2", in_channels=1, size=8, width=4)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        lisse.drift(model, copy.deepcopy(model), torch.rand(24, 1, 8, 8), instrument=QUICK)


@pytest.mark.parametrize(("share", "words"), [(3.0, "; some take back what others add."), (0.6, ".")])
def test_a_share_of_more_than_all_is_explained(share, words):
    row = Row("output_share", share, "estimate", 9, "a", low=share - 0.1, high=share + 0.1)
    text = sentence(("A", "B"), Finding(["a", "b"], ["MLP"], True), row, None, row)
    assert text.endswith(f"1 more layer differs by more than noise{words}")
