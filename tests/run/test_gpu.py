"""The core on a CUDA device: the same layers, the same values to float32 rounding, random numbers of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lisse
from lisse import taps
from lisse.data import Dataset
from lisse.instruments import Robustness, Sensitivity
from lisse.instruments.jacobians import graph, kept_bytes
from lisse.maths.jacobian import jacobian_norm
from lisse.networks import zoo
from lisse.run.fingerprint import model_fingerprint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def exact():
    """Full float32 convolutions: TF32 keeps ten bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def images(n: int = 130) -> torch.Tensor:
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_recording_on_the_gpu_is_the_cpus(exact):
    on_cpu = lisse.record(zoo.build("resnet20").eval(), images())
    on_gpu = lisse.record(zoo.build("resnet20").eval(), images(), device="cuda")
    assert list(on_cpu) == list(on_gpu)
    for name in on_cpu:
        assert on_gpu[name].device.type == "cuda"
        torch.testing.assert_close(on_gpu[name].cpu(), on_cpu[name], rtol=1e-3, atol=1e-4)


def test_layers_leave_the_gpu_where_memory_says_so():
    whole = lisse.record(zoo.build("resnet20").eval(), images(), device="cuda")
    few = lisse.record(zoo.build("resnet20").eval(), images(), device="cuda", memory="20MiB")
    places = {few[name].device.type for name in few}
    assert places == {"cuda", "cpu"}
    assert sum(few[name].nbytes for name in few if few[name].is_cuda) <= 20 * 2**20
    for name in whole:
        assert torch.equal(few[name].cpu(), whole[name].cpu())


def test_a_network_is_hashed_by_its_bytes_wherever_it_lies():
    model = zoo.build("resnet20").eval()
    before = model_fingerprint(model)
    assert model_fingerprint(model.cuda()) == before
    assert model_fingerprint(model) == before  # known by its checksums
    weight = next(model.parameters())
    weight.data.view(-1)[3] += 1e-3
    changed = model_fingerprint(model)
    assert changed != before
    assert changed == model_fingerprint(model.cpu())


def test_little_memory_and_half_precision():
    full = lisse.record(zoo.build("resnet20").eval(), images(), device="cuda")
    small = lisse.record(zoo.build("resnet20").eval(), images(), device="cuda", memory="1MiB", dtype=torch.float16)
    for name in full:
        torch.testing.assert_close(small[name].float().cpu(), full[name].cpu(), rtol=1e-2, atol=1e-2)


def test_nan_on_the_gpu_names_layer_and_sample():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).cuda()
    x = torch.rand(50, 4)
    x[31] = float("nan")
    with pytest.raises(ValueError, match="layer input, sample 31"):
        lisse.record(model, x)["2"]


def test_the_random_state_of_every_device_is_put_back():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda().train()
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    lisse.record(model, torch.rand(50, 4), seed=3)["1"]
    # torch.rand(50, 4) above drew from the CPU's generator: compare the GPU's, then the CPU's around still alone
    assert torch.equal(torch.cuda.get_rng_state(), before[1])
    state = torch.get_rng_state()
    with taps.still(model, seed=9):
        torch.rand(3)
        torch.rand(3, device="cuda")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


