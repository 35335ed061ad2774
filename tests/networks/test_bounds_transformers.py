"""Bounds of Transformers of today: what is read of their layers is what they do, and nothing they do exceeds them."""

import copy
import math

import pytest
import torch
from torch import nn

from lisse.maths.jacobian import worst_token_stretch
from lisse.networks import zoo
from lisse.networks.bounds import layer_bounds, of_module
from lisse.networks.bounds.blocks import residual_sums, stack_of
from lisse.networks.bounds.tokens import norm_parts, token_attention

transformers = pytest.importorskip("transformers")

SIZE = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
SHARED = {**SIZE, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SIZE),
    "distilbert": lambda: transformers.DistilBertConfig(vocab_size=31, dim=16, n_layers=2, n_heads=4, hidden_dim=20),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=4),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=20, word_embed_proj_dim=16
    ),
    "bloom": lambda: transformers.BloomConfig(vocab_size=31, hidden_size=16, n_layer=2, n_head=4),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZE),
    "gpt_neox in turn": lambda: transformers.GPTNeoXConfig(**SIZE, use_parallel_residual=False),
    "llama": lambda: transformers.LlamaConfig(**SHARED),
    "mistral window": lambda: transformers.MistralConfig(**SHARED, sliding_window=3),
    "qwen2": lambda: transformers.Qwen2Config(**SIZE, num_key_value_heads=2),
    "qwen3": lambda: transformers.Qwen3Config(**SHARED),
    "gemma": lambda: transformers.GemmaConfig(**SHARED),
    "gemma2 capped": lambda: transformers.Gemma2Config(**SHARED, query_pre_attn_scalar=4, attn_logit_softcapping=2.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SHARED, query_pre_attn_scalar=4),
    "phi3": lambda: transformers.Phi3Config(**{k: v for k, v in SHARED.items() if k != "head_dim"}),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZE, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
    ),
}


def model(name):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config._attn_implementation, config.use_cache = "eager", False
    network = transformers.AutoModel.from_config(config).double().eval()
    for label, parameter in network.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
        else:
            nn.init.uniform_(parameter, -0.3, 0.3)
            parameter.data += 1.0 * (label.endswith("weight") and "emma" not in name)
    return network


def called(network, ids):
    """Every module's last arguments and output."""
    calls = {}

    def hook(module, args, options, output):
        calls[module] = args, options, output

    handles = [part.register_forward_hook(hook, with_kwargs=True) for part in network.modules()]
    with torch.no_grad():
        network(ids)
    for handle in handles:
        handle.remove()
    return calls


def entry(call):
    args, options, _ = call
    return args[0] if args else options["hidden_states"]


def first(output):
    return output[0] if isinstance(output, tuple) else output


