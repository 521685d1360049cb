"""Which part of a parameter's states a rank keeps, under tensor parallelism, vocabulary padding and ZeRO alike.

A checkpoint holds complete states, in the shape of the unsharded and unpadded parameter. A rank holds a box of it,
that may reach into padding, which is zeros: its slice along the dimension of tensor parallelism. ZeRO and Gemini keep
a span of that box once more, flattened. Pure tensor arithmetic: it knows neither processes nor ColossalAI.
"""

from dataclasses import dataclass, replace
from math import prod

import torch
from torch.nn.functional import pad

from colossalai_patch.optimizer_checkpoint import State, copied_value

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """The part of the states of one parameter that a rank keeps.

    Attributes:
        complete: the shape of the unsharded, unpadded parameter, and so of its states in a checkpoint.
        box: the shape of the parameter that the rank's model holds.
        start: where the box begins in the complete parameter, for each dimension.
        span: begin and end of the rank's elements in the flattened box; None if it keeps the box as it is.
    """

    complete: Shape
    box: Shape
    start: Shape
    span: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """How many elements the rank keeps."""
        return prod(self.box) if self.span is None else self.span[1] - self.span[0]

    def chunk(self, rank: int, size: int) -> "Part":
        """The part that ZeRO gives to ``rank`` of ``size``: equal chunks of the flattened box, zeros at the end."""
        length = -(-prod(self.box) // size)
        return self.elements(rank * length, (rank + 1) * length)

    def elements(self, begin: int, end: int) -> "Part":
        """The part of a rank that keeps these elements of the flattened box."""
        return replace(self, span=(begin, end))

    def is_sliced(self, name: str, value: object) -> bool:
        """Whether the rank keeps a part of ``value``, the state ``name`` in a checkpoint, and not the whole of it.

        Only states of the parameter's own shape are sliced, not the scalars and factors that some optimizers keep.
        Experts that one rank alone holds are saved flat by stock.
        """
        if not isinstance(value, torch.Tensor) or name == "step" or self == whole(self.complete):
            return False
        flat = self.span is not None and value.shape == (prod(self.complete),)
        return value.shape == self.complete or flat

    def of(self, state: torch.Tensor) -> torch.Tensor:
        """Copy the rank's part out of a complete state, of which only the rows that are needed are touched."""
        state = state.reshape(self.complete)
        if self.span is None:
            return _box(state, self.start, self.box).clone(memory_format=torch.contiguous_format)
        if not self.box:
            return _box(state.reshape(1), (self.span[0],), (self.span[1] - self.span[0],)).clone()
        begin, end = self.span
        row = max(1, prod(self.box[1:]))
        first, last = begin // row, min(-(-end // row), self.box[0])
        rows = _box(state, (self.start[0] + first, *self.start[1:]), (max(0, last - first), *self.box[1:]))
        return _box(rows.flatten(), (begin - first * row,), (end - begin,)).clone()


def whole(shape: Shape) -> Part:
    """The part of a rank that keeps the whole state."""
    return Part(tuple(shape), tuple(shape), (0,) * len(shape))


def tensor_parallel(complete: Shape, box: Shape, dim: int | None, rank: int) -> Part:
    """The part of ``rank`` where each rank holds a ``box`` along ``dim``, or the same one if ``dim`` is None."""
    start = tuple(rank * length if position == dim else 0 for position, length in enumerate(box))
    return Part(tuple(complete), tuple(box), start)


def take_part(part: Part, state: State) -> State:
    """What a rank keeps of the state of one parameter: copies, each sliced if it has the parameter's shape."""
    return {
        name: part.of(value) if part.is_sliced(name, value) else copied_value(value) for name, value in state.items()
    }


def _box(tensor: torch.Tensor, start: Shape, shape: Shape) -> torch.Tensor:
    """A box of ``tensor``: a view, or a copy with zeros where the box reaches beyond its end."""
    for dim, (begin, length) in enumerate(zip(start, shape, strict=True)):
        begin = min(begin, tensor.shape[dim])
        tensor = tensor.narrow(dim, begin, min(length, tensor.shape[dim] - begin))
    missing = [length - available for length, available in zip(shape, tensor.shape, strict=True)]
    if not any(missing):
        return tensor
    return pad(tensor, [side for length in reversed(missing) for side in (0, length)])
