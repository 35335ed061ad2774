"""Attention as a map of measures: Markov kernels on finite atoms, and the attention kernels built from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite
from lisse.maths.transport.measure import Measure, as_measure, carried


class Potential(Protocol):
    """Anything that gives logits ``[m, n]`` for queries ``[m, d]`` and keys ``[n, d']``."""

    def __call__(self, queries: Tensor, keys: Tensor, /) -> Tensor:
        """The logits a(q_i, k_j)."""


class Lookup(Protocol):
    """Anything that gives values ``[n, d_v]`` for keys ``[n, d]``: the function ℓ of a deterministic lookup kernel."""

    def __call__(self, keys: Tensor, /) -> Tensor:
        """The values ℓ(k_j)."""


@dataclass(frozen=True)
class DotProduct:
    r""":math:`a(x, y) = s \langle x, y \rangle`; ``scale`` :math:`1/\sqrt d` gives the scaled one of Transformers."""

    scale: float = 1.0

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``[m, n]``."""
        q, k, scale = self.products(queries, keys)
        return scale * (q @ k.transpose(-1, -2))

    def products(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, float]:
        """Two matrices and a scale whose product the logits are."""
        _same_dimension("DotProduct", queries, keys)
        return queries, keys, self.scale


@dataclass(frozen=True, eq=False)
class Bilinear:
    r""":math:`a(x, y) = s \langle W_Q x + b_Q, W_K y + b_K \rangle` with ``wq`` ``[k, d]``, ``wk`` ``[k, d']``.

    The paper's head has the scale :math:`1/\sqrt k` ([vuckovic2021] sec. 4.2); here it is 1 unless given.
    """

    wq: Tensor
    wk: Tensor
    scale: float = 1.0
    bq: Tensor | None = None
    bk: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("wq", "wk", "bq", "bk"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))
        if self.wq.ndim != 2 or self.wk.ndim != 2 or len(self.wq) != len(self.wk):
            raise ValueError(
                f"Bilinear: wq and wk must be matrices with as many rows, got {list(self.wq.shape)} and "
                f"{list(self.wk.shape)}."
            )

    @property
    def matrix(self) -> Tensor:
        r"""M ``[d, d']`` of :math:`a(x, y) = x^\top M y` (without the biases)."""
        return self.scale * self.wq.T @ self.wk

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``[m, n]``."""
        q, k, scale = self.products(queries, keys)
        return scale * (q @ k.transpose(-1, -2))

    def products(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, float]:
        """Two matrices and a scale whose product the logits are."""
        for name, points, weight in (("queries", queries, self.wq), ("keys", keys, self.wk)):
            if points.shape[-1] != weight.shape[1]:
                raise ValueError(f"Bilinear: {name} must lie in R^{weight.shape[1]}, got R^{points.shape[-1]}.")
        return _linear(queries, self.wq, self.bq), _linear(keys, self.wk, self.bk), self.scale


@dataclass(frozen=True)
class Gaussian:
    r""":math:`a(x, y) = -\gamma \|x - y\|_2^2`; ``gamma`` :math:`1/\sqrt d` is the one of [kim2021]."""

    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ValueError(f"Gaussian: gamma must be positive, got {self.gamma}.")

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``[m, n]``."""
        _same_dimension("Gaussian", queries, keys)
        # Differences first: the expanded square loses the digits of points that are near each other and far from 0.
        return -self.gamma * (queries.unsqueeze(-2) - keys.unsqueeze(-3)).pow(2).sum(-1)


@dataclass(frozen=True, eq=False)
class Linear:
    """The lookup ℓ(k) = W k + b, ``weight`` ``[d_v, d]``: the value matrix of a Transformer."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, keys: Tensor) -> Tensor:
        """The values ``[n, d_v]``."""
        weight = torch.as_tensor(self.weight)
        if weight.ndim != 2 or weight.shape[1] != keys.shape[-1]:
            raise ValueError(f"Linear: weight must be [d_v, {keys.shape[-1]}], got {list(weight.shape)}.")
        return _linear(keys, weight, self.bias)


@dataclass(frozen=True, eq=False)
class Table:
    """The lookup of remark 1: ℓ(k_i) = v_i for the keys ``[n, d]`` it was given, and no other. Not Lipschitz."""

    keys: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ValueError(f"Table: values must be one per key, got {len(self.values)} for {len(self.keys)}.")

    def __call__(self, keys: Tensor) -> Tensor:
        """The values ``[n, d_v]``."""
        if keys.shape == self.keys.shape and torch.equal(keys, self.keys):
            return self.values
        matches = (keys.unsqueeze(-2) == self.keys).all(-1)
        if not bool(matches.any(-1).all()):
            raise ValueError("Table: keys must be among those of the table, got one that is not.")
        return self.values[matches.to(torch.uint8).argmax(-1)]


def _linear(points: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b in the type of the points: float32 weights of a network may meet float64 points."""
    return torch.nn.functional.linear(
        points, weight.to(points), None if bias is None else torch.as_tensor(bias).to(points)
    )


def _same_dimension(where: str, queries: Tensor, keys: Tensor) -> None:
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"{where}: queries and keys must have one dimension, got {queries.shape[-1]} and {keys.shape[-1]}."
        )


class MeasureKernel(Protocol):
    """What carries queries through a context: attention, several heads, a Transformer layer."""

    def __call__(self, queries: Measure | Values, context: Measure | Values, /) -> Measure:
        """The queries after one interaction with the context."""


@dataclass(frozen=True, eq=False)
class FiniteKernel:
    r"""A Markov kernel from n places to m atoms: a row-stochastic ``matrix`` ``[n, m]`` and the ``atoms`` ``[m, d]``.

    :math:`M(x_i, \cdot) = \sum_j M_{ij} \delta_{y_j}`. On finite sets, integration is matrix multiplication
    ([vuckovic2021] def. 2).
    """

    matrix: Tensor
    atoms: Tensor

    def __post_init__(self) -> None:
        matrix, atoms = torch.as_tensor(self.matrix), torch.as_tensor(self.atoms)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "atoms", atoms)
        if matrix.ndim != 2 or atoms.ndim != 2 or matrix.shape[1] != len(atoms):
            raise ValueError(
                f"FiniteKernel: matrix [n, m] must have one column per atom, got {list(matrix.shape)} for {len(atoms)}."
            )
        off = float((matrix.detach().double().sum(1) - 1).abs().max())
        if float(matrix.detach().min()) < 0 or not off <= 1e-4:
            raise ValueError(
                f"FiniteKernel: matrix must have non-negative rows that sum to 1, got rows off by {off:g}."
            )

    def left(self, measure: Measure | Values) -> Measure:
        r"""The left action :math:`\mu M = \sum_i \mu_i M(x_i, \cdot)`; ``measure`` has one atom per row."""
        mu = as_measure("FiniteKernel.left", "measure", measure)
        if len(mu) != len(self.matrix):
            raise ValueError(f"FiniteKernel.left: measure must have {len(self.matrix)} atoms, got {len(mu)}.")
        mass = mu.mass.to(self.matrix) @ self.matrix
        return Measure(self.atoms, mass / mass.sum())

    def on(self, values: Tensor) -> Tensor:
        r"""The action on functions, :math:`M(f)(x_i) = \sum_j M_{ij} f(y_j)`; ``values`` ``[m, …]`` are the f(y_j)."""
        return torch.einsum("nm,m...->n...", self.matrix, values)

    def then(self, other: FiniteKernel) -> FiniteKernel:
        """The composition M N, where N starts at our atoms."""
        if len(other.matrix) != len(self.atoms):
            raise ValueError(
                f"FiniteKernel.then: other must start at {len(self.atoms)} atoms, got {len(other.matrix)}."
            )
        return FiniteKernel(self.matrix @ other.matrix, other.atoms)

    def row(self, index: int) -> Measure:
        """The measure M(x_i, ·)."""
        return Measure(self.atoms, self.matrix[index] / self.matrix[index].sum())

    def contraction(self, points: Tensor, *, ground: float = 1) -> Tensor:
        r"""τ of this kernel as a map of measures on ``points`` ``[n, d]``, exactly ([vuckovic2021] lemma 1.2):
        :math:`\max_{i \ne k} W_1(M(x_i, \cdot), M(x_k, \cdot)) / \|x_i - x_k\|`. O(n²) transport problems.
        """
        from lisse.maths.transport import wasserstein

        best = self.matrix.new_zeros(())
        for i in range(len(self.matrix)):
            for k in range(i):
                apart = torch.linalg.vector_norm(points[i] - points[k], ord=ground)
                if apart > 0:
                    best = torch.maximum(best, wasserstein(self.row(i), self.row(k), ground=ground).to(best) / apart)
        return best


def boltzmann_gibbs(measure: Measure | Values, log_potential: Tensor) -> Measure:
    r"""The Boltzmann–Gibbs transformation :math:`\Psi_g(\nu) = g \nu / \nu(g)`, g given by ``log_potential`` ``[n]``.

    Bayes' rule for the prior ν and the likelihood g ([vuckovic2021] def. 3, remark 3); in the log domain.
    """
    nu = as_measure("boltzmann_gibbs", "measure", measure)
    logits = torch.as_tensor(log_potential)
    if logits.shape != (len(nu),):
        raise ValueError(f"boltzmann_gibbs: log_potential must have shape [{len(nu)}], got {list(logits.shape)}.")
    return Measure(nu.points, _softmatch(logits[None].to(nu.points), nu, None, "boltzmann_gibbs")[0])


def softmatch(
    potential: Potential, queries: Measure | Values, context: Measure | Values, *, mask: Tensor | None = None
) -> FiniteKernel:
    r"""The softmatch kernel :math:`\Psi_G(\nu)(x, dy) \propto G(x, y)\,\nu(dy)` from the queries to the context.

    For a uniform context its matrix is softmax(a(q_i, k_j)) ([vuckovic2021] def. 4). ``mask``: see ``AttentionKernel``.
    """
    q, nu = _of_one_type(as_measure("softmatch", "queries", queries), as_measure("softmatch", "context", context))
    return FiniteKernel(_softmatch(potential(q.points, nu.points), nu, mask, "softmatch"), nu.points)


def projection(measure: Measure | Values) -> Measure:
    r"""The projection :math:`\Pi[\mu] = \delta_{\bar\mu}` to the mean :math:`\int x\,d\mu` ([vuckovic2021] eq. 2)."""
    return Measure(as_measure("projection", "measure", measure).mean[None])


def ball_projection(points: Values, radius: float) -> Tensor:
    r"""Each point ``[n, d]`` moved to the nearest one of the ℓ2-ball: the knob for attention's regularity (sec. 5.2).

    It stretches no ℓ2 distance, but ℓ1 distances, and so :math:`W_1` with ground ℓ1, by up to
    :math:`\tfrac12 + \tfrac12\sqrt d`. Bounds in ℓ1 such as ``attention_on_ball`` must be multiplied by that. (The
    projection to a box, ``points.clamp(-radius, radius)``, stretches neither; it goes with ``domain="box"``.)

    Proof: on segments inside it is the identity; outside its Jacobian is :math:`\frac R{|x|}(I - uu^\top)`, u = x/|x|.
    The ℓ1 norm of a matrix is its largest column sum, here at most, with :math:`a = |u_j|` and Cauchy–Schwarz on the
    other entries, :math:`1 - a^2 + a\sum_{i \ne j}|u_i| \le 1 - a^2 + a\sqrt{(d - 1)(1 - a^2)}`. With a = sin θ that is
    :math:`\tfrac12 + \tfrac12(\cos 2\theta + \sqrt{d - 1}\sin 2\theta) \le \tfrac12 + \tfrac12\sqrt d`, with
    equality at the sphere for :math:`\tan 2\theta = \sqrt{d - 1}` and equal other entries. ∎
    """
    if not radius > 0:
        raise ValueError(f"ball_projection: radius must be positive, got {radius}.")
    tensor = torch.as_tensor(points)
    size = torch.linalg.vector_norm(tensor, dim=-1, keepdim=True)
    return tensor * torch.clamp(radius / size.clamp_min(torch.finfo(tensor.dtype).tiny), max=1.0)


@dataclass(frozen=True, eq=False)
class AttentionKernel:
    r"""The attention kernel :math:`A_\mu(q, \cdot) = \Pi[\Psi_{G(q, \cdot)}(\mu) L]` ([vuckovic2021] def. 6).

    Called with queries and a context, it gives the queries' measure carried along: atom i moves to
    :math:`\sum_j w_j G(q_i, k_j) \ell(k_j) / \sum_j w_j G(q_i, k_j)` and keeps its weight. For a uniform context that
    is attention, softmax(a(q, k)) v (prop. 1); ``kernel(x, x)`` is self-attention. ``lookup`` is ℓ (``None``: the
    identity), any function of points ``[n, d]``, such as ``Linear`` or ``Table``.

    ``mask`` ``[m, n]``: booleans, true where a query may look, or numbers added to the logits (-inf: not). O(m n d).
    """

    potential: Potential
    lookup: Lookup | None = None

    def __call__(self, queries: Measure | Values, context: Measure | Values, *, mask: Tensor | None = None) -> Measure:
        """The queries after they met the context; ``mask`` ``[m, n]`` says who may look at whom."""
        q, nu = _of_one_type(as_measure("AttentionKernel", "queries", queries),
                             as_measure("AttentionKernel", "context", context))  # fmt: skip
        values = nu.points if self.lookup is None else self.lookup(nu.points)
        if len(values) != len(nu):
            raise ValueError(f"AttentionKernel: lookup must give one value per key, got {len(values)} for {len(nu)}.")
        moved = self._outputs(q.points, nu, values, _checked_mask("AttentionKernel", mask, len(q), nu))
        if not all_finite(moved):
            raise ValueError(_OVERFLOW.format(where="AttentionKernel"))
        return carried(q, moved)

    def _outputs(self, queries: Tensor, nu: Measure, values: Tensor, mask: Tensor | None) -> Tensor:
        # The fused kernel has no second derivatives, so it serves only where no derivative is asked for.
        inputs = [queries, nu.points, values, *(() if nu.weights is None else (nu.weights,))]
        still = not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs))
        if still and isinstance(self.potential, DotProduct | Bilinear):
            q, k, scale = self.potential.products(queries, nu.points)
            if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
                added = _added(mask, nu, len(queries))
                return torch.nn.functional.scaled_dot_product_attention(
                    q[None, None], k[None, None], values[None, None].to(q), attn_mask=added, scale=scale
                )[0, 0]
        return _softmatch(self.potential(queries, nu.points), nu, mask, "AttentionKernel") @ values


