"""What one rank of four does with watched collectives beside calling each of them.

Every part returns what test_collectives.py looks at; what must hold in the process itself is
checked here.
"""

from __future__ import annotations

import contextlib
import gc
import io
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

import tensorprobe
from tensorprobe import _interception

dist: Any = torch.distributed


class WrongError(Exception):
    """A check of this rank has failed."""


def check(holds: Any, what: str) -> None:
    """Raise if it doesn't hold."""
    if not holds:
        raise WrongError(what)


def watched(out: str, name: str, model: Any = None, optimizer: Any = None, **options: Any) -> Any:
    """A monitor that records collectives and nothing else."""
    model = torch.nn.Linear(2, 2) if model is None else model
    settings = {"enable": True, "cc_pre_hook": True, **options}
    config: dict[str, Any] = {"format": ["csv", "tensorboard"]}
    for field in ("xy", "wg", "param", "mv"):
        config[f"{field}_distribution"] = False
    return tensorprobe.watch(
        model,
        optimizer if optimizer is not None else torch.optim.SGD(model.parameters(), 0.1),
        {**config, "cc_distribution": settings},
        output_dir=f"{out}/{name}",
        run_id="x",
    )


# ---- what is put in place, and taken back ----


def public_objects() -> list[Any]:
    """What programs call, and may have kept."""
    owners = (dist, dist.distributed_c10d, dist._functional_collectives, dist.ProcessGroup)
    return [getattr(owner, name) for owner in owners for name in sorted(dir(owner))]


def objects_in_place() -> list[Any]:
    """Those, and what is inside of them."""
    found = public_objects()
    for value in list(found):
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):
                found.append(cell.cell_contents)
    work = dist.Work.__dict__
    return [*found, *(work[name] for name in sorted(work))]


def are_same(now: list[Any], before: list[Any]) -> bool:
    """Object by object; methods of the type's own are made at each look."""
    kinds = ("method-wrapper", "builtin_function_or_method")
    return len(now) == len(before) and all(
        a is b or (type(a) is type(b) and type(a).__name__ in kinds and a == b)
        for a, b in zip(now, before, strict=True)
    )


def kernels() -> list[str]:
    """Operators that something has been put in front of."""
    return [
        f"{name} {key}"
        for name in torch._C._dispatch_get_all_op_names()
        for key in ("BackendSelect", "ADInplaceOrView")
        if name.startswith(("c10d::", "_c10d_functional::"))
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    ]


def taken_back(out: str) -> int:
    """After close() everything is the object that it was, also after ten times; disabled too."""
    before, public, none = objects_in_place(), public_objects(), kernels()
    with watched(out, "disabled", enable=False):
        check(are_same(objects_in_place(), before), "nothing is replaced where it is disabled")
        check(kernels() == none, "no kernel is in place where it is disabled")
    for i in range(10):
        with watched(out, f"again{i}") as monitor:
            dist.all_reduce(torch.ones(2))
            check(len(kernels()) > len(none), "kernels are in place")
            check(not are_same(objects_in_place(), before), "the test sees what is replaced")
            check(are_same(public_objects(), public), "functions stay what they are")
            if i % 2:
                monitor.step()
                monitor.stop()
                check(kernels() == none, "stop() takes it back")
                monitor.start()
                check(len(kernels()) > len(none), "start() puts it in place")
        check(are_same(objects_in_place(), before), f"close() takes everything back ({i})")
        check(kernels() == none, f"close() takes kernels back ({i})")
    with watched(out, "outer"), watched(out, "inner"):
        dist.all_reduce(torch.ones(2))
    check(are_same(objects_in_place(), before), "two monitors take everything back")
    check(kernels() == none, "two monitors take kernels back")
    return len(before)


def what_fails() -> dict[str, Any]:
    """What wrong calls raise, and what right ones give."""
    me = dist.get_rank()
    other = dist.new_group([1])
    calls: dict[str, Callable[[], Any]] = {
        "no tensor": lambda: dist.all_reduce("x"),
        "no such rank": lambda: dist.broadcast(torch.ones(1), 17),
        "sizes": lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(2)),
        "dtypes": lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4).double()),
        "to itself": lambda: dist.send(torch.ones(1), me),
        "list": lambda: dist.all_gather([torch.empty(1)], torch.ones(1)),
        "keyword": lambda: dist.all_reduce(torch.ones(1), no_such_keyword=1),
        "not mine": lambda: dist.all_reduce(torch.ones(1), group=other) if me != 1 else None,
        "fine": lambda: dist.all_reduce(torch.ones(1)),
        "barrier": lambda: dist.barrier(),
    }
    found = {}
    for name, call in calls.items():
        try:
            found[name] = repr(call())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def exceptions(out: str) -> dict[str, Any]:
    """They are the same with and without the monitor."""
    without = what_fails()
    with watched(out, "exceptions") as monitor:
        with_it = what_fails()
        monitor.step()
    return {"without": without, "with": with_it}


