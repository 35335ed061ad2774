r"""What a Transformer's block can do in a ball around its tokens: its Jacobian there, and how far that can turn.

At the very tokens the Jacobian J of a block is known, and so is its norm, between two ends. Within ε of them it is
:math:`J + \Delta` with :math:`\|\Delta\| \le E(\epsilon)`, E → 0, so that the bound tends to what is measured.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.maths.spectral_norm import norm_interval
from lisse.networks.bounds.blocks import Gated, residual_sums
from lisse.networks.bounds.slopes import slope
from lisse.networks.bounds.tokens import TokenAttention, is_token_norm, linear_parts, norm_parts, token_attention
from lisse.progress import Event, Listener
from lisse.taps import Tap, feed, find, is_shortage, prepared, still, tapped
from lisse.taps.attending import AttentionCall, attending

_MASKED = -1e30  # under it a logit is a mask's
_QUIET = "its layer writes its own attention, and keeps its queries to itself."
_EDGE = 1 + 1e-9  # of float64's rounding, which these sums of some thousand terms stay far below
# Lipschitz constants of the derivatives of activations, rounded up, and where those are largest and least.
_BENDS = (("QuickGELU", 0.86), ("GELU", 0.82), ("Gelu", 0.82), ("SiLU", 0.51))
_CRESTS = {"GELUActivation": math.sqrt(2), "SiLU": 2.3993572805154, "SiLUActivation": 2.3993572805154}


@dataclass(frozen=True, slots=True)
class LocalBound:
    r"""Of a block in the ball of ``eps``: no token moves further than that from the sample's.

    ``lower`` :math:`\le \sup\|J\|_2 \le` ``upper``, the Lipschitz constant of the block there in ℓ2 over all tokens;
    ``lower`` is that of the Jacobian at the sample itself. ``reason``: why there is no bound (both are NaN).
    """

    name: str
    eps: float
    lower: float = math.nan
    upper: float = math.nan
    reason: str = ""


@dataclass(frozen=True, eq=False)
class _State:
    r"""Tokens inside the block, their Jacobian in the block's tokens, and how far it can turn in the ball.

    ``jacobian`` J is ``[t, d', d]`` where tokens do not meet, ``[t, d', t, d]`` else. Since tokens met last, every
    token went its own way: :math:`J = S J_1` with ``since`` S ``[t, d', d_1]``. All turns are in ℓ2 over all tokens and
    of the worst token: ``met`` ≥ ‖J_1' − J_1‖, ``along`` ≥ ‖(S' − S)J_1‖; ``lone`` ≥ ‖S' − S‖ is alike in both.
    ``ball``: how far any token of the block's input moves; ``origin``: what states share whose tokens met last there.
    """

    tokens: Tensor
    jacobian: Tensor
    since: Tensor
    met: tuple[float, float]
    along: tuple[float, float]
    lone: float
    ball: float
    origin: object

    @cached_property
    def norms(self) -> Tensor:
        """Of the Jacobian's blocks, ``[t, t]``."""
        return _block_norms(self.jacobian)

    @cached_property
    def size(self) -> tuple[float, float]:
        """Upper bounds of ‖J‖."""
        return _both(self.norms)

    @cached_property
    def turn(self) -> tuple[float, float]:
        """Of ‖J' − J‖: :math:`S'J_1' - SJ_1 = S(J_1' - J_1) + (S' - S)J_1 + (S' - S)(J_1' - J_1)`."""
        size = float(_spectral(self.since).max())
        first, second = (((size + self.lone) * met + part) for met, part in zip(self.met, self.along, strict=True))
        return first * _EDGE, second * _EDGE

    @cached_property
    def reach(self) -> Tensor:
        """How far each token moves, ``[t]``: along the segment by the mean of the Jacobian there."""
        return self.ball * (self.norms.sum(1) + self.turn[1]) * _EDGE

    def moves(self, weight: Tensor) -> Tensor:
        r"""How far each row of ``weight`` ``[m, d']`` moves at each token, ``[t, m]``.

        :math:`|w\delta x_i| \le \epsilon(\sum_j\|wJ_{ij}\| + \|w\|\|J' - J\|)`.
        """
        rows = _along(weight, self.jacobian).norm(dim=-1)
        rows = rows.sum(2) if rows.ndim == 3 else rows
        straight = torch.minimum(rows, weight.norm(dim=1) * self.norms.sum(1)[:, None])
        return self.ball * (straight + weight.norm(dim=1) * self.turn[1]) * _EDGE