@dataclass(frozen=True, eq=False)
class MultiHeadKernel:
    r"""Several heads: :math:`M = \Pi \circ \frac1H \sum_h A^h O^h` with :math:`O^h: z \mapsto H z W^O_h`.

    That is concatenation and one matrix ([vuckovic2021] app. A): the outputs are :math:`\sum_h y^h W^O_h`. ``out`` is
    a list of matrices ``[d_h, d]``, one per head, or all of them stacked ``[H d_h, d]``, acting on rows;
    ``bias`` ``[d]`` is added.
    """

    heads: Sequence[AttentionKernel]
    out: Sequence[Tensor] | Tensor
    bias: Tensor | None = None

    def __call__(self, queries: Measure | Values, context: Measure | Values, *, mask: Tensor | None = None) -> Measure:
        """The queries after they met the context; ``mask`` ``[m, n]`` says who may look at whom."""
        q = as_measure("MultiHeadKernel", "queries", queries)
        if not self.heads:
            raise ValueError("MultiHeadKernel: heads must hold at least one kernel, got none.")
        outputs = [head(q, context, mask=mask).points for head in self.heads]
        out = self.out if isinstance(self.out, Tensor) and self.out.ndim == 2 else torch.cat(list(self.out))
        width = sum(y.shape[1] for y in outputs)
        if len(out) != width:
            raise ValueError(f"MultiHeadKernel: out must have {width} rows, one per head output, got {len(out)}.")
        mixed = torch.cat(outputs, 1) @ out.to(outputs[0])
        return q.push(mixed if self.bias is None else mixed + self.bias)


