"""``TrainerMon`` with the signature that KJ600 gave it."""

from __future__ import annotations

import os
from typing import Any

import tensorprobe


class TrainerMon(tensorprobe.TrainerMon):
    """See ``tensorprobe.TrainerMon``, which has a process group as its second argument."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | dict[str, Any],
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
    ) -> None:
        super().__init__(
            config_file_path, params_have_main_grad=params_have_main_grad, opt_ty=opt_ty
        )