@dataclass(frozen=True, slots=True)
class _Attended:
    """One head after another, at the sample: what :func:`_attention` needs, float64."""

    tokens: Tensor  # [t, d], what entered
    rows: Tensor  # P [M, t, t]
    visible: Tensor  # which no mask hides [M, t, t]
    asking: Tensor  # ∂z_ij/∂x_i  [M, t, t, d]
    answering: Tensor  # ∂z_ij/∂x_j  [M, t, t, d]
    query: Tensor  # [M, t, h]
    key: Tensor  # [M, t, h]


class _Beyond(Exception):
    """The ball is so wide that its bound is no number."""


def local_bounds(
    model: nn.Module,
    inputs: Any,
    eps: Sequence[float],
    *,
    layers: Sequence[str] | None = None,
    relative: bool = True,
    progress: Listener | None = None,
) -> list[LocalBound]:
    r"""Proved Lipschitz constants of each block of a Transformer in balls around the first sample of ``inputs``.

    ``inputs`` is a batch of three samples or more, as the model takes it; ``eps`` are radii, ``relative`` to the mean
    norm of the tokens that enter a block. The ball: every token of the block's input within ε of its place. The
    statement: the block, as a map of these t tokens, moves no two inputs of the ball further apart (ℓ2 over all tokens)
    than ``upper`` times their distance. Blocks are those of :func:`lisse.networks.bounds.of_module` in the worst-token
    metric whose queries and keys can be read; ``layers`` chooses them by name.

    The ball is convex, so its constant is the largest :math:`\|J(x')\|` in it. J is written out at the sample and its
    norm enclosed (:func:`lisse.maths.spectral_norm.norm_interval`); with f∘g, :math:`\|J'_fJ'_g - J_fJ_g\| \le
    (\|J_f\| + E_f)E_g + \|(J'_f - J_f)J_g\|`, where the last is bounded as a product with the known J_g, and J_f is
    all that follows attention, token by token, written out too. Sums add, and:

    *Norms*, γ ⊙ u with :math:`u = c/s \cdot \sqrt d`, :math:`s^2 = |c|^2 + d\epsilon_0`. With û = c/s, μ = |û| ≤ 1, the
    second derivative is :math:`-\sqrt d[\langle û, \delta\rangle Tv + \langle û, v\rangle T\delta + û\langle\delta,
    Tv\rangle]/s^2`, T = I − ûûᵀ. Of unit δ, v at angles a, b to û its length without √d/s² is, squared, at most
    :math:`\mu^2[(\kappa\cos a\cos b + \sin a\sin b)^2 + \sin^2(a + b)]`, κ = 3(1 − μ²), largest at a = b, and
    there, with q = cos² a, :math:`\mu^2[1 + 2(1 + \kappa)q + (\kappa - 3)(\kappa + 1)q^2] \le 4/3` (at q = 1/3μ², or at
    q = 1 where 3μ² < 1). As s is 1-Lipschitz, E ≤ (2/√3)√d max|γ| ρ/(s(s − ρ)) for a token that moves by ρ.

    *MLPs*: a unit's slope turns by at most :math:`D_k`, the largest difference of σ' over the interval in which its
    argument can lie (at the ends or where σ'' is 0; else by the Lipschitz constant of σ'), which the Jacobian in front
    gives, row by row. :math:`\|W_2DW_1J\| \le \|W_2D^{1/2}\|\|D^{1/2}W_1J\|` for every diagonal of entries up to D.

    *Attention*, a head's row i with logits z, :math:`a_j = \partial z_{ij}/\partial x_i`, :math:`b_j = \partial
    z_{ij}/\partial x_j`, values v of norm V:

    .. math:: J = \sum_jP_jV\delta_j + \mathrm{Cov}_P(v, a)\delta_i + \sum_jP_j(v_j - \bar v)\langle b_j,
              \delta_j\rangle .

    In the ball a and b turn by at most α and β, so the logits' change has range at most :math:`r = \epsilon(D(a) +
    2\max|b| + \alpha + \beta)` (the means along a segment are half of α and β) and :math:`e^{-r}P \le P' \le e^rP`, so
    that :math:`\sum_j|P'_j - P_j| \le 2\tanh(r/4)`. The first sum turns by at most :math:`\|P' - P\|\|V\|`. A
    covariance's derivative along a tilt l of range r is :math:`E(v - \bar v)(a - \bar a)(l - \bar l)`, at most r
    σ(v)σ(a), and standard deviations grow by no more than e^{r/2}; with the values' own move :math:`m = \|V\|\epsilon`
    the second turns by at most :math:`(e^{r/2}\sigma(v) + m)\alpha + m e^{r/2}\sigma(a) + re^r\sigma(v)\sigma(a)`, the
    third, in :math:`(\sum_jP_j|\delta_j|^2)^{1/2}`, by :math:`\kappa = e^{r/2}[(e^{r/2}\sigma(v) + m)\beta +
    m\max|b|] + re^r\sigma(v)\max|b|`, and over all rows by :math:`(\max_j\sum_iP_{ij}\kappa_i^2)^{1/2}`. Heads side by
    side add in squares, and of the two terms with r in them at most as the stacked :math:`re^r\sigma_h(v)\sqrt{P_{ij}}
    (a_j - \bar a)` and :math:`\dots b_j` of all heads are long. Where q and k are linear and not rotated, α = β = ‖A‖ε.
    Else, with slopes L and bends H (0 where they are linear), α = s(H_q ε max|k_j -
    \bar k| + L_qL_kε) and β = s(H_k ε|q| + L_qL_kε). ∎

    Masks, windows, rotary positions, shared keys, norms of queries and keys are covered; capped logits, sinks and
    layers that keep their queries to themselves are not, with the reason. The bound is infinite where it is no number.
    Cost of a block: O((td)³), t the tokens of the sample, d their width: eight tokens of MiniLM take some seconds.
    """
    for value in eps:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"local_bounds: eps must be finite and not negative, got {value}.")
    network = copy.deepcopy(model).double().eval()
    blocks = token_blocks(network)
    if layers is not None:
        missing = [name for name in layers if name not in blocks]
        if missing:
            raise ValueError(f"local_bounds: layers must be among {', '.join(blocks)}, got {missing[0]}.")
        blocks = {name: blocks[name] for name in layers}
    if not blocks:
        raise TypeError("local_bounds: model must have a Transformer's blocks of a kind that is known, got none.")
    entries, ends, heads = _activations(network, inputs, blocks)
    bounds = []
    for index, (name, stages) in enumerate(blocks.items()):
        if progress is not None:
            progress(Event("bounds", index, len(blocks), "blocks"))
        tokens = entries[name][0]
        unit = float(tokens.norm(dim=-1).mean()) if relative else 1.0
        lower = math.nan
        for value in eps:
            radius = value * unit
            try:
                with torch.no_grad():
                    end = _stages(stages, _start(tokens, radius), heads)
                    if not torch.allclose(end.tokens, ends[name][0], rtol=1e-6, atol=1e-6 * float(tokens.abs().max())):
                        raise TypeError("its steps do not give what its forward gives.")
                    if math.isnan(lower):
                        lower, upper = norm_interval(_flat(end.jacobian), tol=1e-3)
            except _Beyond:
                bounds.append(LocalBound(name, radius, lower / _EDGE, math.inf))
                continue
            except TypeError as refusal:
                if is_shortage(refusal):
                    raise
                reason = str(refusal).removeprefix("local_bounds: ").removeprefix("of_module: ")
                bounds.append(LocalBound(name, radius, reason=reason))
                continue
            bounds.append(LocalBound(name, radius, lower / _EDGE, (upper + end.turn[0]) * _EDGE))
    if progress is not None:
        progress(Event("bounds", len(blocks), len(blocks), "blocks"))
    return bounds


