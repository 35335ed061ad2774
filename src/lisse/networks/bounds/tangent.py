r"""A network in a ball as its tangent at the sample, and the few units that leave it.

Every step is affine but for activations, and of those most stay, in a small ball, on the line on which they are at the
sample. What the others add is small, and known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.networks.attack.norms import Norm
from lisse.networks.bounds.steps import ROUNDOFF, TINY, Node

MOST_ENTRIES = 2**14  # entries from which a tangent is carried; each costs a forward
_AHEAD = 256  # columns of the tangent that go through the network at a time
_GROWN = 1e-6  # of the largest entry: rounding that is carried along the tangent too


@dataclass(slots=True)
class _Form:
    """c + Jδ + Gt + β at a node, |t| ≤ the half widths of the departures, |β| ≤ ``box``; J is the tangent's."""

    middle: Tensor  # [1, *shape]
    columns: Tensor  # G [k, *shape]
    numbers: Tensor  # which departures they carry [k]
    box: Tensor  # [1, *shape]
    reach: Tensor  # of the whole [1, *shape]


class Tangent:
    r"""The tangent of a list of steps at one sample ``x`` ``[1, …]``, good for every ball around it.

    With slopes :math:`d` that are those of the activations at the sample (any slopes do), an activation is

    .. math:: \sigma(z) = d z + e(z), \qquad e(z) \in [\underline e, \overline e] \text{ for } z \in [l, u],

    (a maximum is a + relu(b − a)). Put in after one another, these give at every node, for every input x + δ of the
    ball, exactly

    .. math:: z(x + \delta) = c + J\delta + \sum_k G_k t_k, \qquad |t_k| \le (\overline e_k - \underline e_k)/2,

    J the product of the layers and slopes, the same for every ε, and :math:`G_k` what a unit's departure becomes behind
    it. So :math:`|z - c| \le \epsilon\|J\|_* + \sum_k|G_k||t_k|`, row by row, ‖·‖_* the dual norm. A ReLU whose sign
    is sure has e = 0: where intervals of intervals grow by the absolute row sums of every layer, this grows by what the
    network does, and by the departures of those whose sign is open. ``spans`` are the :math:`\|J\|_*`.

    Rounding and departures that have no column of their own are in a box β that goes through |L| as intervals do: the
    numbers of c, J, G are taken as they are, and what an affine step misses of :math:`L(c + J\delta + Gt)` is at most
    :math:`\gamma|L|(|c| + \text{reach}) + \gamma|b|`. In a deep network rounding alone would grow too large so: at a
    node that all goes through, the box becomes a ball of its own there, carried on by the tangent's matrix from it
    (``cuts``). Cost: a forward for each entry of x and of each cut, once; and of each ball, one from each departure on.
    """

    @torch.no_grad()
    def __init__(self, nodes: Sequence[Node], x: Tensor, norm: Norm) -> None:
        self.nodes, self.inputs, self.device = nodes, x.numel(), x.device
        self.narrows: list[Node] = []
        self.cuts: dict[Node, dict[Node, Tensor]] = {}
        self.last = {part: node for node in nodes for part in node.inputs}  # who reads it last
        values = {nodes[0]: x}
        self.slopes: dict[Node, Tensor] = {}
        for node in nodes[1:]:
            inside = values[node.inputs[0]]
            if node.kind == "sum":
                values[node] = inside + values[node.inputs[1]]
                continue
            if node.kind == "entry":
                self.slopes[node] = _slope(node, inside)
            values[node] = node.function(inside)
        self.spans = self._rows(nodes[0], x.shape[1:], norm)
        self.narrows = self._narrows(x)
        self.cuts = {node: self._rows(node, node.shape, "linf") for node in self.narrows}

    def _rows(self, start: Node, shape: torch.Size, norm: Norm) -> dict[Node, Tensor]:
        """The norms of the rows of the tangent's matrix from ``start`` to each node behind it."""
        count, sums = shape.numel(), dict[Node, Tensor]()
        for first in range(0, count, _AHEAD):
            units = torch.arange(first, min(first + _AHEAD, count), device=self.device)
            columns = torch.zeros(len(units), count, dtype=torch.float64, device=self.device)
            columns[torch.arange(len(units)), units] = 1.0
            for node, rows in self._carried(start, columns.reshape(-1, *shape)):
                part = rows.abs().sum(0, keepdim=True) if norm == "linf" else rows.square().sum(0, keepdim=True)
                sums[node] = sums[node] + part if node in sums else part
        room = 1 + 4 * (count + 16) * ROUNDOFF
        if norm == "linf":
            return {node: total * room + TINY for node, total in sums.items()}
        # A square that underflows is of a number below 1e-153.
        return {node: (total.sqrt() + 1e-150 * count) * room for node, total in sums.items()}

    def _narrows(self, x: Tensor) -> list[Node]:
        """Nodes that all goes through and at which rounding has grown by ``_GROWN`` since the last: deep networks."""
        ball, narrows = TangentBall(self, 0.0, 0, 0), list[Node]()
        for node in self.nodes:
            ball.step(node, *(ball.ends(node.inputs[0]) if node.inputs else (x, x)), x)
            form = ball.forms[node]
            large = float(form.box.max()) > _GROWN * float(form.middle.abs().max())
            if large and len(ball.forms) == 1 and node.shape.numel() <= MOST_ENTRIES and node is not self.nodes[-1]:
                narrows.append(node)
                form.box.zero_()
        return narrows

    def _carried(self, start: Node, columns: Tensor) -> Iterator[tuple[Node, Tensor]]:
        """Columns at ``start`` behind every further node, up to the next cut."""
        states = {start: columns}
        yield start, columns
        for node in self.nodes[self.nodes.index(start) + 1 :]:
            parts = [states[part] for part in node.inputs]
            states[node] = sum(parts[1:], parts[0]) if node.kind == "sum" else self._along(node, parts[0])
            for part in node.inputs:
                if self.last[part] is node:
                    states.pop(part, None)
            yield node, states[node]
            if start in self.narrows and node in self.narrows:
                return

    def _along(self, node: Node, columns: Tensor) -> Tensor:
        """One step of the tangent."""
        return node.linear(columns) if node.kind == "affine" else self.slopes[node] * columns

    def ball(self, eps: float, most: int, *, budget: int) -> TangentBall:
        """The sample's ball of radius ``eps``; each activation may give ``most`` of its departures a column, of all of
        which at most ``budget`` numbers are kept."""
        return TangentBall(self, eps, most, budget)