# ---- works ----


def never_waited(out: str) -> dict[str, Any]:
    """Works that nobody waits for: results are read once they are there, and let go."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        monitor = watched(out, "never")
        x = torch.full((4,), float(dist.get_rank() + 1))
        alive = weakref.ref(x)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            time.sleep(0.001)
        del work, x
        monitor.step()  # has a look, and lets go
        gc.collect()
        check(alive() is None, "no tensor is kept")
        monitor.close()
    return {"said": errors.getvalue()}


def late(out: str) -> None:
    """A call that runs when its step ends is recorded there, and once more where it ends."""
    monitor = watched(out, "late")
    x, me = torch.ones(3), dist.get_rank()
    work = dist.irecv(x, 3) if me == 0 else None
    dist.barrier()  # nothing has been sent by then
    monitor.step()
    if me == 3:
        dist.send(torch.full((3,), 5.0), 0)
    if work is not None:
        work.wait()
    monitor.step()
    monitor.close()


def many_calls(out: str) -> int:
    """Three thousand of all kinds, while every core is busy with something else."""
    done = threading.Event()

    def burn() -> None:
        while not done.is_set():
            torch.ones(500000).sum()  # without the interpreter's lock

    busy = threading.Thread(target=burn)
    if dist.get_rank() < 2:
        busy.start()
    monitor = watched(out, "many")
    x, y, pending = torch.ones(16), torch.empty(64), []
    for i in range(3000):
        if i % 3 == 0:
            dist.all_reduce(x)
        elif i % 3 == 1:
            pending.append(dist.all_gather_into_tensor(y, x, async_op=True))
        else:
            pending.pop(0).wait()
            dist.barrier()
        x.fill_(1.0)
        if i % 500 == 499:
            monitor.step()
    done.set()
    if dist.get_rank() < 2:
        busy.join()
    monitor.close()
    return 3000


def older(out: str) -> None:
    """As in a torch that doesn't tell kernels the keys of a call."""
    newer = _interception._takes_keysets
    _interception._takes_keysets = lambda: False
    with watched(out, "older") as monitor:
        x, y = torch.ones(4), torch.empty(16)
        for _ in range(100):
            dist.all_reduce(x)
            dist.all_gather_into_tensor(y, x, async_op=True).wait()
            dist.barrier()
            x.fill_(1.0)
        dist.monitored_barrier()
        functional = dist._functional_collectives
        functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
        monitor.step()
    check(not any("ADInplaceOrView" in name for name in kernels()), "nothing is left")
    _interception._takes_keysets = newer


# ---- frameworks ----


def build() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


class Experts(torch.nn.Module):
    """One expert a rank: tokens go to it and come back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11 + dist.get_rank())
        self.expert = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exchange: Any = __import__("torch.distributed.nn.functional", fromlist=["x"])
        out = torch.empty_like(x)
        there = exchange.all_to_all_single(out, x.contiguous())
        back = self.expert(there)
        return exchange.all_to_all_single(torch.empty_like(x), back.contiguous())  # type: ignore[no-any-return]


def with_ddp() -> Any:
    return torch.nn.parallel.DistributedDataParallel(build())


def with_fsdp2() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(build(), mesh=init_device_mesh("cpu", (4,)))


def with_tensor_parallel() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (4,))
    return parallelize_module(build(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


MODELS: dict[str, Callable[[], Any]] = {
    "ddp": with_ddp,
    "fsdp2": with_fsdp2,
    "tp": with_tensor_parallel,
    "moe": Experts,
}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """A distributed tensor's own part."""
    return getattr(tensor, "_local_tensor", tensor).detach()


