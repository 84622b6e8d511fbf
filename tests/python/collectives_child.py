"""One rank of four: calls every collective while it is watched. test_collectives.py reads on.

Each case is a step, so that its records can be told from the others'. What is expected comes from
plain tensors: every rank knows what the others put in.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed._functional_collectives
from torch.utils._python_dispatch import TorchDispatchMode

import collectives_parts
from collectives_parts import WrongError, check, watched

# Its functions have no types.
dist: Any = torch.distributed
functional: Any = torch.distributed._functional_collectives

Slots = dict[str, list[torch.Tensor]]
Expected = list[tuple[str, Slots]]
Case = Callable[[bool], tuple[list[torch.Tensor], list[torch.Tensor], Expected]]

warnings.simplefilter("ignore")


class PassOn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that does nothing."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def wait(work: Any) -> None:
    """Of what an asynchronous call gave."""
    if work is not None:
        assert isinstance(work, dist.Work), work
        work.wait()


class Cases:
    """The calls in one group, of which this rank is number ``me``."""

    def __init__(self, group: Any, ranks: list[int]) -> None:
        self.group, self.ranks, self.n = group, ranks, len(ranks)
        self.me = ranks.index(dist.get_rank())
        draw = torch.Generator().manual_seed(1)
        self.one = [torch.randn(3, 2, generator=draw) for _ in ranks]
        self.many = [[torch.randn(4, generator=draw) for _ in ranks] for _ in ranks]
        self.sum = self._added([one.clone() for one in self.one])

    @staticmethod
    def _added(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([one.double() for one in tensors]).sum(0).float()

    @property
    def mine(self) -> torch.Tensor:
        return self.one[self.me].clone()

    @property
    def parts(self) -> list[torch.Tensor]:
        return [part.clone() for part in self.many[self.me]]

    def columns(self) -> list[torch.Tensor]:
        """What this rank gets of everybody's parts."""
        return [row[self.me] for row in self.many]

    def scattered(self) -> torch.Tensor:
        return self._added(self.columns())

    def everything(self) -> Iterator[tuple[str, Case]]:
        for name in dir(self):
            if name.startswith("do_"):
                yield name[3:], getattr(self, name)

    # Each gives what came out, what should have, and what is to be recorded.

    def do_all_reduce(self, later: bool) -> Any:
        x = self.mine
        wait(dist.all_reduce(x, group=self.group, async_op=later))
        return [x], [self.sum], [("all_reduce", {"pre_0": [self.mine], "post_0": [self.sum]})]

    def do_all_reduce_in_inference_mode(self, later: bool) -> Any:
        with torch.inference_mode():
            return self.do_all_reduce(later)

    def do_all_reduce_under_a_mode(self, later: bool) -> Any:
        with PassOn():  # type: ignore[no-untyped-call]
            return self.do_all_reduce(later)

    def do_all_reduce_coalesced(self, later: bool) -> Any:
        x = [self.mine, self.mine[:2]]
        future = dist.all_reduce_coalesced(x, group=self.group, async_op=later)
        if future is not None:
            future.wait()
        slots = {"pre_0": [self.mine, self.mine[:2]], "post_0": [self.sum, self.sum[:2]]}
        return x, [self.sum, self.sum[:2]], [("all_reduce_coalesced", slots)]

    def do_broadcast(self, later: bool) -> Any:
        x = self.mine
        wait(dist.broadcast(x, self.ranks[1], group=self.group, async_op=later))
        slots = {"post_0": [self.one[1]]}
        if self.me == 1:
            slots["pre_0"] = [self.mine]
        return [x], [self.one[1]], [("broadcast", slots)]

    def do_reduce(self, later: bool) -> Any:
        x = self.mine
        wait(dist.reduce(x, self.ranks[0], group=self.group, async_op=later))
        slots = {"pre_0": [self.mine]}
        if self.me != 0:
            return [], [], [("reduce", slots)]
        slots["post_0"] = [self.sum]
        return [x], [self.sum], [("reduce", slots)]

    def _gathered(self, name: str, slots: str = "pre_1 post_0") -> Any:
        before, after = slots.split()
        return [(name, {before: [self.mine], after: self.one})]

    def do_all_gather(self, later: bool) -> Any:
        out = [torch.empty(3, 2) for _ in self.ranks]
        wait(dist.all_gather(out, self.mine, group=self.group, async_op=later))
        return out, self.one, self._gathered("all_gather")

    def do_all_gather_into_tensor(self, later: bool) -> Any:
        out = torch.empty(3 * self.n, 2)
        wait(dist.all_gather_into_tensor(out, self.mine, group=self.group, async_op=later))
        return [out], [torch.cat(self.one)], self._gathered("all_gather_into_tensor")

    def do_all_gather_base(self, later: bool) -> Any:
        out = torch.empty(3 * self.n, 2)
        wait(dist._all_gather_base(out, self.mine, group=self.group, async_op=later))
        return [out], [torch.cat(self.one)], self._gathered("all_gather_into_tensor")

    def do_all_gather_single(self, later: bool) -> Any:
        if not hasattr(dist, "all_gather_single"):
            return self.do_all_gather_into_tensor(later)
        out = torch.empty(3 * self.n, 2)
        wait(dist.all_gather_single(out, self.mine, group=self.group, async_op=later))
        return [out], [torch.cat(self.one)], self._gathered("all_gather_into_tensor")

    def do_gather(self, later: bool) -> Any:
        out = [torch.empty(3, 2) for _ in self.ranks] if self.me == 0 else None
        wait(dist.gather(self.mine, out, self.ranks[0], group=self.group, async_op=later))
        if out is None:
            return [], [], [("gather", {"pre_0": [self.mine]})]
        return out, self.one, self._gathered("gather", "pre_0 post_1")

    def do_scatter(self, later: bool) -> Any:
        out = torch.empty(4)
        parts = self.parts if self.me == 0 else None
        wait(dist.scatter(out, parts, self.ranks[0], group=self.group, async_op=later))
        slots = {"post_0": [self.many[0][self.me]]}
        if self.me == 0:
            slots["pre_1"] = self.many[0]
        return [out], [self.many[0][self.me]], [("scatter", slots)]

    def do_reduce_scatter(self, later: bool) -> Any:
        out = torch.empty(4)
        wait(dist.reduce_scatter(out, self.parts, group=self.group, async_op=later))
        slots = {"pre_1": self.parts, "post_0": [self.scattered()]}
        return [out], [self.scattered()], [("reduce_scatter", slots)]

    def do_reduce_scatter_tensor(self, later: bool) -> Any:
        out = torch.empty(4)
        whole = torch.cat(self.parts)
        wait(dist.reduce_scatter_tensor(out, whole, group=self.group, async_op=later))
        slots = {"pre_1": self.parts, "post_0": [self.scattered()]}
        return [out], [self.scattered()], [("reduce_scatter_tensor", slots)]

    def do_reduce_scatter_base(self, later: bool) -> Any:
        out = torch.empty(4)
        whole = torch.cat(self.parts)
        wait(dist._reduce_scatter_base(out, whole, group=self.group, async_op=later))
        slots = {"pre_1": self.parts, "post_0": [self.scattered()]}
        return [out], [self.scattered()], [("reduce_scatter_tensor", slots)]

    def do_all_to_all(self, later: bool) -> Any:
        out = [torch.empty(4) for _ in self.ranks]
        wait(dist.all_to_all(out, self.parts, group=self.group, async_op=later))
        slots = {"pre_1": self.parts, "post_0": self.columns()}
        return out, self.columns(), [("all_to_all", slots)]

    def do_all_to_all_single(self, later: bool) -> Any:
        out = torch.empty(4 * self.n)
        whole = torch.cat(self.parts)
        wait(dist.all_to_all_single(out, whole, group=self.group, async_op=later))
        slots = {"pre_1": self.parts, "post_0": self.columns()}
        return [out], [torch.cat(self.columns())], [("all_to_all_single", slots)]

    def do_barrier(self, later: bool) -> Any:
        wait(dist.barrier(group=self.group, async_op=later))
        return [], [], [("barrier", {})]

    def do_monitored_barrier(self, _: bool) -> Any:
        dist.monitored_barrier(group=self.group)
        return [], [], [("monitored_barrier", {})]

    # ---- from one to another ----

    def _ring(self, send: Callable[[], None], receive: Callable[[], None]) -> None:
        steps = [send, receive] if self.me % 2 == 0 else [receive, send]
        for step in steps:
            step()

    def _passed_on(self) -> Any:
        left = self.one[self.me - 1]
        sent, got = ("send", {"pre_0": [self.mine]}), ("recv", {"post_0": [left]})
        return left, [sent, got]

    def do_send_and_recv(self, _: bool) -> Any:
        x = torch.empty(3, 2)
        left, recorded = self._passed_on()
        after, before = self.ranks[(self.me + 1) % self.n], self.ranks[self.me - 1]
        self._ring(
            lambda: dist.send(self.mine, after, group=self.group),
            lambda: check(dist.recv(x, before, group=self.group) == before, "recv's answer"),
        )
        return [x], [left], recorded

    def do_isend_and_irecv(self, _: bool) -> Any:
        x = torch.empty(3, 2)
        left, recorded = self._passed_on()
        after, before = self.ranks[(self.me + 1) % self.n], self.ranks[self.me - 1]
        works = [
            dist.isend(self.mine, after, group=self.group),
            dist.irecv(x, before, group=self.group),
        ]
        for work in works:
            wait(work)
        return [x], [left], recorded

    def do_batch_isend_irecv(self, _: bool) -> Any:
        x = torch.empty(3, 2)
        left, recorded = self._passed_on()
        after, before = self.ranks[(self.me + 1) % self.n], self.ranks[self.me - 1]
        both = [
            dist.P2POp(dist.isend, self.mine, after, self.group),
            dist.P2POp(dist.irecv, x, before, self.group),
        ]
        for work in dist.batch_isend_irecv(both):
            wait(work)
        return [x], [left], recorded

    # ---- several in one ----

    def _coalesced(self, name: str, calls: list[Any], recorded: Slots) -> Any:
        with dist.distributed_c10d._coalescing_manager(self.group, async_ops=True) as manager:
            for call in calls:
                check(call() is None, "a coalesced call gives nothing")
        manager.wait()
        return [(name, recorded)]

    def do_coalescing_all_reduce(self, _: bool) -> Any:
        x, y = self.mine, self.mine[:1].clone()
        calls = [lambda t=t: dist.all_reduce(t, group=self.group) for t in (x, y)]
        slots = {"pre_0": [self.mine, self.mine[:1]], "post_0": [self.sum, self.sum[:1]]}
        recorded = self._coalesced("all_reduce_coalesced", calls, slots)
        return [x, y], [self.sum, self.sum[:1]], recorded

    # ---- functional ----

    def do_functional_all_reduce(self, _: bool) -> Any:
        out = functional.wait_tensor(functional.all_reduce(self.mine, "sum", self.group))
        slots = {"pre_0": [self.mine], "post_0": [self.sum]}
        return [out], [self.sum], [("all_reduce", slots)]

    def do_functional_all_gather(self, _: bool) -> Any:
        out = functional.wait_tensor(functional.all_gather_tensor(self.mine, 0, self.group))
        return [out], [torch.cat(self.one)], self._gathered("all_gather_into_tensor_coalesced")

    def do_functional_reduce_scatter(self, _: bool) -> Any:
        whole = torch.cat(self.parts)
        out = functional.reduce_scatter_tensor(whole, "sum", 0, self.group)
        slots = {"pre_1": self.parts, "post_0": [self.scattered()]}
        recorded = [("reduce_scatter_tensor_coalesced", slots)]
        return [functional.wait_tensor(out)], [self.scattered()], recorded

    def do_functional_all_to_all(self, _: bool) -> Any:
        sizes = [4] * self.n
        whole = torch.cat(self.parts)
        out = functional.wait_tensor(functional.all_to_all_single(whole, sizes, sizes, self.group))
        slots = {"pre_1": self.parts, "post_0": self.columns()}
        return [out], [torch.cat(self.columns())], [("all_to_all_single", slots)]

    # ---- objects ----

    def do_all_gather_object(self, _: bool) -> Any:
        out = [None] * self.n
        dist.all_gather_object(out, {"me": self.me}, group=self.group)
        check(out == [{"me": i} for i in range(self.n)], "all_gather_object")
        return [], [], [("all_gather_object", {})]

    def do_gather_object(self, _: bool) -> Any:
        out = [None] * self.n if self.me == 0 else None
        dist.gather_object(self.me, out, self.ranks[0], self.group)
        check(out is None or out == list(range(self.n)), "gather_object")
        return [], [], [("gather_object", {})]

    def do_broadcast_object_list(self, _: bool) -> Any:
        objects = [self.me, "x"]
        dist.broadcast_object_list(objects, self.ranks[0], group=self.group)
        check(objects == [0, "x"], "broadcast_object_list")
        return [], [], [("broadcast_object_list", {})]

    def do_scatter_object_list(self, _: bool) -> Any:
        out: list[Any] = [None]
        objects = list(range(self.n)) if self.me == 0 else None
        dist.scatter_object_list(out, objects, self.ranks[0], group=self.group)
        check(out == [self.me], "scatter_object_list")
        return [], [], [("scatter_object_list", {})]

    def do_send_object_list(self, _: bool) -> Any:
        out: list[Any] = [None]
        after, before = self.ranks[(self.me + 1) % self.n], self.ranks[self.me - 1]
        self._ring(
            lambda: dist.send_object_list([self.me], after, group=self.group),
            lambda: dist.recv_object_list(out, before, group=self.group),
        )
        check(out == [(self.me - 1) % self.n], "send_object_list")
        return [], [], [("send_object_list", {}), ("recv_object_list", {})]


