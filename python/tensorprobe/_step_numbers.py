"""The numbers of a step that a trainer has: its loss, learning rate and gradient norm."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tensorprobe._frameworks._patch import Listener, listen

if TYPE_CHECKING:
    from tensorprobe.session import Session


class StepNumbers:
    """Collects them, and has the session record them as the step ends."""

    def __init__(self, session: Session, optimizer: Any) -> None:
        self._session = session
        self._optimizer = optimizer
        self._losses: list[Any] = []
        self._rate: Any = None
        self._norm: Any = None
        self._handles = self._listen()
        session.report(self._report)

    def _listen(self) -> list[Listener]:
        """Hear of torch's clip_grad_norm_, which says what the norm was."""
        clip = sys.modules.get("torch.nn.utils.clip_grad")

        def clipped(_: Any, __: Any, norm: Any, *___: Any, **____: Any) -> None:
            self._norm = norm

        name = "_clip_grads_with_norm_"
        return [listen(clip, name, before=clipped)] if hasattr(clip, name) else []

    def loss(self, loss: Any) -> None:
        """Take the loss of a micro step, its share in that of the step."""
        self._losses.append(loss.detach())
        # A schedule may have gone on by the end of the step.
        groups: Any = getattr(self._optimizer, "param_groups", None) or ({},)
        self._rate = groups[0].get("lr")

    def _report(self) -> None:
        losses, self._losses = self._losses, []
        norm, self._norm = self._norm, None
        if losses:
            self._session.log_scalar("loss", sum(float(one) for one in losses))
        if self._rate is not None:
            self._session.log_scalar("lr", float(self._rate))
        known = self._session.gradient_norm()
        norm = known if known is not None else norm
        if norm is not None:
            whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self._session.log_scalar("grad_norm", float(whole))

    def close(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()
