"""PGD beside foolbox's: at least 0.9 times its images per second at equal results.

Same start, step, steps and ball (ℓ∞ and ℓ2), on the published architecture ResNet-20 with random weights and on an
MLP; the two results are compared before the clock starts. foolbox gets a network whose parameters need no gradient,
its fastest way; ours the network as it is and as foolbox gets it. The floor is ``steps`` forwards and backwards to the
input alone.
"""

from __future__ import annotations

import sys

import torch
from timing import arguments, clock, publish, race, table
from torch import nn
from torch.nn import functional

from lisse.networks import zoo
from lisse.networks.attack import attack

EPS, STEP = 8 / 255, 2 / 255
LIMIT = 0.9


def networks() -> dict[str, tuple[nn.Module, torch.Size]]:
    """The contestants' networks, and the shape of one image."""
    torch.manual_seed(0)
    mlp = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 10)
    )
    return {"resnet20": (zoo.build("resnet20"), torch.Size((3, 32, 32))), "mlp": (mlp, torch.Size((1, 28, 28)))}


def main() -> int:
    import foolbox

    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=100, help="images a round (default %(default)s)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    after = torch.cuda.synchronize if options.device.startswith("cuda") else None
    body, under = [], []
    for name, (network, shape) in networks().items():
        network = network.eval().to(options.device)
        frozen = {key: value.detach().clone() for key, value in network.state_dict().items()}
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(options.count, *shape, generator=generator).to(options.device)
        y = torch.randint(10, (options.count,), generator=generator).to(options.device)
        for norm, kind in (("linf", "LinfProjectedGradientDescentAttack"), ("l2", "L2ProjectedGradientDescentAttack")):
            eps, step = (EPS, STEP) if norm == "linf" else (0.5, 0.125)
            peer = getattr(foolbox.attacks, kind)(abs_stepsize=step, steps=options.steps, random_start=False)
            criterion = foolbox.criteria.Misclassification(y)

            def theirs(eps=eps, peer=peer, criterion=criterion, network=network, x=x):
                network.requires_grad_(False)
                wrapped = foolbox.PyTorchModel(network, bounds=(0, 1), device=options.device)
                return peer.run(wrapped, x, criterion, epsilon=eps)

            def ours(eps=eps, step=step, norm=norm, network=network, x=x, y=y, weights=True):
                network.requires_grad_(weights)
                return attack(
                    network, x, y, method="pgd", norm=norm, eps=eps, step=step, steps=options.steps, bounds=(0, 1)
                )

            def floor(network=network, x=x, y=y):
                network.requires_grad_(False)
                for _ in range(options.steps):
                    leaf = x.detach().requires_grad_()
                    loss = functional.cross_entropy(network(leaf), y, reduction="sum")
                    torch.autograd.grad(loss, leaf)

            # In float32 a sign may turn where a gradient is all but 0: equality is looked at in float64.
            few = 8
            doubled, pictures = network.double(), x[:few].double()
            exact = foolbox.PyTorchModel(doubled, bounds=(0, 1), device=options.device)
            expected = peer.run(exact, pictures, foolbox.criteria.Misclassification(y[:few]), epsilon=eps)
            got = attack(
                doubled, pictures, y[:few], method="pgd", norm=norm, eps=eps, step=step, steps=options.steps,
                bounds=(0, 1),
            )  # fmt: skip
            apart = float((got - expected).abs().max())
            network.float()
            timings = race(
                {
                    "lisse": ours,
                    "lisse, parameters without gradient": lambda work=ours: work(weights=False),
                    "foolbox": theirs,
                    "floor": floor,
                },
                rounds=options.rounds, after=after,
            )  # fmt: skip
            assert all(torch.equal(frozen[key], value) for key, value in network.state_dict().items())
            best = {timing.name: timing.best for timing in timings}
            ratio = best["foolbox"] / best["lisse"]
            body.append(f"## {name}, {norm}, {options.count} images, {options.steps} steps, {options.device}\n")
            body.append(table(timings))
            body.append(
                f"\n{options.count / best['lisse']:,.0f} images/s against {options.count / best['foolbox']:,.0f}: "
                f"{ratio:.2f} times (limit {LIMIT}); floor {clock(best['floor'])}. Largest difference of a pixel in "
                f"float64 {apart:.1e}.\n"
            )
            if ratio < LIMIT:
                under.append(f"{name} {norm}: {ratio:.2f}")
    title = "attack" if options.device == "cpu" else "attack-gpu"
    publish(title, "PGD", "\n".join(body), write=options.write, packages=("foolbox",))
    sys.stderr.writelines(f"under the limit: {line}\n" for line in under)
    return 1 if under else 0


if __name__ == "__main__":
    sys.exit(main())
