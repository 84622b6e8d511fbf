"""Where every collective of torch.distributed passes, whoever calls it.

All of them end in an operator of the library ``c10d``: the Python functions, functional
collectives, and what C++ calls (DDP's reducer, FSDP, DTensor). A kernel at the dispatch key
BackendSelect is met by every call, in inference mode and below a TorchDispatchMode, too; it calls
on with the keys behind its own. Only that several of them make one call on objects can't be seen
there: these functions are wrapped, in the closure of torch's own decorator, so that they stay what
they are. And the end of waiting is seen in ``Work.wait``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

SEND, RECV, BROADCAST, ALL_REDUCE, REDUCE, SCATTER = range(1, 7)
REDUCE_SCATTER, GATHER, ALL_GATHER, ALL_TO_ALL, BARRIER, OTHER = range(7, 13)

Tensors = Sequence["torch.Tensor"]


class Operator(NamedTuple):
    """How the arguments of one operator are to be read."""

    name: str
    number: int
    group: int
    """Which argument is the process group."""
    inputs: Callable[[Any], Tensors] | None
    input_slot: int
    outputs: Callable[[Any], Tensors] | None
    output_slot: int
    root: int = -1
    """Which argument is the rank of the root, or of the other side, in the group."""
    asynchronous: int = -1
    """Which argument says that the caller waits itself. Where it is left out, he does."""
    agreed: Callable[[Any], Tensors] | None = None
    """The tensors whose shapes all ranks of the group have to agree on."""
    by_root: tuple[bool, bool] = (False, False)
    """Whether inputs, and outputs, are only the root's."""
    tag: int = -1
    of_objects: bool = False
    """A wrapped function, which has its group as it is, and no tensors to show."""


def _at(place: int) -> Callable[[Any], Tensors]:
    return lambda a: a[place]


def _one(place: int) -> Callable[[Any], Tensors]:
    return lambda a: [a[place]]


def _first(place: int) -> Callable[[Any], Tensors]:
    return lambda a: a[place][0] if a[place] else []


def _joined(place: int) -> Callable[[Any], Tensors]:
    return lambda a: [tensor for part in a[place] for tensor in part]


_BASE, _COALESCED = "all_gather_into_tensor", "all_gather_into_tensor_coalesced"
_SCATTER, _SCATTERED = "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"

OPERATORS: dict[str, Operator] = {
    "allreduce_": Operator(
        "all_reduce", ALL_REDUCE, 1, _at(0), 0, _at(0), 0, asynchronous=4, agreed=_at(0)
    ),
    "allreduce_coalesced_": Operator(
        "all_reduce_coalesced", ALL_REDUCE, 1, _at(0), 0, _at(0), 0, asynchronous=3, agreed=_at(0)
    ),
    "broadcast_": Operator(
        "broadcast", BROADCAST, 1, _at(0), 0, _at(0), 0, 2, 4, _at(0), by_root=(True, False)
    ),
    "reduce_": Operator(
        "reduce", REDUCE, 1, _at(0), 0, _at(0), 0, 3, 5, _at(0), by_root=(False, True)
    ),
    "allgather_": Operator(
        "all_gather", ALL_GATHER, 2, _at(1), 1, _first(0), 0, asynchronous=3, agreed=_first(0)
    ),
    "_allgather_base_": Operator(
        _BASE, ALL_GATHER, 2, _one(1), 1, _one(0), 0, asynchronous=3, agreed=_one(0)
    ),
    "allgather_coalesced_": Operator(
        "all_gather_coalesced", ALL_GATHER, 2, _at(1), 1, _joined(0), 0, asynchronous=3
    ),
    "allgather_into_tensor_coalesced_": Operator(
        _COALESCED, ALL_GATHER, 2, _at(1), 1, _at(0), 0, asynchronous=3, agreed=_at(0)
    ),
    "gather_": Operator(
        "gather", GATHER, 2, _at(1), 0, _first(0), 1, 3, 4, _at(1), by_root=(False, True)
    ),
    "scatter_": Operator(
        "scatter", SCATTER, 2, _first(1), 1, _at(0), 0, 3, 4, _at(0), by_root=(True, False)
    ),
    "reduce_scatter_": Operator(
        "reduce_scatter", REDUCE_SCATTER, 2, _first(1), 1, _at(0), 0, -1, 4, _first(1)
    ),
    "_reduce_scatter_base_": Operator(
        _SCATTER, REDUCE_SCATTER, 2, _one(1), 1, _one(0), 0, -1, 4, _one(1)
    ),
    "reduce_scatter_tensor_coalesced_": Operator(
        _SCATTERED, REDUCE_SCATTER, 2, _at(1), 1, _at(0), 0, -1, 4, _at(1)
    ),
    "alltoall_": Operator("all_to_all", ALL_TO_ALL, 2, _at(1), 1, _at(0), 0, asynchronous=3),
    "alltoall_base_": Operator(
        "all_to_all_single", ALL_TO_ALL, 2, _one(1), 1, _one(0), 0, asynchronous=5
    ),
    "send": Operator("send", SEND, 1, _at(0), 0, None, 0, 2, tag=3),
    "recv_": Operator("recv", RECV, 1, None, 0, _at(0), 0, 2, tag=3),
    "recv_any_source_": Operator("recv", RECV, 1, None, 0, _at(0), 0, tag=2),
    "barrier": Operator("barrier", BARRIER, 1, None, 0, None, 0, asynchronous=3),
    "monitored_barrier_": Operator("monitored_barrier", BARRIER, 1, None, 0, None, 0),
}