def token_blocks(model: nn.Module) -> dict[str, Any]:
    """The blocks of a Transformer whose stages are known, by name; none is inside another."""
    blocks: dict[str, Any] = {}
    for name, module in model.named_modules():
        if name and not any(name.startswith(f"{outer}.") for outer in blocks) and (stages := residual_sums(module)):
            blocks[name] = stages
    return blocks


# --- what a forward shows ---------------------------------------------------------------------------------------------


def _activations(
    network: nn.Module, inputs: Any, blocks: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[nn.Module, _Attended | str]]:
    """Tokens at both ends of the blocks, and the heads of their attention layers, by one forward."""
    names = {module: name for name, module in network.named_modules()}
    layers = {
        part: names[part]
        for stages in blocks.values()
        for stage in stages
        for branch in stage.branches
        for part in branch
        if part in names and token_attention(part) is not None
    }
    gates = {layer: _gate(layer, blocks, names) for layer in layers}
    taps = {tap.name: tap for tap in find(network, inputs, ["**", "**:in"])}
    spots = {f"{name}:in" for name in blocks} | set(blocks) | set(gates.values())
    activations: dict[str, Tensor] = {}
    heads: dict[nn.Module, _Attended | str] = {}

    def on(tap: Tap, activation: Tensor) -> Tensor:
        if tap.name in gates.values():
            activation = activation.detach().requires_grad_()
        activations[tap.name] = activation
        return activation

    def hear(call: AttentionCall) -> None:
        layer = network.get_submodule(call.module)
        heads[layer] = _read(call.first(1), activations[gates[layer]], token_attention(layer))

    with (
        still(network, statistics="running", grad=True, seed=0),
        sdpa_kernel(SDPBackend.MATH),
        tapped(network, [taps[name] for name in spots], on),
        attending(network, hear, set(layers.values())),
    ):
        feed(network, prepared(network, inputs))
    values = {name: activation.detach() for name, activation in activations.items()}
    return {name: values[f"{name}:in"] for name in blocks}, {name: values[name] for name in blocks}, heads


