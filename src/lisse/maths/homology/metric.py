"""Euclidean distance matrices, exact to rounding, at the speed of a matrix product; and checks of given ones."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite

# Under this share of |x|² + |y|² the difference |x|² + |y|² - 2⟨x, y⟩ has lost three digits: those pairs are redone.
_NEAR = 1e-3
_BAND = 1024  # rows of one product; on the CPU a symmetric one makes the square on the diagonal
_BLOCK = 2**19  # numbers of a block of features: 4 MB, which a core's cache holds
_PIECE = 2**18  # numbers of the result that are finished while they are in the cache
_PAIR_NUMBERS = 2**22


def plain_tensor(values: Values) -> Tensor:
    """A tensor as it is; an array of any layout (a reversed one has strides that a tensor cannot have)."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.ascontiguousarray(values))


def as_points(points: Values, *, name: str) -> Tensor:
    """The cloud ``[n, d]`` (further axes flattened), checked: two points or more, every number finite."""
    cloud = as_cloud(points, name=name)
    if not all_finite(cloud):
        bad = int((~torch.isfinite(cloud)).any(1).nonzero()[0])
        raise ValueError(f"{name}: points must be finite, got NaN or infinity in point {bad}.")
    return cloud


def as_cloud(points: Values, *, name: str) -> Tensor:
    """The cloud ``[n, d]`` (further axes flattened) of two points or more, not yet looked through for NaN."""
    cloud = plain_tensor(points)
    if cloud.ndim < 2:
        raise ValueError(
            f"{name}: points must have shape [n, d], got {list(cloud.shape)}. For points on a line give [n, 1]."
        )
    cloud = cloud.flatten(1)
    if len(cloud) < 2 or cloud.shape[1] < 1:
        raise ValueError(f"{name}: points must hold at least 2 points in 1 dimension or more, got {list(cloud.shape)}.")
    if cloud.is_complex():
        raise TypeError(f"{name}: points must be real, got {cloud.dtype}.")
    return cloud if cloud.is_floating_point() else cloud.double()


def check_either(name: str, points: object, distances: object) -> None:
    """Refuse neither and both of points and distances."""
    if (points is None) == (distances is None):
        raise ValueError(f"{name}: points or distances must be given, got {'neither' if points is None else 'both'}.")


def as_distances(distances: Values, *, name: str) -> Tensor:
    """A given distance matrix ``[n, n]`` in float64, checked and made exactly symmetric with a zero diagonal.

    Asymmetry and a diagonal of the size of rounding (1e-6 of the largest distance for float32 and below, 1e-12 for
    float64) are repaired: an engine that is told two values for one edge may never end. More than that is refused.
    """
    table = plain_tensor(distances)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"{name}: distances must be a square matrix, got shape {list(table.shape)}.")
    if len(table) < 2:
        raise ValueError(f"{name}: distances must be those of at least 2 points, got {len(table)}.")
    if table.is_complex():
        raise TypeError(f"{name}: distances must be real, got {table.dtype}.")
    low = table.is_floating_point() and torch.finfo(table.dtype).eps > 1e-10
    matrix = table.detach().double()
    if not all_finite(matrix):
        raise ValueError(f"{name}: distances must be finite, got NaN or infinity.")
    size = float(matrix.abs().max())
    slack = size * (1e-6 if low else 1e-12)
    worst = float((matrix - matrix.T).abs().max())
    if worst > slack:
        raise ValueError(
            f"{name}: distances must be symmetric, got entries that differ by {worst:.3g} from their mirror. "
            "Give (D + D.T) / 2 if that is what you mean."
        )
    diagonal = float(matrix.diagonal().abs().max())
    if diagonal > slack:
        raise ValueError(f"{name}: distances must be 0 on the diagonal, got {diagonal:.3g}.")
    least = float(matrix.min())
    if least < -slack:
        raise ValueError(f"{name}: distances must be at least 0, got {least:.3g}.")
    matrix = ((matrix + matrix.T) / 2).clamp_(min=0)
    return matrix.fill_diagonal_(0)


def centred(points: Tensor) -> tuple[Tensor, Tensor, float]:
    """Points less their mean, over a power of two, in float64; their squared norms; and that power of two.

    The scale keeps squares of very large or very small numbers within range and rounds nothing.
    """
    cloud = points.detach().to(torch.float64)
    cloud = cloud - cloud.mean(0)
    scale = _power_of_two(float(cloud.abs().max()))
    cloud = (cloud / scale).contiguous()
    return cloud, cloud.square().sum(1), scale


def _power_of_two(size: float) -> float:
    return 2.0 ** max(-1000, min(1000, math.frexp(size)[1])) if size > 0 else 1.0