class TangentBall:
    """Forms of one sample's ball, node by node: :meth:`step` in the order of the nodes, the input first.

    Where departures with a column would be fewer than half of what there is, the ball is too large for this, and from
    there on all is a box.
    """

    def __init__(self, tangent: Tangent, eps: float, most: int, budget: int) -> None:
        self.tangent, self.eps, self.most, self.beyond = tangent, eps * (1 + 8 * ROUNDOFF), most, False
        self.halves = tangent.spans[tangent.nodes[0]].new_zeros(0)
        self.budget = budget
        self.forms: dict[Node, _Form] = {}
        self.rounding = 0.0  # the box at the last cut, and what the tangent makes of it
        self.ahead: dict[Node, Tensor] = {}

    def ends(self, node: Node) -> tuple[Tensor, Tensor]:
        """The interval of every entry of a node, until all that read it are done."""
        form = self.forms[node]
        return form.middle - form.reach, form.middle + form.reach

    @torch.no_grad()
    def step(self, node: Node, low: Tensor, high: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Ends at ``node``, given those of what it reads first (of the input: ``start`` is x)."""
        if node.kind == "input":
            zero = torch.zeros_like(start)
            form = self._form(node, start, start.new_zeros(0, *start.shape[1:]), self.halves.long(), zero)
        elif node.kind == "affine":
            form = self._affine(node)
        elif node.kind == "sum":
            form = self._sum(node)
        else:
            form = self._bent(node, low, high)
        self.forms[node] = form
        for part in node.inputs:
            if self.tangent.last[part] is node:
                self.forms.pop(part, None)
        return self.ends(node)

    def _form(self, node: Node, middle: Tensor, columns: Tensor, numbers: Tensor, box: Tensor) -> _Form:
        if self.beyond and len(columns):
            box = box + self._spread(columns, numbers)
            columns, numbers = columns[:0], numbers[:0]
        carried = self.rounding * self.ahead[node] if node in self.ahead else 0.0
        if node in self.tangent.cuts:
            box = box + carried
            self.rounding, self.ahead = float(box.max()) * (1 + 4 * ROUNDOFF), self.tangent.cuts[node]
            box, carried = torch.zeros_like(box), self.rounding * self.ahead[node]
        reach = self.eps * self.tangent.spans[node] + self._spread(columns, numbers) + box + carried
        return _Form(middle, columns, numbers, box, reach * (1 + 16 * ROUNDOFF) + 4 * ROUNDOFF * middle.abs() + TINY)

    def _spread(self, columns: Tensor, numbers: Tensor) -> Tensor:
        halves = self.halves[numbers]
        total = columns.new_zeros(1, *columns.shape[1:])
        for part, sizes in zip(columns.split(_AHEAD), halves.split(_AHEAD), strict=True):
            total += (sizes @ part.abs().flatten(1)).reshape(total.shape)
        return total * (1 + 4 * (len(columns) + 16) * ROUNDOFF) + TINY * len(columns) * (1 + float(halves.sum()))

    @property
    def _lost(self) -> float:
        """Over all that underflows in the entries of J and G, times what they carry."""
        return TINY * (1 + (self.eps + self.rounding) * MOST_ENTRIES + float(self.halves.sum()))

    def _affine(self, node: Node) -> _Form:
        inside = self.forms[node.inputs[0]]
        shift = node.function(torch.zeros_like(inside.middle))
        mass = node.magnitude(inside.middle.abs() + inside.reach) * (1 + node.forward) + shift.abs() + node.shifted
        columns = node.linear(inside.columns) if len(inside.columns) else inside.columns.new_zeros(0, *node.shape)
        box = node.magnitude(inside.box) * (1 + node.forward) + node.forward * mass + self._lost
        return self._form(node, node.function(inside.middle), columns, inside.numbers, box)

    def _sum(self, node: Node) -> _Form:
        first, second = (self.forms[part] for part in node.inputs)
        numbers = torch.cat([first.numbers, second.numbers]).unique()
        columns = first.columns.new_zeros(len(numbers), *node.shape)
        for form in (first, second):
            columns[torch.searchsorted(numbers, form.numbers)] += form.columns
        mass = first.middle.abs() + first.reach + second.middle.abs() + second.reach
        box = (first.box + second.box) * (1 + 4 * ROUNDOFF) + node.forward * mass + self._lost
        return self._form(node, first.middle + second.middle, columns, numbers, box)

    def _bent(self, node: Node, low: Tensor, high: Tensor) -> _Form:
        """An activation: the tangent's step, and what leaves it."""
        inside, slope = self.forms[node.inputs[0]], self.tangent.slopes[node]
        bottom, top = node.departure(slope, low, high)
        half, middle = (top - bottom) / 2, slope * inside.middle
        half = half * (1 + 4 * ROUNDOFF) + torch.where(half > 0, TINY, 0.0)
        mass = slope.abs() * (inside.middle.abs() + inside.reach) + bottom.abs() + top.abs()
        box = slope.abs() * inside.box * (1 + 4 * ROUNDOFF) + 16 * ROUNDOFF * mass + self._lost
        flat = half.flatten()
        room = min(self.most, self.budget // flat.numel() - len(self.halves), int((flat > 0).sum()))
        units = flat.topk(room).indices if room > 0 else flat.new_zeros(0).long()
        if self.beyond or not bool(2 * flat[units].sum() >= flat.sum()):
            self.beyond, units = True, units[:0]
        boxed = flat.clone()
        boxed[units] = 0.0
        unit_columns = flat.new_zeros(len(units), flat.numel())
        unit_columns[torch.arange(len(units)), units] = 1.0
        numbers = torch.cat([inside.numbers, len(self.halves) + torch.arange(len(units), device=flat.device)])
        self.halves = torch.cat([self.halves, flat[units]])
        columns = torch.cat([slope * inside.columns, unit_columns.reshape(len(units), *node.shape)])
        return self._form(node, middle + (bottom + top) / 2, columns, numbers, box + boxed.reshape(half.shape))


def _slope(node: Node, inside: Tensor) -> Tensor:
    with torch.enable_grad():
        point = inside.detach().requires_grad_()
        (slope,) = torch.autograd.grad(node.function(point).sum(), point)
    return slope
