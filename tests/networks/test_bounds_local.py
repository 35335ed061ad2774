"""What a Transformer's block can do in a ball: exact at no radius, never exceeded inside, refused where not known."""

import pytest
import torch
from torch.func import jacrev, jvp

from lisse.networks.bounds import local_bounds
from lisse.networks.bounds.local import _norm, _start, _turns

transformers = pytest.importorskip("transformers")

SIZE = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
SHARED = {**SIZE, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SIZE),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=20, word_embed_proj_dim=16
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZE),
    "llama": lambda: transformers.LlamaConfig(**SHARED),
    "mistral window": lambda: transformers.MistralConfig(**SHARED, sliding_window=3),
    "qwen3": lambda: transformers.Qwen3Config(**SHARED),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SHARED, query_pre_attn_scalar=4),
    "gemma2 capped": lambda: transformers.Gemma2Config(**SHARED, query_pre_attn_scalar=4, attn_logit_softcapping=2.0),
    "bloom": lambda: transformers.BloomConfig(vocab_size=31, hidden_size=16, n_layer=2, n_head=4),
}
KNOWN = [name for name in CONFIGS if name not in ("gemma2 capped", "bloom")]
IDS = torch.tensor([[3, 7, 1, 22, 9], [4, 4, 2, 1, 0], [9, 8, 7, 6, 5]])


def model(name, std=0.2, seed=0):
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    config._attn_implementation, config.use_cache = "eager", False
    network = transformers.AutoModel.from_config(config).double().eval()
    for label, parameter in network.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=std * (2.5 if "embed" in label else 1.0))
    return network


def block_of(network, name):
    """A block as a map of the first sample's tokens, and those tokens."""
    block, calls = network.get_submodule(name), []
    handle = block.register_forward_pre_hook(lambda _, args, options: calls.append((args, options)), with_kwargs=True)
    with torch.no_grad():
        network(IDS)
    handle.remove()
    args, options = calls[0]

    def first(value):
        if isinstance(value, tuple):
            return tuple(map(first, value))
        return value[:1] if torch.is_tensor(value) and value.ndim > 1 and len(value) == len(IDS) else value

    args, options = [first(value) for value in args], {key: first(value) for key, value in options.items()}
    tokens = args.pop(0) if args else options.pop("hidden_states")

    def run(x):
        output = block(x, *args, **options)
        return output[0] if isinstance(output, tuple) else output

    return run, tokens.detach()


def steepest(run, x, eps, steps=6):
    """The largest norm of the Jacobian on a way that climbs inside the ball."""
    z, best = x, 0.0
    for _ in range(steps):
        _, sizes, right = torch.linalg.svd(jacrev(run)(z).reshape(x.numel(), x.numel()))
        best = max(best, float(sizes[0]))
        point, direction = z.clone().requires_grad_(), right[0].reshape(x.shape)
        (slope,) = torch.autograd.grad(jvp(run, (point,), (direction,))[1].square().sum(), point)
        move = z - x + 0.7 * eps * torch.nn.functional.normalize(slope, dim=-1)
        z = x + eps * torch.nn.functional.normalize(move, dim=-1)
    return best


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_the_jacobians_norm_at_no_radius_and_holds_in_the_ball(name):
    network = model(name)
    bounds = local_bounds(network, IDS, [0.0, 1e-3, 1e-2])
    for still, *others in (bounds[:3], bounds[3:]):
        assert not still.reason
        run, x = block_of(network, still.name)
        exact = float(torch.linalg.matrix_norm(jacrev(run)(x).detach().reshape(x.numel(), x.numel()), ord=2))
        # Some families take their softmax in single precision.
        assert still.lower * (1 - 1e-6) <= exact <= still.upper * (1 + 1e-6) < 1.002 * exact
        assert still.upper < others[0].upper < others[1].upper
        for bound in others:
            assert bound.eps / others[0].eps == pytest.approx(1 if bound is others[0] else 10)
            assert steepest(run, x, bound.eps, steps=2) <= bound.upper


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("std", [0.05, 0.4])
def test_nothing_that_climbs_inside_the_ball_exceeds_it(name, std):
    for seed in range(3):
        network = model(name, std=std, seed=seed)
        for bound in local_bounds(network, IDS, [1e-3, 1e-2, 1e-1]):
            run, x = block_of(network, bound.name)
            assert steepest(run, x, bound.eps, steps=10) <= bound.upper


def test_a_long_ball_of_small_weights_is_tight():
    """Where nothing is steep the bound grows slowly: at a hundredth of a token it is within half of the truth."""
    for bound in local_bounds(model("bert", std=0.05), IDS, [1e-2]):
        assert bound.upper < 1.5 * bound.lower


def test_steep_weights_behind_a_norm_keep_a_bound_that_says_something():
    """Products of norms alone gave 3.1, 10^7.9 and 25 times what is measured here."""
    first, second = local_bounds(model("bert", std=0.4), IDS, [1e-3, 1e-2], layers=["encoder.layer.0"])
    third = local_bounds(model("bert", std=0.4), IDS, [1e-2], layers=["encoder.layer.1"])[0]
    assert first.upper < 2 * first.lower
    assert third.upper < 100 * third.lower
    assert second.upper > 100 * second.lower  # there is still a radius from which nothing is said
    (bound,) = local_bounds(model("llama", std=0.2), IDS, [1e-2], layers=["layers.0"])
    assert bound.upper < 10 * bound.lower