def _gate(layer: nn.Module, blocks: dict[str, Any], names: dict[nn.Module, str]) -> str:
    """The tap of what enters an attention layer: the norm before it, or the block's entry."""
    for block, stages in blocks.items():
        for index, stage in enumerate(stages):
            for branch in stage.branches:
                if layer in branch:
                    before = branch[: branch.index(layer)]
                    if before:
                        return names[before[-1]]
                    return f"{block}:in" if index == 0 else names[stages[index - 1].end]
    raise AssertionError(names[layer])


def _read(call: AttentionCall, source: Tensor, layer: TokenAttention | None) -> _Attended | str:
    """The heads of a call at its first sample, or why they cannot be read."""
    assert layer is not None
    q, k = call.query, call.key
    if q is None or k is None:
        return _QUIET
    if call.softcap is not None or call.sinks is not None:
        return "its logits are capped, or have sinks."
    shared = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(shared, 1)
    pulled = [
        torch.autograd.grad(side, source, covectors, retain_graph=True, is_grads_batched=True)[0][:, 0]
        for side, covectors in (
            (q, _covectors(call.scale * k[0].detach(), q)),
            (k, _covectors(call.scale * q[0].detach(), k)),
        )
    ]
    heads, t = q.shape[1], q.shape[2]
    asking, answering = (part.unflatten(0, (heads, t)) for part in pulled)  # [M, other, own, d]
    q, k = q[0].detach(), k[0].detach()
    scores = call.scale * q @ k.transpose(-1, -2)
    for added in (call.bias, call.mask):
        if added is not None:
            added = added.detach()[0] if added.ndim == 4 else added.detach()
            scores = scores.masked_fill(~added, -math.inf) if added.dtype is torch.bool else scores + added
    if call.causal:
        scores = scores.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), -math.inf)
    visible = scores > _MASKED
    # A weight that a float takes for 0 may grow to one; masked it is 0 for good.
    rows = torch.softmax(scores, -1).clamp_min(torch.finfo(scores.dtype).tiny).where(visible, 0.0)
    return _Attended(source[0].detach(), rows, visible, asking.transpose(1, 2), answering, q, k)


def _covectors(values: Tensor, like: Tensor) -> Tensor:
    """For every head and token of the other side: its vector at all tokens of this side, ``[M·t, 1, M, t, h]``."""
    heads, t, width = values.shape
    covectors = values.new_zeros(heads, t, 1, *like.shape[1:])
    for head in range(heads):
        covectors[head, :, 0, head] = values[head][:, None].expand(t, like.shape[2], width)
    return covectors.flatten(0, 1)


# --- steps ------------------------------------------------------------------------------------------------------------


def _start(tokens: Tensor, radius: float) -> _State:
    return _met(tokens, _identity(tokens), (0.0, 0.0), radius)


def _identity(tokens: Tensor) -> Tensor:
    t, d = tokens.shape
    return torch.eye(d, dtype=tokens.dtype).expand(t, d, d)


def _met(tokens: Tensor, jacobian: Tensor, turn: tuple[float, float], ball: float) -> _State:
    """Where tokens have just met."""
    if not all(map(math.isfinite, turn)):
        raise _Beyond
    return _State(tokens, jacobian, _identity(tokens), turn, (0.0, 0.0), 0.0, ball, object())


def _stages(stages: Any, x: _State, heads: dict[nn.Module, _Attended | str]) -> _State:
    for stage in stages:
        parts = [x]
        for branch in stage.branches:
            behind = x
            for step in _steps(branch):
                behind = step(behind, heads)
            parts.append(behind)
        x = _sum(parts)
        if stage.end is not None:
            x = _norm(stage.end, x)
    return x


