"""Objects of a framework that exist in this process, for where nobody has handed them over."""

from __future__ import annotations

import gc
import sys
from typing import Any


def kind(module: str, name: str) -> type | None:
    """Return the class of that name, if its module has been imported and has it."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def kinds_of(of: type) -> list[type]:
    """Return the class and all that are derived from it."""
    found = [of]
    for one in found:  # which grows on the way
        below: list[type] = one.__subclasses__()
        found += [derived for derived in below if derived not in found]
    return found


def instances(of: type | None) -> list[Any]:
    """Return all objects of this class and of those derived from it. Takes about 0.1 s."""
    if of is None:
        return []
    # isinstance() would ask lazy objects what they are, and make them be something.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), of)]


def wrapper_of(model: Any) -> Any:
    """Return what distributes the model, where that is a module around it; else the model."""
    for place in (
        ("torch.nn.parallel.distributed", "DistributedDataParallel"),
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    ):
        for one in instances(kind(*place)):
            if vars(one).get("_modules", {}).get("module") is model:
                return one
            if vars(one).get("_modules", {}).get("_fsdp_wrapped_module") is model:
                return one
    return model


def chain(optimizer: Any) -> list[Any]:
    """Return the optimizer and what is inside of it, from the outermost on."""
    found: list[Any] = []
    while optimizer is not None and len(found) < 8 and all(optimizer is not one for one in found):
        found.append(optimizer)
        try:
            optimizer = getattr(optimizer, "optimizer", None)
        except Exception:  # of several in a chain there is no such one
            break
    return found
