"""Checks over processes, which are switched on by name: self_check and replica_check.

Every process of the group has to take part at the end of every step, whatever else it records.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorprobe import _core
from tensorprobe._frameworks import Adapter, Norm, Row, Span
from tensorprobe._frameworks._patch import Listener, listen
from tensorprobe._messages import complain
from tensorprobe._ranks import this_rank, world_size

if TYPE_CHECKING:
    import torch

_TOLERANCE = 0.01
_SHOWN = 8  # parameters of one check that have a number of their own


def _device(distributed: Any, group: Any) -> Any:
    """Where the group's backend wants its tensors."""
    import torch

    nccl = "nccl" in str(distributed.get_backend(group))
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


class _Clipped(NamedTuple):
    """What clip_grad_norm_ has said."""

    norm: Any
    bound: float
    parameters: set[int]
    """Their ids."""
    is_recorded: bool
    """The gradients had been taken before they were clipped."""


class SelfCheck:
    """Whether the gradients that were recorded are those whose norm the framework computed."""

    def __init__(
        self,
        monitor: _core.Monitor,
        hooks: Sequence[_core.OptimizerHook],
        rows: Callable[[], Sequence[Row]],
        left_out: Callable[[], Sequence[Row]],
    ) -> None:
        self._monitor = monitor
        self._hooks = hooks
        self._rows = rows
        self._left_out = left_out
        self._noted: list[_Clipped] = []
        self._differed = 0
        self._is_told = False
        self._handles = self._listen()

    def _listen(self) -> list[Listener]:
        """Hear of clip_grad_norm_, of torch and of FullyShardedDataParallel."""

        def clipped(_: None, given: Any, bound: float, norm: Any, *__: Any, **___: Any) -> None:
            self._note(given if isinstance(given, (list, tuple)) else [given], norm, bound)

        def method(norm: Any, module: Any, max_norm: float, *_: Any, **__: Any) -> None:
            self._note(list(module.parameters()), norm, max_norm)

        handles = []
        # Of torch's function both names: one module has it under another name.
        for module, name in (
            ("torch.nn.utils.clip_grad", "_clip_grads_with_norm_"),
            ("torch.nn.utils", "clip_grads_with_norm_"),
        ):
            if hasattr(sys.modules.get(module), name):
                handles.append(listen(sys.modules[module], name, after=clipped))
        sharded = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if sharded is not None:
            owner = sharded.FullyShardedDataParallel
            handles.append(listen(owner, "clip_grad_norm_", after=method))
        return handles

    def _note(self, given: Sequence[Any], norm: Any, bound: Any) -> None:
        is_recorded = all(hook.has_gradients for hook in self._hooks)
        parameters = {id(one) for one in given if one.grad is not None}
        self._noted.append(_Clipped(norm, float(bound), parameters, is_recorded))

    def _counts(self) -> list[_Clipped]:
        """What speaks of the gradients that were recorded, of those that were clipped often."""
        own = {id(one.parameter) for one in self._rows() if one.parameter.grad is not None}
        found: list[_Clipped] = []
        for one in self._noted:
            again = [
                earlier for earlier in found if not earlier.parameters.isdisjoint(one.parameters)
            ]
            if own.isdisjoint(one.parameters) or any(earlier.is_recorded for earlier in again):
                continue  # another model's, or those behind the record
            found = [earlier for earlier in found if earlier not in again] + [one]
        return found if own == set[int]().union(*(one.parameters for one in found)) else []

    def _of_clipping(self) -> Norm | None:
        """The norm of all that clip_grad_norm_ has clipped, if that is all that was recorded."""
        counts = self._counts()
        squares = clipped = 0.0
        for number, one in enumerate(counts):
            if any(one.norm is earlier.norm for earlier in counts[:number]):
                continue  # the norm of all, by which pieces are clipped
            value = float(one.norm.full_tensor() if hasattr(one.norm, "full_tensor") else one.norm)
            squares += value**2
            clipped += (value if one.is_recorded else min(value, one.bound)) ** 2
        return Norm(math.sqrt(squares), math.sqrt(clipped)) if counts else None

    def check(self, adapter: Adapter | None) -> None:
        """Compare, at the end of the step."""
        total, is_whole = self._total(adapter)
        told = adapter.norm() if adapter is not None else None
        norm = told or self._of_clipping()
        self._noted.clear()
        if norm is None or not is_whole:
            return
        expected = norm.value if norm.clip is None else min(norm.value, norm.clip)
        self._monitor.log_scalar("self_check.recorded", total)
        self._monitor.log_scalar("self_check.framework", expected)
        same = total == expected or (math.isnan(total) and math.isnan(expected))
        if same or abs(total - expected) <= _TOLERANCE * expected:
            return
        self._differed += 1
        if this_rank() == 0 and str(self._differed).strip("0") == "1":  # the 1st, 10th, 100th …
            times = f", {self._differed} times by now" if self._differed > 1 else ""
            complain(
                f"self_check: step {self._monitor.open_step}: the recorded gradients have norm "
                f"{total:.6g}, the framework says {expected:.6g}{times}"
            )

    def _total(self, adapter: Adapter | None) -> tuple[float, bool]:
        """The norm of what all processes have recorded, and whether each has recorded its part."""
        squares = sum(hook.reduced_sq for hook in self._hooks)
        own = [float(self._monitor.collecting), squares, float(self._lacks_some(adapter))]
        processes = 1
        if world_size() > 1:
            import torch
            from torch import distributed

            group = adapter.group if adapter is not None else None
            sums = torch.tensor(own, dtype=torch.float64, device=_device(distributed, group))
            distributed.all_reduce(sums, group=group)
            own, processes = sums.tolist(), distributed.get_world_size(group)
        if own[2] > 0 and not self._is_told:
            self._is_told = True
            if this_rank() == 0:
                complain(
                    "self_check: targets or module_ranks leave parameters out: the norm of what is "
                    "recorded isn't that of all gradients, and nothing is compared"
                )
        return math.sqrt(own[1]), own[0] == processes and own[2] == 0

    def _lacks_some(self, adapter: Adapter | None) -> bool:
        """Whether there is something that this process alone would record, and doesn't."""
        try:
            for row in self._left_out():
                span = Span("whole") if adapter is None else adapter.span(row)
                if row.parameter.requires_grad and span is not None and span.copy == 0:
                    return True
        except Exception:
            return True  # the others wait for an answer
        return False

    def remove(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()


class ReplicaCheck:
    """Whether parameters that several processes have are the same in all of them, bit by bit."""

    def __init__(self, monitor: _core.Monitor, every: int) -> None:
        self._monitor = monitor
        self._every = every
        self._capacity = 0  # keys a process may send; 0: not agreed on
        self._differed: set[str] = set()
        self._has_failed = False

    def check(self, adapter: Adapter | None, rows: Sequence[Row]) -> None:
        """Compare, at the end of every so many steps."""
        step = self._monitor.open_step
        if world_size() == 1 or step % self._every != 0:
            return
        import torch
        from torch import distributed

        names = self._known(adapter, rows)
        device = _device(distributed, None)
        if self._capacity == 0:
            most = torch.tensor([len(names)], device=device)
            distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
            self._capacity = max(1, int(most))
        sent = [len(names)]
        for key, (_, content) in list(names.items())[: self._capacity]:
            sent += [key, content]
        sent += [0] * (1 + 2 * self._capacity - len(sent))
        own = torch.tensor(sent, dtype=torch.int64, device=device)
        all_of_them = [torch.empty_like(own) for _ in range(world_size())]
        distributed.all_gather(all_of_them, own)
        found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, values in enumerate(one.tolist() for one in all_of_them):
            count = min(values[0], self._capacity)
            if values[0] > self._capacity:
                count, self._capacity = count, 0  # every process sees it: they agree anew
            pairs = values[1 : 1 + 2 * count]
            for key, content in zip(pairs[::2], pairs[1::2], strict=True):
                found[key][content].append(rank)
        self._tell(step, found, names)

    def _known(self, adapter: Adapter | None, rows: Sequence[Row]) -> dict[int, tuple[str, int]]:
        """What this process has to show; nothing where that fails, for the others wait for it."""
        if adapter is None:
            return {}
        try:
            return self._copies(adapter, rows)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                complain(f"replica_check: {error}: nothing of rank {this_rank()} is compared")
            return {}

    def _copies(self, adapter: Adapter, rows: Sequence[Row]) -> dict[int, tuple[str, int]]:
        """A number for each part that others have, too → its name and the hash of its content."""
        with_copies = []
        for row in rows:
            span = adapter.span(row)
            if span is not None and span.copies > 1:
                with_copies.append((row, span))
        weights: list[torch.Tensor | None] = [row.parameter for row, _ in with_copies]
        if adapter.locates:
            parts = adapter.locate([row for row, _ in with_copies], True)
            weights = [None if part is None else part.weight for part in parts]
        copies = {}
        for (row, span), weight in zip(with_copies, weights, strict=True):
            if weight is None:
                continue
            name = adapter.global_name(row) or row.original
            content = _core.compute_stats(weight, content_hash=True)["content_hash"]
            copies[_number(row.vpp_stage, name, span)] = (name, _signed(content))
        return copies

    def _tell(
        self,
        step: int,
        found: dict[int, dict[int, list[int]]],
        names: dict[int, tuple[str, int]],
    ) -> None:
        own_rank = this_rank()
        different = [key for key, contents in found.items() if len(contents) > 1]
        self._monitor.log_scalar("replica_check.different", float(len(different)))
        for key in [key for key in names if len(found[key]) > 1][:_SHOWN]:  # in the model's order
            counts = [len(ranks) for ranks in found[key].values()]
            others = float(sum(counts) - max(counts))
            self._monitor.log_scalar(f"replica_check.differs.{names[key][0]}", others)
        told: dict[str, list[str]] = defaultdict(list)
        for key in different:
            holders = sorted(found[key].values(), key=lambda ranks: (-len(ranks), ranks))
            if own_rank == min(min(ranks) for ranks in holders) and key in names:
                odd = sorted(rank for ranks in holders[1:] for rank in ranks)
                who = f"rank {', '.join(map(str, odd))} (others: {', '.join(map(str, holders[0]))})"
                told[who].append(names[key][0])
        for who, parameters in told.items():
            fresh = [name for name in parameters if name not in self._differed]
            self._differed.update(fresh)
            if fresh:
                more = f" and {len(fresh) - 1} more" if len(fresh) > 1 else ""
                complain(
                    f"replica_check: step {step}: {fresh[0]!r}{more} has other values on {who}"
                )


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _number(vpp_stage: int, name: str, span: Span) -> int:
    text = repr((vpp_stage, name, span.kind, span.ranges)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


class Checks:
    """Those that the configuration asks for. ``ending`` goes to the hook that ends the step."""

    def __init__(
        self,
        monitor: _core.Monitor,
        hooks: Sequence[_core.OptimizerHook],
        adapter: Callable[[], Adapter | None],
        rows: Callable[[], Sequence[Row]],
        left_out: Callable[[], Sequence[Row]],
    ) -> None:
        config = monitor.config
        every = config["replica_check"]
        self._self_check = None
        if config["self_check"]:
            self._self_check = SelfCheck(monitor, hooks, rows, left_out)
        self._replica_check = ReplicaCheck(monitor, every) if every > 0 else None
        self._adapter, self._rows = adapter, rows

    @property
    def ending(self) -> Callable[[], None] | None:
        """What is to be called at the end of each step; None: nothing."""
        return self._check if self._self_check or self._replica_check else None

    def _check(self) -> None:
        try:
            if self._self_check is not None:
                self._self_check.check(self._adapter())
            if self._replica_check is not None:
                self._replica_check.check(self._adapter(), self._rows())
        except Exception as error:
            self.remove()
            complain(f"self_check, replica_check: {error}: there are none from now on")

    def remove(self) -> None:
        """Check no longer."""
        if self._self_check is not None:
            self._self_check.remove()
        self._self_check = self._replica_check = None
