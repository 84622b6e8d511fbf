"""Lightning: the step's closure runs forward and backward, so gradients come in its middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _frameworks
from tensorprobe._frameworks import Adapter, Handle
from tensorprobe._frameworks._living import chain, kind
from tensorprobe._frameworks._patch import listen
from tensorprobe._ranks import reduces_gradients

if TYPE_CHECKING:
    import torch

    from tensorprobe import _core

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_asking: list[Any] = []  # the chunks for which somebody else's adapter is being looked for


def _module_of(chunks: Sequence[torch.nn.Module]) -> tuple[str, Any] | None:
    """Return the package, and its module that a trainer trains by itself."""
    for package in _PACKAGES:
        of: Any = kind(f"{package}.core.module", "LightningModule")
        for chunk in chunks if of is not None else ():
            for one in (chunk, vars(chunk).get("_modules", {}).get("module")):
                attached = getattr(one, "_trainer", None)
                if isinstance(one, of) and attached is not None:
                    return (package, one) if one.automatic_optimization else None
    return None


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of what is inside, with the boundary that Lightning's steps have."""
    found = None if _asking or optimizer is None else _module_of(chunks)
    if found is None:
        return None
    package, module = found
    plugin = getattr(module._trainer, "precision_plugin", None)
    if getattr(plugin, "scaler", None) is not None:
        return None  # it steps as it would by hand
    inner = chain(optimizer)[-1]
    _asking.append(chunks)
    try:
        adapter = _frameworks.find(chunks, inner)
    finally:
        _asking.pop()
    if adapter is None:
        adapter = Adapter()
        adapter.reduces = reduces_gradients()

    def boundary(hook: _core.OptimizerHook) -> list[Handle]:
        return list(_boundary(package, inner, hook))

    setattr(adapter, "boundary", boundary)  # noqa: B010
    return adapter


def _boundary(package: str, inner: Any, hook: _core.OptimizerHook) -> Iterator[Handle]:
    """Begin where the closure has run and nothing is clipped; end with torch's optimizer."""

    def before(_: Any, __: Any, optimizer: Any) -> None:
        if any(one is inner for one in chain(optimizer)):
            hook.step_pre(inner, (), {})

    def after(optimizer: Any, *_: Any) -> None:
        hook.step_post(optimizer, (), {})

    of = kind(f"{package}.plugins.precision.precision", "Precision")
    yield listen(of, "_after_closure", before=before)
    yield inner.register_step_post_hook(after)