@dataclass(frozen=True, eq=False)
class TransformerKernel:
    """T = A F: attention followed by a function of each token, as it is (prop. 2) or with the usual residuals.

    ``feedforward`` acts on points ``[n, d]``. ``residual`` adds the input of each of the two steps to its output.
    """

    attention: AttentionKernel | MultiHeadKernel
    feedforward: Lookup
    residual: bool = False

    def __call__(self, queries: Measure | Values, context: Measure | Values, *, mask: Tensor | None = None) -> Measure:
        """The queries after they met the context; ``mask`` ``[m, n]`` says who may look at whom."""
        q = as_measure("TransformerKernel", "queries", queries)
        mixed = self.attention(q, context, mask=mask).points
        mixed = q.points + mixed if self.residual else mixed
        after = self.feedforward(mixed)
        return q.push(mixed + after if self.residual else after)


def evolve(
    kernels: MeasureKernel | Sequence[MeasureKernel], measure: Measure | Values, depth: int | None = None
) -> tuple[Measure, ...]:
    r"""The particles over depth, :math:`\delta_{q^{h+1}} = \delta_{q^h} A^h_{m(Q^h)}`: ``depth + 1`` measures.

    The first is the given one. One kernel is used at every depth; of a list, one after the other, from the beginning
    again if ``depth`` is larger ([vuckovic2021] sec. 4.1).
    """
    layers = [kernels] if callable(kernels) else list(kernels)
    steps = len(layers) if depth is None else depth
    if steps < 0 or not layers:
        raise ValueError(f"evolve: depth must not be negative and kernels not empty, got {depth} and {len(layers)}.")
    states = [as_measure("evolve", "measure", measure)]
    for step in range(steps):
        states.append(layers[step % len(layers)](states[-1], states[-1]))
    return tuple(states)