def pair_lengths(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances of the pairs ``points[first], points[second]`` by direct differences in float64."""
    lengths = torch.empty(len(first), dtype=torch.float64, device=points.device)
    step = max(1, _PAIR_NUMBERS // max(1, points.shape[1]))
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        difference = points[first[part]].double() - points[second[part]].double()
        lengths[part] = torch.linalg.vector_norm(difference, dim=1)
    return lengths


def distance_matrix(
    points: Values,
    *,
    rows: Values | None = None,
    device: torch.device | str | None = None,
    precision: torch.dtype = torch.float64,
) -> Tensor:
    r"""Euclidean distances of a cloud ``[n, d]``, or of its ``rows``: ``[n, n]`` in float64, symmetric, diagonal 0.

    :math:`\|x_i - x_j\|^2 = g_{ii} + g_{jj} - 2 g_{ij}` with the Gram matrix g of the centred points, added up over
    blocks of features that the cache holds, one triangle of it. The cloud is never copied as a whole: it may lie in a
    mapped file, or be larger in float64 than the memory there is. ``device`` is where the products are made and the
    result lies (default: where the points are).

    Where the square is under a thousandth of :math:`g_{ii} + g_{jj}` the subtraction has lost digits, and that pair is
    redone from :math:`x_i - x_j`. In float64 this agrees with direct differences to about 1e-13 relative (1e-12 at
    worst), and points that coincide are at exactly 0. ``precision=torch.float32`` makes the products in float32 (about
    1e-6 relative, 1e-4 at worst; near pairs are redone in float64 all the same).

    Cost: n² d / 2 multiply-adds, n² numbers, and one pass over the cloud.
    """
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"distance_matrix: precision must be torch.float32 or torch.float64, got {precision}.")
    cloud = as_cloud(points, name="distance_matrix").detach()
    index = None
    if rows is not None:
        index = plain_tensor(rows)
        if index.ndim != 1 or index.is_floating_point() or len(index) < 2:
            raise ValueError(f"distance_matrix: rows must be 2 indices or more, got shape {list(index.shape)}.")
    matrix, scale = squares(cloud, rows=index, device=device, precision=precision, name="distance_matrix")
    return _roots(matrix, scale)


def distance_matrices(points: Values, rows: Tensor, *, device: torch.device | str | None = None) -> Tensor:
    """:func:`distance_matrix` of several clouds of one size, ``rows`` ``[k, n]`` of ``points``: ``[k, n, n]``.

    On a GPU all at once, by one batched product for each block of features: of small clouds its time is that of the
    calls. Cost: k n² d multiply-adds there, half of that on a CPU, where they are made one after the other.
    """
    cloud = as_cloud(points, name="distance_matrices").detach()
    where = cloud.device if device is None else torch.device(device)
    matrices = None if where.type == "cpu" else _batched(cloud, rows, where)
    if matrices is not None:
        return matrices
    return torch.stack([distance_matrix(cloud, rows=index, device=device) for index in rows])


def _batched(cloud: Tensor, rows: Tensor, where: torch.device) -> Tensor | None:
    """The same by batched products; ``None`` where squares leave the range of the dtype, or something is not finite."""
    k, n = rows.shape
    index = rows.to(cloud.device)
    gram = torch.zeros(k, n, n, dtype=torch.float64, device=where)
    width = max(_BAND, 64 * _BLOCK // (k * n))
    for start in range(0, cloud.shape[1], width):
        block = cloud[:, start : start + width][index].to(where, torch.float64)
        block -= block.mean(1, keepdim=True)
        gram.baddbmm_(block, block.mT)
    norms = gram.diagonal(dim1=1, dim2=2)
    sums = norms[:, :, None] + norms[:, None]
    upper = torch.ones(n, n, dtype=torch.bool, device=where).triu(1)
    table = torch.sub(sums, gram, alpha=2)
    # At most, and not under: points that coincide at the centre of a cloud have sums of 0.
    near = (table <= sums * _NEAR) & upper
    table = table.clamp_min(0).masked_fill(~upper, 0.0)
    sizes = norms.amax(1)
    usual = (sizes > 2.0**-500) & (sizes < 2.0**500)
    turn, first, second = near.nonzero(as_tuple=True)
    if not bool(usual.all()):
        return None
    if len(turn):
        ends = (index[turn.to(index.device), side.to(index.device)] for side in (first, second))
        table[turn, first, second] = pair_lengths(cloud, *ends).to(where).square_()
    return (table + table.mT).sqrt_()


def _distance_matrix(cloud: Tensor, *, name: str) -> Tensor:
    return _roots(*squares(cloud, name=name))


def _roots(matrix: Tensor, scale: float) -> Tensor:
    matrix.sqrt_()
    return matrix if scale == 1.0 else matrix.mul_(scale)


def squares(
    cloud: Tensor,
    *,
    name: str,
    rows: Tensor | None = None,
    device: torch.device | str | None = None,
    precision: torch.dtype = torch.float64,
) -> tuple[Tensor, float]:
    """Squared distances over ``scale`` squared ``[n, n]``, as :func:`distance_matrix` says, and ``scale``."""
    where = cloud.device if device is None else torch.device(device)
    few = 2.0**-500 if precision == torch.float64 else 2.0**-60
    scale = 1.0
    gram = _gram(cloud, rows, where, scale, precision)
    if not few < float(gram.diagonal().max()) < 1 / few:
        # NaN, numbers whose squares leave the range, or points that all coincide.
        points = as_points(cloud if rows is None else cloud[rows], name=name).double()
        scale = _power_of_two(float((points - points[:1]).abs().max()))
        gram = _gram(cloud, rows, where, scale, precision)
    first, second = _finish(gram)
    if len(first):
        index = torch.arange(len(cloud), device=cloud.device) if rows is None else rows.to(cloud.device)
        near = pair_lengths(cloud, index[first.to(cloud.device)], index[second.to(cloud.device)]).to(where)
        gram[first, second] = gram[second, first] = (near / scale).square_()
    return gram, scale


def _gram(cloud: Tensor, rows: Tensor | None, where: torch.device, scale: float, precision: torch.dtype) -> Tensor:
    """Gram matrix of the points less their mean, over ``scale``, in float64; only its upper bands have values."""
    n, d = len(cloud) if rows is None else len(rows), cloud.shape[1]
    band = _BAND if where.type == "cpu" else 4 * _BAND
    width = min(d, max(_BAND, _BLOCK // n) if where.type == "cpu" else max(_BAND, 64 * _BLOCK // n))
    gram = torch.empty(n, n, dtype=torch.float64, device=where)
    scratch = torch.empty(n, width, dtype=torch.float64, device=where)
    for start in range(0, d, width):
        features = cloud[:, start : start + width]
        block = scratch[:, : features.shape[1]]
        block.copy_(features if rows is None else features[rows])
        block -= block.mean(0)
        if scale != 1.0:
            block /= scale
        factor = block.to(precision)
        for i in range(0, n, band):
            part, after = factor[i : i + band], factor[i + band :]
            _put(gram[i : i + band, i : i + band], _symmetric(part), new=start == 0)
            if not len(after):
                continue
            beside = gram[i : i + band, i + band :]
            if precision != torch.float64:
                _put(beside, part @ after.T, new=start == 0)
            elif start == 0:
                torch.mm(part, after.T, out=beside)
            else:
                beside.addmm_(part, after.T)
    return gram


def _put(into: Tensor, product: Tensor, *, new: bool) -> None:
    into.copy_(product) if new else into.add_(product)


def _symmetric(part: Tensor) -> Tensor:
    """A product with its own transpose, at least the upper triangle of it (which is all that is read)."""
    if part.device.type != "cpu":
        return part @ part.T
    if torch.get_num_threads() == 1:
        # NumPy sees that it is symmetric and makes one triangle: half of the work.
        values = part.numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # seen in the norms
            return torch.from_numpy(values @ values.T)
    # With several threads PyTorch's own: NumPy's are another pool, and the two wait for each other.
    n = len(part)
    step = max(64, -(-n // 4))
    product = torch.zeros(n, n, dtype=part.dtype)
    for i in range(0, n, step):
        torch.mm(part[i : i + step], part[i:].T, out=product[i : i + step, i:])
    return product


def _finish(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Squares out of a Gram matrix's upper bands, in place and in both triangles; and the pairs to be redone."""
    n = len(gram)
    norms = gram.diagonal().clone()
    least = _NEAR * 2 * float(norms.max())
    step = min(n, max(32, (_PIECE if gram.device.type == "cpu" else 256 * _PIECE) // n))
    pairs: list[tuple[Tensor, Tensor]] = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        sums = norms[start:stop, None] + norms[None, start:]
        piece = torch.sub(sums, gram[start:stop, start:], alpha=2)
        corner = piece[:, : stop - start]
        upper = corner.triu(1)
        torch.add(upper, upper.T, out=corner)
        corner.diagonal().fill_(torch.inf)
        if float(piece.min()) <= least:
            # At most, and not under: points that coincide at the centre of the cloud have sums of 0.
            near = piece <= sums.mul_(_NEAR)
            near[:, : stop - start].triu_(1)
            first, second = near.nonzero(as_tuple=True)
            pairs.append((first + start, second + start))
            piece.clamp_(min=0)
        corner.diagonal().fill_(0.0)
        gram[start:stop, start:] = piece
        gram[stop:, start:stop] = piece[:, stop - start :].T
    none = torch.empty(0, dtype=torch.long, device=gram.device)
    return torch.cat([none, *(a for a, _ in pairs)]), torch.cat([none, *(b for _, b in pairs)])


class Squares:
    """Rows of the squared distances of a checked cloud over ``scale`` squared, made when asked for.

    For matrices that do not fit: the points are kept centred, in float64.
    """

    def __init__(self, cloud: Tensor) -> None:
        self.cloud = cloud
        self.flat, self.norms, self.scale = centred(cloud)

    def rows(self, index: Tensor) -> Tensor:
        """``[len(index), n]``: the rows of these points, 0 at the points themselves; exact to rounding as above."""
        sums = self.norms[index, None] + self.norms[None]
        block = torch.addmm(sums, self.flat[index], self.flat.T, alpha=-2.0)
        diagonal = torch.arange(len(index), device=index.device)
        block[diagonal, index] = torch.inf
        if float(block.min()) <= _NEAR * 2 * float(self.norms.max()):
            first, second = (block <= sums.mul_(_NEAR)).nonzero(as_tuple=True)
            block[first, second] = (pair_lengths(self.cloud, index[first], second) / self.scale).square_()
        block[diagonal, index] = 0.0
        return block