IDS = torch.arange(1, 8)[None] * 4 % 31


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_is_what_is_read_of_it(name):
    """Its rows and outputs, from the maps that were read and the layer's own turns, norms, cap, table and mask."""
    network = model(name)
    calls = called(network, IDS)
    layers = [(part, token_attention(part)) for part in network.modules() if token_attention(part) is not None]
    assert len(layers) == 2
    for part, layer in layers:
        _, options, output = calls[part]
        x, w = entry(calls[part])[0], layer.weights
        q, k, v = (
            torch.einsum("td,mhd->mth", x, matrix) + bias[:, None]
            for matrix, bias in ((w.query, w.query_bias), (w.key, layer.key_bias), (w.value, w.value_bias))
        )
        for side in (q, k):
            norm = getattr(part, "q_norm" if side is q else "k_norm", None)
            if norm is not None:
                side.copy_(norm(side))
        assert layer.turned == ("position_embeddings" in options and options["position_embeddings"] is not None)
        if layer.turned:
            module = __import__(type(part).__module__, fromlist=["x"])
            cos, sin = options["position_embeddings"]
            q, k = (side[0] for side in module.apply_rotary_pos_emb(q[None], k[None], cos, sin))
        z = w.scale * q @ k.transpose(1, 2)
        if getattr(part, "attn_logit_softcapping", None):
            z = part.attn_logit_softcapping * torch.tanh(z / part.attn_logit_softcapping)
        if options.get("alibi") is not None:
            z = z + options["alibi"].reshape(len(z), 1, -1)
        rows = output[1][0]
        expected = torch.softmax(z.masked_fill(rows == 0, -math.inf), -1)
        torch.testing.assert_close(rows, expected, atol=1e-6, rtol=1e-5)
        mixed = (expected @ v).transpose(0, 1).flatten(1) @ w.out.T + w.out_bias
        if name == "bloom":
            mixed = mixed + calls[part][0][1][0]  # it adds the residual itself
        torch.testing.assert_close(first(output)[0], mixed, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_are_the_stages_that_are_read(name):
    network = model(name)
    calls = called(network, IDS)
    stack = stack_of(network)
    assert len([part for part in stack if residual_sums(part) is not None]) == 2
    for block in stack[:2]:
        x = entry(calls[block])
        for stage in residual_sums(block):
            total = x
            for branch in stage.branches:
                y = x
                for part in branch:
                    if token_attention(part) is not None:
                        torch.testing.assert_close(y, entry(calls[part]), atol=1e-6, rtol=1e-5)
                        residual = calls[part][0][1] if name == "bloom" else 0
                        y = first(calls[part][2]) - residual
                    else:
                        y = part(y)
                total = total + y
            x = total if stage.end is None else stage.end(total)
        torch.testing.assert_close(first(calls[block][2]), x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_token_is_moved_further_than_its_bound(name):
    network = model(name)
    calls = called(network, IDS)
    block = stack_of(network)[0]
    args, options, _ = calls[block]
    options = {key: value for key, value in options.items() if key != "hidden_states" and "past" not in key}
    x = entry(calls[block])[0].detach()

    def f(tokens):
        return first(block(tokens[None], *args[1:], **options))[0]

    radius = float(x.norm(dim=1).max()) * 1.01
    bound = of_module(block, radius=radius, metric="worst_token")
    assert (bound.valid, bound.kind) == (True, "upper")
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        stretch, _ = worst_token_stretch(f, x, steps=12, generator=generator)
        assert 0 < float(stretch) <= bound.value
        y = x.roll(seed + 1, 0)
        far = float((f(x) - f(y)).norm(dim=1).max() / (x - y).norm(dim=1).max().clamp_min(1e-9))
        assert far <= bound.value
    flat = of_module(block, radius=radius, metric="euclidean", input_shape=x.shape)
    jacobian = torch.autograd.functional.jacobian(f, x).reshape(f(x).numel(), -1)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= flat.value
    whole = of_module(network, radius=radius, metric="worst_token")
    assert whole.valid
    assert whole.log10 < 60


def test_what_each_part_of_a_layer_adds():
    """Llama's layer by hand: heads with keys of their own or shared, one norm folded in, rotation by products."""
    network = model("llama")
    block = stack_of(network)[0]
    layer = token_attention(block.self_attn)
    w, radius = layer.weights, 4.0
    gain = block.input_layernorm.weight.detach()

    def size(m):
        return float(torch.linalg.matrix_norm(m, 2))

    brackets = [
        1 + radius**2 * w.scale * 2 * size(q * gain) * size(k * gain) for q, k in zip(w.query, w.key, strict=True)
    ]
    outs = w.out.unflatten(1, (4, -1)).unbind(1)
    together = size(w.out) * math.hypot(*(size(v * gain) * b for v, b in zip(w.value, brackets, strict=True)))
    alone = sum(size(o @ (v * gain)) * b for o, v, b in zip(outs, w.value, brackets, strict=True))
    log, _ = layer.before(None).worst_token(1.0, 0.0)
    assert log < 20
    folded = of_module(nn.Sequential(block.input_layernorm, block.self_attn), radius=100.0)
    slope = 1 / math.sqrt(block.input_layernorm.variance_epsilon)
    # Whatever comes in leaves the norm with at most √d.
    assert folded.value <= min(together, alone) * slope * (1 + 1e-4)
    assert folded.value >= 0.2 * min(together, alone) * slope
    trusted = of_module(nn.Sequential(block.input_layernorm, block.self_attn), radius=100.0, variance=1.0)
    assert trusted.value == pytest.approx(folded.value / slope, rel=1e-4)
    assert "variance at least 1" in str(trusted.hypotheses[-1])


def test_norms_of_queries_and_keys_make_the_bound_free_of_their_size():
    network = model("qwen3")
    part = stack_of(network)[0].self_attn
    before = of_module(part, radius=3.0, variance=1.0)
    part.q_proj.weight.data *= 10
    after = of_module(part, radius=3.0, variance=1.0)
    assert before.value < after.value < 11 * before.value  # the slope grows with the weights, the logits do not


def test_a_norm_is_recognised_by_what_it_does():
    for name, offset in (("llama", 0.0), ("gemma", 1.0)):
        norm = stack_of(model(name))[0].input_layernorm
        gain, shift, _, centred = norm_parts(norm)
        torch.testing.assert_close(gain, offset + norm.weight.detach())
        assert not centred
        assert float(shift.abs().max()) == 0

    class HalfRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x):
            return 2 * self.weight * x

    with pytest.raises(TypeError, match="HalfRMSNorm must divide by the root mean square"):
        of_module(HalfRMSNorm(), radius=1.0)


def test_what_is_no_map_of_measures_is_refused_there():
    part = stack_of(model("llama"))[0].self_attn
    with pytest.raises(TypeError, match=r"is no map of measures.* Take metric='worst_token'"):
        of_module(part, radius=1.0, metric="wasserstein", input_shape=(3, 16))
    # Of nine tokens the worst moves no less than a third of their Euclidean distance.
    worst, flat = (of_module(part, radius=1.0, metric=m, input_shape=(9, 16)) for m in ("worst_token", "euclidean"))
    assert flat.value == pytest.approx(3 * worst.value)
    causal = stack_of(model("gpt2"))[0].attn
    with pytest.raises(TypeError, match="is no map of measures"):
        of_module(causal, radius=1.0, metric="wasserstein")
    # A causal layer is bilinear: a Euclidean bound for sequences holds under its mask.
    assert of_module(causal, radius=1.0, metric="euclidean", input_shape=(3, 16)).valid
    part.config.rope_parameters = {"rope_type": "yarn", "factor": 4.0}
    with pytest.raises(TypeError, match="must be isometries, got rope_type 'yarn'"):
        of_module(part, radius=1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bert", "llama", "qwen3"])
def test_bounds_of_a_model_on_a_gpu_are_those_of_the_cpu(name):
    network = model(name)
    here, there = (layer_bounds(part, IDS.repeat(3, 1)) for part in (network, copy.deepcopy(network).cuda()))
    for a, b in zip(here, there, strict=True):
        assert (a.name, a.reason) == (b.name, b.reason)
        if a.bound is not None:
            assert b.bound.log10 == pytest.approx(a.bound.log10, abs=1e-4)


def test_positions_tokens_and_means_in_the_worst_token_metric():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = nn.Parameter(torch.randn(1, 3, 8))
            self.block = zoo.vit.Block(8, 2, 16, eps=1e-2, qk_norm=True)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            y = self.block(x + self.positions)
            return self.head(torch.cat((y[:, :1], y.mean(dim=1).unsqueeze(1)), dim=1)[:, 0])

    class Plain(Reader):
        def forward(self, x):
            return self.head(self.block(x + self.positions)[:, 0])

    torch.manual_seed(0)
    network = Plain().double()
    bound = of_module(network, radius=2.0, input_shape=(3, 8))
    x = torch.randn(3, 8, dtype=torch.float64)
    x = 1.9 * x / x.norm(dim=1, keepdim=True)
    stretch, _ = worst_token_stretch(lambda t: network(t[None]), x, generator=torch.Generator().manual_seed(0))
    assert 0 < float(stretch) <= bound.value
    block = of_module(network.block, radius=2 + float(network.positions.norm(dim=-1).max()))
    assert bound.value <= block.value * float(torch.linalg.matrix_norm(network.head.weight, 2)) * (1 + 1e-4)


def test_the_stretch_of_a_linear_map_is_found():
    matrix = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    stretch, move = worst_token_stretch(lambda t: (t @ matrix).mean(0, keepdim=True), torch.zeros(4, 2))
    assert float(stretch) == pytest.approx(3.0, rel=1e-5)
    torch.testing.assert_close(move.abs(), torch.tensor([[1.0, 0.0]]).expand(4, 2), atol=1e-2, rtol=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        worst_token_stretch(lambda t: t, torch.zeros(2, 2), steps=0)