def train(make: Callable[[], Any], monitored: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Two steps: the bits of weights, moments and random numbers, and norms of gradients."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, foreach=False)
    torch.manual_seed(3)
    norms = []
    with monitored(model, optimizer):
        for _ in range(2):
            x = torch.randn(4, 8)
            model(x).pow(2).mean().backward()
            grads = [local(p.grad).double() for p in model.parameters()]
            norms.append(float(torch.stack([grad.pow(2).sum() for grad in grads]).sum().sqrt()))
            optimizer.step()
            optimizer.zero_grad()
    bits = [local(p).clone() for p in model.parameters()]
    bits += [local(state["exp_avg"]).clone() for state in optimizer.state.values()]
    return {"bits": [*bits, torch.get_rng_state()], "norms": norms}


def frameworks(out: str) -> dict[str, Any]:
    """Training is the same bit by bit; the norms of gradients are told."""
    norms = {}
    for name, make in MODELS.items():
        plain = train(make, lambda *_: contextlib.nullcontext())
        seen = train(make, lambda *both, name=name: watched(out, name, *both))
        same = all(torch.equal(a, b) for a, b in zip(plain["bits"], seen["bits"], strict=True))
        check(same, f"{name}: the bits of training")
        norms[name] = seen["norms"]
    return norms


# ---- where calls come from ----


def here(x: torch.Tensor) -> None:
    """One of two places that call."""
    dist.all_reduce(x)


def there(x: torch.Tensor) -> None:
    """The other."""
    dist.all_reduce(x)


def code_lines(out: str) -> None:
    """Only what passes a certain line."""
    line = here.__code__.co_firstlineno + 2
    pattern = rf"collectives_parts\.py\[{line}\]"
    with watched(out, "lines", cc_codeline=[pattern]) as monitor:
        here(torch.ones(2))
        there(torch.ones(3))
        monitor.step()
        here(torch.ones(2))
        monitor.step()


def log(out: str, name: str, **options: Any) -> tuple[str, bool]:
    """What is printed before the second step, and whether the run ends there."""
    printed = io.StringIO()
    ended = False
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with contextlib.redirect_stdout(printed), watched(out, name, model, optimizer, **options):
        try:
            for _ in range(3):
                here(torch.ones(2))
                there(torch.full((5,), 2.0).double())
                optimizer.step()
        except SystemExit as end:
            check(end.code == 0, "a clean end")
            ended = True
    return printed.getvalue(), ended


def log_by_hand(out: str) -> str:
    """Steps that the loop ends itself, and no optimizer."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), watched(out, "by_hand") as monitor:
        here(torch.ones(2))
        monitor.step()
        check(not printed.getvalue(), "nothing is printed in the first step")
        monitor.step()
        check(monitor._collectives._stacks is None, "no stack is walked any more")
    return printed.getvalue()


def logs(out: str) -> dict[str, Any]:
    """With and without cc_log_only."""
    line = here.__code__.co_firstlineno + 2
    return {
        "beside": log(out, "beside"),
        "only": log(out, "only", cc_log_only=True),
        "by_hand": log_by_hand(out),
        "line": line,
    }


def bad_number(out: str) -> list[Any]:
    """A NaN that one rank puts in: what the alerts of this one say."""
    model = torch.nn.Linear(2, 2)
    settings = {"enable": True, "cc_pre_hook": True}
    monitor = tensorprobe.watch(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        {
            "xy_distribution": False,
            "format": "api",
            "cc_distribution": settings,
            "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
        },
        output_dir=f"{out}/nan",
        run_id="x",
    )
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.full((3,), float("nan") if dist.get_rank() == 2 else 1.0))
    monitor.step()
    monitor.close()
    return [[alert.row, alert.step] for alert in monitor.alerts()]


def some_ranks(out: str) -> dict[str, Any]:
    """Those that module_ranks names; the log ends the run of all."""
    none = kernels()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = {"xy_distribution": False, "module_ranks": [0, 2], "format": "csv"}
    config["cc_distribution"] = {"enable": True, "cc_log_only": True}
    ended = -1
    with tensorprobe.watch(model, optimizer, config, output_dir=f"{out}/some"):
        in_place = kernels() != none
        try:
            for step in range(3):
                dist.all_reduce(torch.ones(1))
                ended = step
                optimizer.step()
        except SystemExit:
            pass
    return {"in_place": in_place, "ended": ended}


PARTS: dict[str, Callable[[str], Any]] = {
    "taken_back": taken_back,
    "exceptions": exceptions,
    "never_waited": never_waited,
    "late": late,
    "frameworks": frameworks,
    "code_lines": code_lines,
    "logs": logs,
    "older": older,
    "bad_number": bad_number,
    "some_ranks": some_ranks,
    "many_calls": many_calls,
}