def _steps(branch: tuple[nn.Module, ...]) -> list[Callable[[_State, dict[nn.Module, _Attended | str]], _State]]:
    """A branch as steps; two linear maps around an activation are one."""
    steps: list[Callable[[_State, dict[nn.Module, _Attended | str]], _State]] = []
    parts = [part for part in branch if not isinstance(part, nn.Identity)]
    while parts:
        part = parts.pop(0)
        layer = token_attention(part)
        if layer is not None:
            steps.append(lambda x, heads, part=part, layer=layer: _attention(layer, heads.get(part, _QUIET), x))  # type: ignore[misc]
        elif is_token_norm(part):
            steps.append(lambda x, heads, part=part: _norm(part, x))  # type: ignore[misc]
        elif isinstance(part, Gated):
            steps.append(lambda x, heads, part=part: _gated(part, x))  # type: ignore[misc]
        elif len(parts) > 1 and slope(parts[0]) is not None:
            act, down = parts.pop(0), parts.pop(0)
            steps.append(lambda x, heads, up=part, act=act, down=down: _mlp(up, act, down, x))  # type: ignore[misc]
        else:
            steps.append(lambda x, heads, part=part: _linear(part, x))  # type: ignore[misc]
    return steps


def _sum(parts: list[_State]) -> _State:
    first, *further = parts
    tokens = sum((part.tokens for part in further), first.tokens)
    dense = any(part.jacobian.ndim == 4 for part in parts)
    jacobian = sum(
        (_dense(part.jacobian) if dense else part.jacobian for part in further),
        _dense(first.jacobian) if dense else first.jacobian,
    )
    if any(part.origin is not first.origin for part in further):
        return _met(tokens, jacobian, (sum(p.turn[0] for p in parts), sum(p.turn[1] for p in parts)), first.ball)
    since = sum((part.since for part in further), first.since)
    along = sum(part.along[0] for part in parts), sum(part.along[1] for part in parts)
    lone = sum(part.lone for part in parts)
    return _State(tokens, jacobian, since, first.met, along, lone, first.ball, first.origin)


def _through(
    x: _State, tokens: Tensor, jacobian: Tensor, turn: Tensor, turned: Callable[[Tensor], Tensor] | None = None
) -> _State:
    """Behind a map of single tokens with ``jacobian`` ``[t, d', d]``, which turns by at most ``turn`` ``[t]``.

    ``turned``: of how far its product with a Jacobian turns, block by block ``[t, t]``; by default the two norms'.
    """
    if not bool(torch.isfinite(turn).all()):
        raise _Beyond
    pair = turned or (lambda other: turn[:, None] * _block_norms(other))
    sizes = float((_spectral(jacobian) + turn).max()) * _EDGE
    along = _both(pair(x.jacobian))
    along = sizes * x.along[0] + along[0], sizes * x.along[1] + along[1]
    lone = sizes * x.lone + float(pair(x.since).amax()) * _EDGE
    product = _along(jacobian, x.jacobian)
    return _State(tokens, product, jacobian @ x.since, x.met, along, lone, x.ball, x.origin)


def _norm(module: nn.Module, x: _State) -> _State:
    if not is_token_norm(module):
        raise TypeError(f"{type(module).__name__} is no norm of tokens.")
    gain, shift, eps, centred = norm_parts(module)
    d = x.tokens.shape[1]
    c = x.tokens - x.tokens.mean(-1, keepdim=True) if centred else x.tokens
    s = (c.square().sum(-1, keepdim=True) + d * eps).sqrt()
    unit = c / s
    flat = torch.eye(d, dtype=c.dtype) - (1 / d if centred else 0.0)
    jacobian = math.sqrt(d) / s[:, :, None] * gain[:, None] * (flat - unit[:, :, None] * unit[:, None])
    least, largest = s[:, 0] - x.reach, float(gain.abs().max())
    # What turns by more than the two norms was not turned: ‖J'‖ ≤ max|γ|√d/s', s' ≥ √(dε₀) and ≥ s − ρ.
    most = largest * math.sqrt(d) * (1 / torch.maximum(least, torch.full_like(least, math.sqrt(d * eps))) + 1 / s[:, 0])
    turn = 2 / math.sqrt(3) * math.sqrt(d) * largest * x.reach / (s[:, 0] * least)
    turn = torch.minimum(torch.where(least > 0, turn, math.inf), most) * _EDGE
    return _through(x, math.sqrt(d) * unit * gain + shift, jacobian, turn)


