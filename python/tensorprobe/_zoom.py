"""Recording everything for a while, because an incident has begun."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._messages import complain
from tensorprobe._targets import WatchedModule

if TYPE_CHECKING:
    import torch

_Key = tuple[str, int, int, int, int]
"""Name, quantity, role, slot and vpp stage of a series."""


class Zoom:
    """What a session does when the monitor collects more than is configured, and when it is over.

    All of it is called at the end of a step, in the training's thread.
    """

    def __init__(
        self,
        monitor: _core.Monitor,
        widen: Callable[[bool], bool],
        modules: Callable[[], list[WatchedModule]],
        with_state: Callable[[int, str], tuple[torch.nn.Parameter, dict[str, Any]] | None],
    ) -> None:
        """widen: hook everything (False: that can't be), or what is configured again.

        modules: those that are hooked then. with_state: the parameter that has rows under this
        name, in this chunk of the model, and what an optimizer keeps for it.
        """
        self._monitor = monitor
        self._widen = widen
        self._modules, self._with_state = modules, with_state
        self._capture: _Capture | None = None
        self._is_wide = False
        self._has_warned = False
        monitor.on_zoom = self._change

    def _change(self, incident: dict[str, Any] | int | None) -> None:
        if isinstance(incident, dict):
            self._begin(incident)
        elif incident is None:
            self.close()
            if self._is_wide:
                self._is_wide = False
                self._widen(False)
        elif self._capture is not None:
            self._capture.end_step(incident)

    def _begin(self, incident: dict[str, Any]) -> None:
        self.close()  # of one that another configuration has broken off
        self._is_wide = self._widen(True)
        if not self._is_wide and not self._has_warned:
            self._has_warned = True
            complain(
                "zoom: hooks can't be added to what is compiled: the modules are recorded as they "
                "were; parameters that are watched, with their gradients and moments, all"
            )
        if not self._monitor.config["zoom_tensors"]:
            return
        keys = [key for key in incident["tensors"] if key is not None]
        directory = Path(self._monitor.directory) / "zoom"
        self._capture = _Capture(self._monitor, directory, incident["number"])
        for key in dict.fromkeys(keys):
            name, quantity, _, _, stage = key
            is_module = quantity in (_core.ACTIVATION, _core.ACTIVATION_GRAD)
            if not is_module:
                self._capture.watch_parameter(name, partial(self._with_state, stage, name))
            elif self._is_wide:
                for one in self._modules():
                    if (one.vpp_stage, one.name) == (stage, name):
                        self._capture.watch_module(name, one.module)

    def detach(self) -> None:
        """Hear of nothing any more."""
        self.close()
        self._monitor.on_zoom = None

    def close(self) -> None:
        """Take back the hooks that were added for tensors."""
        if self._capture is not None:
            self._capture.close()
            self._capture = None


class _Capture:
    """The values of the tensors that an incident speaks of, a file a step."""

    def __init__(self, monitor: _core.Monitor, directory: Path, incident: int) -> None:
        self._monitor = monitor
        self._directory = directory
        self._incident = incident
        self._handles: list[Any] = []
        self._parameters: dict[str, Any] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._is_full = False
        self._pid = os.getpid()

    def watch_module(self, name: str, module: torch.nn.Module) -> None:
        """Keep what goes into the module and comes out, in training, and the gradients of it."""

        def after(own: Any, args: Any, kwargs: Any, output: Any) -> None:
            import torch

            if own is module and module.training and torch.is_grad_enabled():
                self._safely(self._take_sides, name, (args, kwargs), output)

        self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def watch_parameter(self, name: str, find: Any) -> None:
        """Keep the parameter, its gradient and moments, as they are when the step ends."""
        self._parameters[name] = find

    def _safely(self, take: Callable[..., None], *values: Any) -> None:
        """Nothing that goes wrong here may reach the training."""
        if self._is_full or os.getpid() != self._pid:
            return
        try:
            import torch

            with torch.no_grad(), torch._C.DisableTorchFunction():
                take(*values)
        except Exception as error:
            self._is_full = True
            complain(f"zoom: {error}: no more tensors are kept of incident {self._incident}")

    def _take_sides(self, name: str, inputs: Any, output: Any) -> None:
        for side, values in (("input", inputs), ("output", output)):
            for number, tensor in enumerate(_tensors_in(values)):
                row = f"{name}.{side}.{number}"
                self._keep(row, tensor)
                if side == "output" and tensor.requires_grad and not tensor.is_leaf:
                    self._listen(f"{row}.grad", tensor)

    def _listen(self, row: str, tensor: torch.Tensor) -> None:
        # Of the node: a hook of the tensor would follow it through changes in place.
        node, place = tensor.grad_fn, tensor.output_nr

        def arrives(grads: tuple[torch.Tensor | None, ...]) -> None:
            if grads[place] is not None:
                self._safely(self._keep, row, grads[place])

        if node is not None:
            node.register_prehook(arrives)  # goes with the graph

    def _keep(self, row: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
            return
        if not self._monitor.spend(size):
            self._is_full = True
            return
        number = 0
        while f"{row}#{number}" in self._tensors:
            number += 1
        self._tensors[f"{row}#{number}"] = tensor.detach().to("cpu", copy=True).contiguous()

    def end_step(self, step: int) -> None:
        """Write what the step has had."""
        for name, find in self._parameters.items():
            self._safely(self._take_parameter, name, find)
        tensors, self._tensors = self._tensors, {}
        if tensors:
            was_full, self._is_full = self._is_full, False
            self._safely(self._write, step, tensors)
            self._is_full = self._is_full or was_full

    def _take_parameter(self, name: str, find: Any) -> None:
        found = find()
        if found is None:
            return
        parameter, state = found
        kept = {"": parameter, ".grad": parameter.grad}
        kept |= {f".{moment}": state.get(moment) for moment in ("exp_avg", "exp_avg_sq")}
        for suffix, tensor in kept.items():
            if tensor is not None and not self._is_full:
                self._keep(f"{name}{suffix}", tensor)

    def _write(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        from safetensors.torch import save

        self._directory.mkdir(mode=0o750, exist_ok=True)
        path = self._directory / f"step{step}-incident{self._incident}.safetensors"
        content = save(tensors, {"step": str(step), "incident": str(self._incident)})
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o640), "wb") as file:
            file.write(content)

    def close(self) -> None:
        """Take the hooks back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._parameters.clear()
        self._tensors.clear()


def _tensors_in(values: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict) and depth > 0:
        for value in values.values():
            yield from _tensors_in(value, depth - 1)
    elif isinstance(values, tuple | list) and depth > 0:
        for value in values:
            yield from _tensors_in(value, depth - 1)