OBJECTS = (
    "all_gather_object",
    "gather_object",
    "send_object_list",
    "recv_object_list",
    "broadcast_object_list",
    "scatter_object_list",
)


class Observer(Protocol):
    """Who hears of calls. Nothing that it does may raise."""

    def begin(self, operator: Operator, args: tuple[Any, ...]) -> Any:
        """A call is about to be made; what this gives is handed to the others."""

    def issued(self, call: Any, work: Any) -> None:
        """It has come back, with a Work, or None where there is nothing to wait for."""

    def failed(self, call: Any) -> None:
        """It has raised."""

    def waiting(self, work: Any) -> Any:
        """Somebody is about to wait for this Work; what this gives goes to ``waited``."""

    def waited(self, call: Any, ok: bool) -> None:
        """He has; ok: nothing was raised."""

    def waited_for(self, tensor: Any) -> None:
        """C++ has waited for the call that gives this tensor."""


class _Inside(threading.local):
    """What a call on objects does within it isn't told of."""

    depth = 0


_inside = _Inside()
_observers: tuple[Observer, ...] = ()
_undo: list[Callable[[], None]] = []


def is_possible() -> bool:
    """Whether this build of torch has process groups."""
    import torch.distributed

    return torch.distributed.is_available()


def listen(observer: Observer) -> None:
    """Tell it of every call from now on; the first one puts everything in place."""
    global _observers
    if not _observers:
        _install()
    if observer not in _observers:
        _observers = (*_observers, observer)


def forget(observer: Observer) -> None:
    """Tell it no more; after the last one everything is as it was before."""
    global _observers
    before = _observers
    _observers = tuple(one for one in before if one is not observer)
    if before and not _observers:
        for step in reversed(_undo):
            step()
        _undo.clear()


def _takes_keysets() -> bool:
    """Whether this torch tells a kernel the keys that a call has still to pass."""
    import torch

    return "with_keyset" in inspect.signature(torch.library.Library.impl).parameters


def _install() -> None:
    import torch

    newer = _takes_keysets()
    key = "BackendSelect" if newer else "ADInplaceOrView"
    options = {"with_keyset": True} if newer else {}
    for namespace, make in (("c10d", _kernel), ("_c10d_functional", _wait_kernel)):
        library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        for name in OPERATORS if namespace == "c10d" else ("wait_tensor",):
            packet = getattr(getattr(torch.ops, namespace), name, None)
            if packet is not None:
                go_on = _call_on(packet.default) if newer else _call_on_in_older(packet.default)
                library.impl(name, make(name, go_on), key, **options)
        _undo.append(functools.partial(_remove_kernels, [library]))
        del library
    _wrap_wait()
    for name in OBJECTS:
        _wrap_objects(name)