def numbers(tensors: list[torch.Tensor]) -> dict[str, float]:
    """The statistics of these as one, in float64."""
    flat = torch.cat([one.double().reshape(-1) for one in tensors])
    return {
        "count": flat.numel(),
        "norm": float(flat.norm()),
        "min": float(flat.min()),
        "max": float(flat.max()),
        "mean": float(flat.mean()),
    }


def every_function(out: str) -> list[dict[str, Any]]:
    """Call each of them; what should have been recorded in each step."""
    half = [0, 2] if dist.get_rank() % 2 == 0 else [1, 3]
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = groups[dist.get_rank() % 2]
    expected = []
    monitor = watched(out, "every")
    for cases in (Cases(dist.group.WORLD, [0, 1, 2, 3]), Cases(group, half)):
        for name, case in cases.everything():
            for later in (False, True):
                try:
                    got, wanted, recorded = case(later)
                except Exception as error:
                    raise WrongError(f"{name}, async_op={later}: {error}") from error
                check(len(got) == len(wanted), name)
                for a, b in zip(got, wanted, strict=True):
                    check(torch.allclose(a, b, rtol=1e-5, atol=1e-6), f"{name}: {a}, not {b}")
                # The order of additions is gloo's own: of a sum what came out is what counts.
                values = [
                    [op, {slot: numbers(tensors) for slot, tensors in slots.items()}]
                    for op, slots in recorded
                ]
                text = f"{cases.group.group_name}:" + (
                    "0-3" if cases.n == 4 else f"{half[0]},{half[1]}"
                )
                expected.append({"case": name, "later": later, "group": text, "calls": values})
                monitor.step()
    monitor.close()
    return expected


def main() -> None:
    """Arguments: rank, file of the store, folder for what comes out."""
    rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 4), rank=rank, world_size=4)
    results: dict[str, Any] = {"every": every_function(out)}
    for name, part in collectives_parts.PARTS.items():
        dist.barrier()
        results[name] = part(out)
    Path(out, f"results{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