def test_a_cpu_model_leaves_the_gpus_generator_alone():
    state = torch.cuda.get_rng_state()
    lisse.record(nn.Linear(4, 4), torch.rand(50, 4), seed=3)["output"]
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_views_on_the_gpu_are_the_cpus(exact):
    noise = torch.randn(120, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def found(device):
        run = lisse.Run(zoo.build("fc4").eval(), Dataset("d", images()), device=device, batch=50)

        def make(batch):
            rows = noise[batch.start : batch.start + len(batch.inputs)]
            return {"noisy": batch.inputs + 0.1 * rows.to(batch.inputs)}

        return run.views(120, make, lambda tap, clean, view: (view - clean).flatten(1).norm(dim=1))["noisy"]

    on_cpu, on_gpu = found("cpu"), found("cuda")
    for name in on_cpu:
        torch.testing.assert_close(on_gpu[name], on_cpu[name], rtol=1e-3, atol=1e-4)


def test_draws_are_made_on_the_gpu_and_do_not_depend_on_the_batch_size():
    run = lisse.Run(zoo.build("fc4").eval(), Dataset("d", images()), device="cuda", batch=50)
    whole = run.draw("n", 0, 120, (3, 256, 256))  # 21 samples a block
    parts = [run.draw("n", start, 15, (3, 256, 256)) for start in range(0, 120, 15)]
    assert whole.device.type == "cuda"
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(run.draw("m", 0, 1, (3, 256, 256)), whole[:1])
    assert torch.equal(lisse.Run(run.model, run.data, device="cuda").draw("n", 0, 1, (3, 256, 256)), whole[:1])


def test_a_measured_graph_fits_the_memory_it_says():
    run = lisse.Run(zoo.build("resnet20").eval(), Dataset("d", images()), device="cuda")
    count, size = 8, kept_bytes(run, run.taps.source)
    (batch,) = run.data.batches(count, stop=count, device=run.device)
    before = torch.cuda.memory_allocated()
    with graph(run, list(dict.fromkeys([run.taps.source, *run.taps])), batch.inputs, run.taps.source) as graphs:
        activations = graphs[1]
        y = activations[run.taps[-1].name]
        covector = torch.zeros_like(y, requires_grad=True)
        torch.autograd.grad(y, activations[run.taps.source.name], covector, create_graph=True)
        held = torch.cuda.memory_allocated() - before
    assert count * size == pytest.approx(held, rel=0.25)


@pytest.mark.parametrize("gain", [0.4, 1.0, 2.4])
@pytest.mark.parametrize("width", [6, 64, 96])
def test_jacobian_norms_on_the_gpu_are_the_cpus_also_of_products_out_of_range(gain, width):
    """The GPU takes vectors in cuts, asks once a step, and takes a step again where a product left the range."""
    torch.manual_seed(0)
    weights = [gain * torch.linalg.qr(torch.randn(width, width)).Q for _ in range(100)]
    weights[50] = weights[50] @ torch.diag(torch.linspace(1, 0.1, width))
    start = torch.randn(3, width)

    def norm(device):
        x = torch.ones(3, width, device=device, requires_grad=True)
        y = x
        for weight in weights:
            y = y @ weight.to(device)
            y = y - y.detach()
        return jacobian_norm(y, x, start=start, max_iter=40, tol=1e-5)

    ours, theirs = norm("cuda"), norm("cpu")
    assert ours.value.device.type == ours.direction.device.type == ours.converged.device.type == "cuda"
    torch.testing.assert_close(ours.value.cpu(), theirs.value, rtol=1e-4, atol=0)
    assert bool(ours.converged.all()) == bool(theirs.converged.all())


def test_robustness_on_the_gpu_repeats_itself_in_any_batch():
    data = Dataset("d", images(40), targets=torch.arange(40) % 10)
    options = Robustness(corruptions=("gaussian_noise", "shot_noise", "glass_blur"), severities=(3,), distances=10)
    model = zoo.build("resnet20").eval()
    first, second = (
        lisse.measure(model, data, options, device="cuda", batch=batch)["robustness"].arrays for batch in (40, 13)
    )
    answers = {name: values for name, values in first.items() if name.startswith("right/corruption")}
    assert len(answers) == 3
    for name, values in answers.items():  # an answer may stand on an edge
        assert (second[name] != values).mean() <= 0.05


def test_sensitivity_on_the_gpu_is_the_cpus(exact):
    options = Sensitivity(samples=24, points=6, tol=1e-4, max_iter=200)
    profiles = [
        lisse.measure(zoo.build("resnet20").eval(), Dataset("d", images()), options, device=device)
        for device in ("cpu", "cuda")
    ]
    for ours, theirs in zip(profiles[0].rows, profiles[1].rows, strict=True):
        assert (ours.quantity, ours.layer, ours.at) == (theirs.quantity, theirs.layer, theirs.at)
        assert ours.value == pytest.approx(theirs.value, rel=1e-2)
    assert profiles[1].provenance["device"] == torch.cuda.get_device_name()