def _remove_kernels(held: list[Any]) -> None:
    library = held.pop()
    if hasattr(library, "_destroy"):
        library._destroy()  # older ones let go of their kernels when they are gone


def _call_on(overload: Any) -> Callable[..., Any]:
    """The operator from behind BackendSelect on. The interpreter's lock is released meanwhile."""
    import torch

    behind = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    redispatch = overload._handle.redispatch_boxed
    return lambda keys, *args: redispatch(keys & behind, *args)


def _call_on_in_older(overload: Any) -> Callable[..., Any]:
    """The operator without ADInplaceOrView, which inference mode leaves out: it isn't seen there.

    (BackendSelect can't be left out for the time of a call: what makes a tensor needs it.)
    """
    import torch

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

    def call(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*args)

    return call


def _kernel(name: str, go_on: Callable[..., Any]) -> Callable[..., Any]:
    from torch._C._distributed_c10d import Work

    operator = OPERATORS[name]
    first = 1 if _takes_keysets() else 0  # of the operator's own arguments

    def kernel(*args: Any) -> Any:
        if _inside.depth:
            return go_on(*args)
        own = args[first:]
        calls = [(one, one.begin(operator, own)) for one in _observers]
        try:
            result = go_on(*args)
        except BaseException:
            for one, call in calls:
                one.failed(call)
            raise
        boxed = result[-1] if isinstance(result, tuple) else result
        work = None if boxed is None else Work.unbox(boxed)
        for one, call in calls:
            one.issued(call, work)
        return result

    return kernel


def _wait_kernel(_: str, go_on: Callable[..., Any]) -> Callable[..., Any]:
    """After ``wait_tensor`` of a functional collective, which waits in C++."""

    def kernel(*args: Any) -> Any:
        result = go_on(*args)
        for one in _observers:
            one.waited_for(args[-1])
        return result

    return kernel


def _wrap_wait() -> None:
    from torch._C._distributed_c10d import Work

    original = Work.__dict__["wait"]

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        waits = [(one, one.waiting(self)) for one in _observers]
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            for one, call in waits:
                one.waited(call, False)
            raise
        for one, call in waits:
            one.waited(call, True)
        return result

    Work.wait = wait  # type: ignore[method-assign]
    _undo.append(functools.partial(setattr, Work, "wait", original))


def _wrap_objects(name: str) -> None:
    """Put the wrapper where torch's decorator keeps the function: ``dist.NAME`` stays the same."""
    import torch.distributed as dist

    function = getattr(dist, name, None)
    variables = getattr(getattr(function, "__code__", None), "co_freevars", ())
    if "func" not in variables:
        return
    cell = function.__closure__[variables.index("func")]  # type: ignore[union-attr]
    original = cell.cell_contents
    number = {"send_object_list": SEND, "recv_object_list": RECV}.get(name, OTHER)
    operator = Operator(name, number, 0, None, 0, None, 0, of_objects=True)

    @functools.wraps(original)
    def call_on_objects(*args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group")
        if group is None:
            groups = [one for one in args if isinstance(one, dist.ProcessGroup)]
            group = groups[0] if groups else dist.group.WORLD
        outside = _inside.depth == 0 and isinstance(group, dist.ProcessGroup)
        calls = [(one, one.begin(operator, (group,))) for one in _observers if outside]
        _inside.depth += 1
        try:
            result = original(*args, **kwargs)
        except BaseException:
            for one, call in calls:
                one.failed(call)
            raise
        finally:
            _inside.depth -= 1
        for one, call in calls:
            one.issued(call, None)
        return result

    cell.cell_contents = call_on_objects

    def restore() -> None:
        with contextlib.suppress(ValueError):
            cell.cell_contents = original

    _undo.append(restore)