_OVERFLOW = "{where}: potential must give finite logits, got NaN or infinity. Scale the points or the potential."


def _softmatch(logits: Tensor, nu: Measure, mask: Tensor | None, where: str) -> Tensor:
    if not all_finite(logits):
        raise ValueError(_OVERFLOW.format(where=where))
    added = _added(_checked_mask(where, mask, len(logits), nu), nu, len(logits))
    return torch.softmax(logits if added is None else logits + added.to(logits), -1)


def _of_one_type(queries: Measure, context: Measure) -> tuple[Measure, Measure]:
    """Both in the wider of their two floating types."""
    if queries.points.dtype == context.points.dtype:
        return queries, context
    kind = torch.promote_types(queries.points.dtype, context.points.dtype)
    wide = [Measure(measure.points.to(kind), measure.weights) for measure in (queries, context)]
    return wide[0], wide[1]


def _checked_mask(where: str, mask: Tensor | None, m: int, nu: Measure) -> Tensor | None:
    """The mask ``[m, n]``, if it leaves every query a key that has mass."""
    if mask is None:
        return None
    allowed, n = torch.as_tensor(mask), len(nu)
    if allowed.ndim != 2 or allowed.shape[0] not in (1, m) or allowed.shape[1] != n:
        raise ValueError(f"{where}: mask must have shape [{m}, {n}], got {list(allowed.shape)}.")
    if allowed.dtype != torch.bool and not allowed.is_floating_point():
        raise TypeError(f"{where}: mask must be booleans or numbers to add, got {allowed.dtype}. Try mask.bool().")
    if allowed.dtype != torch.bool and not bool((allowed < torch.inf).all()):
        raise ValueError(f"{where}: mask must hold finite numbers or -inf, got NaN or +inf.")
    open_ = allowed if allowed.dtype == torch.bool else allowed > -torch.inf
    if nu.weights is not None:
        open_ = open_ & (nu.weights.detach() > 0)
    blind = (~open_.any(1)).nonzero().flatten().tolist()
    if blind:
        heavy = "" if nu.weights is None else " with mass"
        raise ValueError(f"{where}: mask must leave every query a key{heavy}, got none for query {blind[0]}.")
    return (allowed if allowed.dtype == torch.bool else allowed.to(nu.points)).expand(m, n)


def _added(mask: Tensor | None, nu: Measure, m: int) -> Tensor | None:
    """What the mask and the masses of the context add to the logits of m queries, ``[m, n]``; nothing without both."""
    logs = None if nu.weights is None else nu.weights.log().expand(m, -1)
    if mask is None:
        return logs
    if mask.dtype == torch.bool:
        return nu.points.new_zeros(mask.shape).masked_fill(~mask, -torch.inf) + (0.0 if logs is None else logs)
    return mask if logs is None else logs + mask.to(logs)