@pytest.mark.parametrize("eps", [1e-9, 0.3, 3.0])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_a_norm_turns_by_no_more_than_its_second_derivative(kind, eps):
    """In the plane of a token and another direction the constant 2/√3 is attained: ascent comes near, never over it."""
    torch.manual_seed(0)
    norm = kind(6, eps=eps).double()
    x = torch.randn(1, 6, dtype=torch.float64)
    ball, largest = 1e-4, 0.0
    at, turn = jacrev(norm)(x[0]), float(_norm(norm, _start(x, ball)).turn[0])
    for _ in range(200):
        moved = x[0] + ball * torch.nn.functional.normalize(torch.randn(6, dtype=torch.float64), dim=0)
        largest = max(largest, float(torch.linalg.matrix_norm(jacrev(norm)(moved) - at, 2)))
    assert largest <= turn
    if kind is torch.nn.RMSNorm and eps < 1e-3:
        axis = torch.nn.functional.normalize(x[0], dim=0)
        side = torch.nn.functional.normalize(torch.randn(6, dtype=torch.float64), dim=0)
        side = torch.nn.functional.normalize(side - (side @ axis) * axis, dim=0)
        best = x[0] + ball * (axis + 2**0.5 * side) / 3**0.5
        assert float(torch.linalg.matrix_norm(jacrev(norm)(best) - at, 2)) > 0.995 * turn


@pytest.mark.parametrize("act", [torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.SiLU(), torch.nn.ReLU()])
def test_a_slope_turns_by_no_more_than_on_a_fine_grid(act):
    z, moved = torch.linspace(-5, 5, 41, dtype=torch.float64)[None], torch.tensor([[0.0], [0.1], [1.0], [4.0]])
    turns = _turns(act, z.expand(4, 41), moved.double().expand(4, 41))
    grid = z[..., None] + moved[..., None] * torch.linspace(-1, 1, 2001, dtype=torch.float64)
    points = torch.cat([z.expand(4, 41)[..., None], grid], -1).requires_grad_()
    (slopes,) = torch.autograd.grad(act(points).sum(), points)
    naive = (slopes[..., 1:] - slopes[..., :1]).abs().amax(-1)
    assert (naive <= turns + 1e-9).all()
    if not isinstance(act, torch.nn.ReLU) and getattr(act, "approximate", "none") == "none":
        torch.testing.assert_close(turns, naive, atol=1e-5, rtol=0)


def test_absolute_radii_and_chosen_layers():
    network = model("llama")
    (relative,) = local_bounds(network, IDS, [1e-3], layers=["layers.1"])
    (absolute,) = local_bounds(network, IDS, [relative.eps], layers=["layers.1"], relative=False)
    assert relative.name == "layers.1"
    assert absolute == relative
    _, x = block_of(network, "layers.1")
    assert relative.eps == pytest.approx(1e-3 * float(x.norm(dim=-1).mean()))


def test_padding_of_other_samples_does_not_count():
    network = model("bert")
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    plain = local_bounds(network, IDS, [1e-3])
    for a, b in zip(plain, local_bounds(network, {"input_ids": IDS, "attention_mask": mask}, [1e-3]), strict=True):
        assert a.upper == pytest.approx(b.upper, rel=1e-6)


@pytest.mark.parametrize(("name", "reason"), [("gemma2 capped", "capped"), ("bloom", "writes its own attention")])
def test_what_is_not_known_has_its_reason(name, reason):
    for bound in local_bounds(model(name), IDS, [1e-3]):
        assert reason in bound.reason


def test_bad_input():
    with pytest.raises(ValueError, match="eps must be finite and not negative, got -1"):
        local_bounds(model("bert"), IDS, [-1.0])
    with pytest.raises(ValueError, match=r"layers must be among encoder.layer.0, encoder.layer.1, got other"):
        local_bounds(model("bert"), IDS, [0.1], layers=["other"])
    with pytest.raises(TypeError, match="blocks of a kind that is known, got none"):
        local_bounds(torch.nn.Linear(3, 3), torch.zeros(3, 3), [0.1])


@pytest.mark.parametrize(("gap", "climb", "eps"), [(450.0, 7200.0, 0.05), (600.0, 7200.0, 0.05), (600.0, 8e5, 5e-4)])
def test_a_weight_that_a_float_takes_for_nothing_may_grow_to_one(gap, climb, eps, monkeypatch):
    """Two tokens, whose logits are far apart, and a short way on which they meet: there the attention turns."""
    config = transformers.GPT2Config(vocab_size=3, n_embd=4, n_layer=1, n_head=1, n_positions=8, bos_token_id=0,
                                     eos_token_id=0)  # fmt: skip
    config._attn_implementation, config.use_cache = "eager", False
    network = transformers.GPT2Model(config).double().eval()
    x, y, way = (torch.tensor(v, dtype=torch.float64) for v in ([1, -1, 1, -1], [1, 1, -1, -1], [0.5, -0.5, -0.5, 0.5]))
    across = torch.nn.functional.normalize(x - y, dim=0)
    block, eye = network.h[0], torch.eye(4, dtype=torch.float64)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.wte.weight[:2] = torch.stack([x, y])
        block.ln_1.weight.fill_(1)
        block.ln_2.weight.fill_(1)
        query = torch.outer(y / 4, gap * across) + torch.outer(way, climb * across)
        block.attn.c_attn.weight.copy_(torch.cat([query, eye, eye], 1))
        block.attn.c_proj.weight.copy_(eye)
    monkeypatch.setattr(f"{__name__}.IDS", torch.tensor([[0, 1], [1, 0]]))
    (bound,) = local_bounds(network, IDS, [eps])
    run, tokens = block_of(network, bound.name)
    steps = torch.linspace(-1, 1, 801, dtype=torch.float64)[:, None] * bound.eps * way
    points = tokens + torch.stack([torch.zeros_like(steps), steps], 1)[:, None]
    norms = [float(torch.linalg.matrix_norm(jacrev(run)(point).detach().reshape(8, 8), 2)) for point in points]
    assert 100 * bound.lower < max(norms) <= bound.upper