def _linear(module: nn.Module, x: _State) -> _State:
    weight, bias = linear_parts(module)
    jacobian = weight.expand(len(x.tokens), *weight.shape)
    return _through(x, x.tokens @ weight.T + bias, jacobian, x.tokens.new_zeros(len(x.tokens)))


def _slopes(act: nn.Module, z: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """σ(z), σ'(z), the Lipschitz constant of σ and that of σ' (no number where σ' jumps)."""
    steep = slope(act)
    if steep is None:
        raise TypeError(f"{type(act).__name__} has no known constant.")
    with torch.enable_grad():
        point = z.detach().requires_grad_()
        value = act(point)
        (derivative,) = torch.autograd.grad(value.sum(), point)
    name = type(act).__name__
    bend = next((size for word, size in _BENDS if word in name), math.inf)
    return value.detach(), derivative, steep, bend


def _turns(act: nn.Module, z: Tensor, moved: Tensor) -> Tensor:
    """How far σ' of every unit can turn where z moves by ``moved``, both ``[t, m]``."""
    _, derivative, steep, bend = _slopes(act, z)
    if math.isinf(bend):  # a slope of 0 or 1 that jumps at 0 alone
        if type(act).__name__ != "ReLU":
            raise TypeError(f"{type(act).__name__} has no known bend.")
        return (z.abs() <= moved).to(z) * steep
    name = "GELUActivation" if isinstance(act, nn.GELU) and act.approximate == "none" else type(act).__name__
    crest = _CRESTS.get(name)
    rough = (bend * moved).clamp_max(2 * steep)
    if crest is None:
        return rough
    # σ' is monotone between its crests: the largest difference is at an end, or at a crest inside.
    points = [z - moved, z + moved, *(torch.where((z - edge).abs() <= moved, edge, z) for edge in (-crest, crest))]
    turns = torch.stack([(_slopes(act, point)[1] - derivative).abs() for point in points]).amax(0)
    return torch.minimum(turns + 1e-12, rough)


def _mlp(up: nn.Module, act: nn.Module, down: nn.Module, x: _State) -> _State:
    (first, b), (last, c) = linear_parts(up), linear_parts(down)
    z = x.tokens @ first.T + b
    value, derivative, _, _ = _slopes(act, z)
    root = _turns(act, z, x.moves(first)).sqrt()
    jacobian = torch.stack([(last * row) @ first for row in derivative])
    behind = [(last, root, first)]
    return _through(x, value @ last.T + c, jacobian, *_diagonal(behind))


def _gated(module: Gated, x: _State) -> _State:
    (gate, b), (up, c), (down, e) = (linear_parts(part) for part in (module.gate, module.up, module.down))
    g, u = x.tokens @ gate.T + b, x.tokens @ up.T + c
    value, derivative, steep, _ = _slopes(module.act, g)
    moved, raised = x.moves(gate), x.moves(up)
    turned = _turns(module.act, g, moved)
    # σ'(g)u turns by |Δσ'||u| + s|Δu| + |Δσ'||Δu|, σ(g) by s|Δg|.
    roots = (turned * (u.abs() + raised) + steep * raised).sqrt(), (steep * moved).sqrt()
    jacobian = torch.stack(
        [(down * (row * other)) @ gate + (down * opened) @ up
         for row, other, opened in zip(derivative, u, value, strict=True)]
    )  # fmt: skip
    behind = [(down, root, weight) for root, weight in zip(roots, (gate, up), strict=True)]
    return _through(x, (value * u) @ down.T + e, jacobian, *_diagonal(behind))


def _diagonal(parts: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Of sums of W₂ D W₁ with diagonals up to ``root²`` ``[t, m]``: norms ``[t]``, and those of products with J."""
    outer = [_spectral(last * root[:, None]) for last, root, _ in parts]
    local = [size * _spectral(root[..., None] * first) for size, (_, root, first) in zip(outer, parts, strict=True)]

    def turned(jacobian: Tensor) -> Tensor:
        sizes = [
            size[:, None] * _block_norms(_along(first, jacobian, root))
            for size, (_, root, first) in zip(outer, parts, strict=True)
        ]
        return sum(sizes[1:], sizes[0])

    return sum(local[1:], local[0]), turned


def _attention(layer: TokenAttention, head: _Attended | str, x: _State) -> _State:
    if isinstance(head, str):
        raise TypeError(head)
    if not torch.allclose(head.tokens, x.tokens, rtol=1e-6, atol=1e-6 * float(x.tokens.abs().max())):
        raise TypeError("its steps do not give what enters its attention.")
    w, eps = layer.weights, float(x.reach.max())
    rows = head.rows
    outs = w.out.unflatten(1, (len(rows), -1)).transpose(0, 1)  # [M, d', h]
    values = torch.einsum("td,mhd->mth", x.tokens, w.value)
    mean = rows @ values
    apart = values[:, None] - mean[:, :, None]  # v_j − v̄_i  [M, i, j, h]
    means = torch.einsum("mij,mijd->mid", rows, head.asking)
    pulls = head.asking - means[:, :, None]
    covariance = torch.einsum("mij,mijh,mijd->mihd", rows, apart, pulls)
    t = len(x.tokens)
    carried = torch.einsum("mah,mhd->mad", outs, w.value)
    jacobian = torch.einsum("mij,mad->iajd", rows, carried)
    jacobian += torch.einsum("mij,mijh,mah,mijd->iajd", rows, apart, outs, head.answering)
    index = torch.arange(t)
    jacobian[index, :, index] += torch.einsum("mah,mihd->iad", outs, covariance)

    # How far the pieces turn.
    visible = head.visible
    root = rows.sqrt()[..., None]
    spread_v = torch.linalg.matrix_norm(root * apart, ord=2) * _EDGE  # σ_i(v) [M, i]
    spread_a = torch.linalg.matrix_norm(root * pulls, ord=2) * _EDGE
    sizes_v = torch.tensor([_size(value) for value in w.value], dtype=torch.float64)[:, None]
    steep = torch.where(visible, head.answering.norm(dim=-1), 0.0).amax(-1)  # max |b|
    wide = _diameters(head.asking, visible)
    (lq, hq), (lk, hk) = (_sides(layer, side, x.tokens, eps) for side in (0, 1))
    far = (head.key - head.key.mean(1, keepdim=True)).norm(dim=-1).amax(-1)[:, None]
    alpha = abs(w.scale) * eps * (hq * far + lq * lk)
    beta = abs(w.scale) * eps * (hk * head.query.norm(dim=-1) + lq * lk)
    if layer.norms is None and not layer.turned:
        alpha = beta = eps * torch.tensor(w.logit_norms()[0], dtype=torch.float64)[:, None].expand_as(beta)
    r = eps * (wide + 2 * steep + alpha + beta) * _EDGE
    # No standard deviation is more than half a diameter, however far the rows turn.
    grown, m = torch.exp(r / 2), sizes_v * eps
    spread_v = torch.minimum(grown * spread_v, _diameters(values[:, None].expand_as(apart), visible) / 2)
    spread_a = torch.minimum(grown * spread_a, wide / 2)
    tilt = r.clamp_max(2)  # what turns by more than twice its size was not turned
    small = (spread_v + m) * alpha + m * spread_a, (spread_v + m) * beta + m * steep
    second, third = small[0] + tilt * spread_v * spread_a, small[1] + tilt * spread_v * steep
    if not bool(torch.isfinite(third).all() and torch.isfinite(second).all()):
        raise _Beyond
    tilted = 2 * torch.tanh(r / 4)  # how far a row turns, in ℓ1
    worst = (tilted * sizes_v + second + third).amax(1)
    # In ℓ2 P' ≤ e^r P carries the sums over rows; no more than √t times that of the worst token, either way.
    heavy = torch.expm1(r).clamp_max(1e100)[..., None] * rows
    kappa = (grown.clamp_max(1e100) * third).square()
    first = torch.linalg.matrix_norm(heavy, ord=2).minimum((tilted.amax(1) * heavy.sum(1).amax(1)).sqrt())
    spectral = first * sizes_v[:, 0] + second.amax(1) + (rows * kappa[..., None]).sum(1).amax(1).sqrt()
    spectral = torch.where(r.amax(1) < 200, spectral, math.inf).minimum(math.sqrt(t) * worst)
    alone = torch.tensor([_size(out) for out in outs], dtype=torch.float64)
    joined = _size(w.out)
    turns = [min(float((alone * part).sum()), joined * float(part.norm())) for part in (spectral, worst)]
    if float(r.max()) < 50:
        # The heads side by side, before the output map: in the two largest parts they look at directions of their own.
        weights = (grown * tilt * spread_v)[..., None] * rows.sqrt()
        pulled = _spectral((weights[..., None] * pulls).movedim(0, 1).flatten(1, 2)).max()
        answers = _spectral((weights[..., None] * head.answering).permute(1, 2, 0, 3)).square()
        little = small[0].amax(1) + (rows * (grown * small[1]).square()[..., None]).sum(1).amax(1).sqrt()
        beside = (
            float(first.max()) * _size(w.value.flatten(0, 1))
            + float(little.norm() + pulled + answers.sum(0).max().sqrt()),
            float((tilted * sizes_v + sum(small)).amax(1).norm() + pulled + answers.sum(1).max().sqrt()),
        )
        turns = [min(turn, joined * other) for turn, other in zip(turns, beside, strict=True)]
        turns[0] = min(turns[0], math.sqrt(t) * turns[1])
    if x.jacobian.ndim == 4:
        raise TypeError("attention behind attention in one block.")
    sizes = _both(_block_norms(jacobian))
    turned = tuple(_EDGE * ((sizes[k] + turns[k]) * x.turn[k] + turns[k] * x.size[k]) for k in (0, 1))
    product = torch.einsum("iajb,jbc->iajc", jacobian, x.jacobian)
    return _met(_mixed(layer, mean), product, turned, x.ball)  # type: ignore[arg-type]


def _mixed(layer: TokenAttention, mean: Tensor) -> Tensor:
    w = layer.weights
    return (mean + w.value_bias[:, None]).transpose(0, 1).flatten(1) @ w.out.T + w.out_bias


def _sides(layer: TokenAttention, side: int, tokens: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Slope and bend of each head's queries (0) or keys (1) in the ball, ``[M, 1]``."""
    w = layer.weights
    matrices, biases = (w.query, w.query_bias) if side == 0 else (w.key, layer.key_bias)
    sizes = torch.tensor([_size(matrix) for matrix in matrices], dtype=torch.float64)[:, None]
    if layer.norms is None:
        return sizes, torch.zeros_like(sizes)
    gain, tiny = layer.norms[side]
    h = matrices.shape[1]
    least = (torch.einsum("td,mhd->mth", tokens, matrices) + biases[:, None]).square().sum(-1)
    least = (least + h * tiny).sqrt().amin(1, keepdim=True) - sizes * eps
    least = least.clamp_min(0.0)
    return gain * math.sqrt(h) * sizes / least, 3 * gain * math.sqrt(h) * (sizes / least) ** 2


def _diameters(vectors: Tensor, visible: Tensor) -> Tensor:
    """The largest distance of two visible vectors of a row: ``[M, t, s, d]`` to ``[M, t]``."""
    apart = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    both = visible[..., None] & visible[..., None, :]
    return torch.where(both, apart, 0.0).amax((-1, -2)) * (1 + 1e-6)  # cdist's own rounding


# --- norms ------------------------------------------------------------------------------------------------------------


def _size(matrix: Tensor) -> float:
    return norm_interval(matrix.detach(), tol=1e-4).upper


def _spectral(matrices: Tensor) -> Tensor:
    """‖·‖ of each of a batch ``[…, m, n]``, by the Gram matrix of its smaller side."""
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    return torch.linalg.eigvalsh(wide @ wide.mT)[..., -1].clamp_min(0).sqrt() * _EDGE


def _block_norms(jacobian: Tensor) -> Tensor:
    """The norms of its blocks, ``[t, t]``."""
    return _spectral(jacobian).diag() if jacobian.ndim == 3 else _spectral(jacobian.transpose(1, 2))


def _both(norms: Tensor) -> tuple[float, float]:
    """Upper bounds in ℓ2 over all tokens, and of the worst token, from the norms of blocks ``[t, t]``."""
    if not bool(torch.isfinite(norms).all()):
        raise _Beyond
    return float(torch.linalg.matrix_norm(norms, ord=2)) * _EDGE, float(norms.sum(1).max()) * _EDGE


def _along(matrix: Tensor, jacobian: Tensor, root: Tensor | None = None) -> Tensor:
    """``matrix`` ``[m, d']`` (``[t, m, d']``) times J, each token's own; its rows times ``root`` ``[t, m]`` first."""
    product = (matrix @ jacobian.flatten(2)).unflatten(2, jacobian.shape[2:])
    return product if root is None else product * root.reshape(*root.shape, *[1] * (product.ndim - 2))


def _dense(jacobian: Tensor) -> Tensor:
    if jacobian.ndim == 4:
        return jacobian
    t = len(jacobian)
    dense = jacobian.new_zeros(t, jacobian.shape[1], t, jacobian.shape[2])
    index = torch.arange(t)
    dense[index, :, index] = jacobian
    return dense


def _flat(jacobian: Tensor) -> Tensor:
    return _dense(jacobian).flatten(2).flatten(0, 1)
