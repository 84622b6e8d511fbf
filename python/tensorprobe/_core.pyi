import os
from collections.abc import Callable
from typing import Any

import torch

version: str
isa: str

ACTIVATION: int
ACTIVATION_GRAD: int
GRAD_UNREDUCED: int
GRAD_REDUCED: int
PARAM_ORIGIN: int
PARAM_UPDATED: int
EXP_AVG: int
EXP_AVG_SQ: int
SCALAR: int
ROLE_NONE: int
ROLE_INPUT: int
ROLE_OUTPUT: int
COMM: int
ROLE_PRE: int
ROLE_POST: int

class ConfigError(ValueError):
    file: str
    line: int
    column: int
    field: str

class ModuleHook:
    forward_pre: Callable[..., None]
    forward: Callable[..., None]
    @property
    def fired(self) -> bool: ...
    @property
    def compiled_sides(self) -> tuple[Any, ...]: ...
    def compiled_forward(
        self, tensors: list[torch.Tensor], side: int, keywords: list[str], /
    ) -> tuple[int, int, int]: ...
    def compiled_backward(
        self,
        tensor: torch.Tensor,
        side: int,
        slot: int,
        keyword: str,
        step: int,
        micro_step: int,
        call: int,
        /,
    ) -> None: ...

class OptimizerHook:
    step_pre: Callable[..., None]
    step_post: Callable[..., None]
    locate: Callable[[bool, Any], list[Any]] | None
    @property
    def reduced_sq(self) -> float: ...
    @property
    def has_gradients(self) -> bool: ...
    reducer: tuple[Any, str] | None
    ending: Callable[[], None] | None
    def watch(self, parameters: list[Any], /) -> None: ...
    def take(self, quantity: int, rows: list[int], tensors: list[Any], micro: int, /) -> None: ...
    def mark_skipped(self) -> None: ...
    def accumulated(self, parameter: torch.Tensor, /) -> None: ...
    def unscaled(self, optimizer: Any, /) -> None: ...
    def scaled(self) -> None: ...
    def clipping(self) -> None: ...
    def scaler_begin(self, optimizer: Any, scale: Any, /) -> None: ...
    def scaler_end(self, optimizer: Any, failed: bool, /) -> None: ...
    def gradients(self) -> list[tuple[int, str, dict[str, Any]]]: ...

class Monitor:
    def __init__(
        self,
        config_json: str | None = None,
        config_path: str | None = None,
        rank: int = 0,
        output_dir: str | None = None,
        run_id: str | None = None,
        watch: bool = False,
        pp_stage: int = -1,
        resume: str | os.PathLike[str] | None = None,
    ) -> None: ...
    def go_on(self, run: str | os.PathLike[str], /) -> None: ...
    @property
    def run(self) -> dict[str, Any]: ...
    @property
    def directory(self) -> str: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def collector_handles(self) -> list[Any]: ...
    @property
    def collecting(self) -> bool: ...
    @property
    def open_step(self) -> int: ...
    @property
    def step_number(self) -> int: ...
    @property
    def forwards(self) -> tuple[int, int]: ...
    ops: list[str]
    reduced_only: bool
    on_zoom: Callable[[Any], None] | None
    def spend(self, size: int, /) -> bool: ...
    def configure(self, config_json: str | None = None, config_path: str | None = None) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def step(self) -> None: ...
    def start_at(self, step: int, /) -> None: ...
    def mark_skipped(self) -> None: ...
    def activations(self) -> list[tuple[int, int, str, int, dict[str, Any]]]: ...
    def close(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def key(
        self,
        name: str,
        quantity: int,
        role: int = 0,
        vpp_stage: int = 0,
        slot: int = -1,
        global_name: str | None = None,
    ) -> int: ...
    def observe(self, key: int, tensor: torch.Tensor, micro_step: int = 0) -> None: ...
    def matches(self, target: int, name: str, beginning: bool, /) -> bool: ...
    def tell(
        self,
        on_change: Callable[[], bool] | None,
        on_first_step: Callable[[], None] | None,
        /,
    ) -> None: ...
    def log_scalar(self, name: str, value: Any, /) -> None: ...
    def module_hook(
        self,
        module: torch.nn.Module,
        name: str,
        vpp_stage: int,
        root: bool,
        recorded: bool,
        target: int,
        /,
    ) -> ModuleHook: ...
    def optimizer_hook(
        self,
        parameters: list[Any],
        main_grad: bool,
        members: set[torch.nn.Parameter] | None,
        ends_step: bool,
        /,
    ) -> OptimizerHook: ...

class Collectives:
    def __init__(self, monitor: Monitor, before_end: Callable[[], None]) -> None: ...
    def issue(
        self,
        key: int,
        call: int,
        tensor: torch.Tensor | None,
        op: int,
        tag: int,
        peer: int,
        group_size: int,
        sequence: int,
        bytes_in: int,
        bytes_out: int,
        signature: int,
        running: int,
        location: int,
        flags: int,
        /,
    ) -> int | None: ...
    def returned(self, number: int, /) -> None: ...
    def waiting(self, number: int, /) -> None: ...
    def end(self, number: int, flags: int, /) -> bool | None: ...
    def values(self, key: int, call: int, tensors: list[torch.Tensor], /) -> None: ...
    def trouble(self, error: Exception, /) -> None: ...
    def close(self) -> None: ...

class JournalReader:
    def __init__(self, directory: str) -> None: ...
    @property
    def run(self) -> dict[str, Any]: ...
    def frames_only(self) -> None: ...
    def next(self, records: bool = True) -> dict[str, Any] | None: ...
    def series(
        self,
        name: str,
        quantity: str,
        role: str | None = None,
        op: str = "norm",
        slot: int = -2,
        call: int = -1,
        micro_step: int = -1,
    ) -> tuple[list[int], list[float]]: ...
    def keys(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...

class Table:
    def __init__(
        self,
        table: str,
        directories: list[bytes],
        columns: list[bytes],
        ranks: list[int],
        first_step: int,
        last_step: int,
        names: list[bytes],
        quantities: list[bytes],
        roles: list[bytes],
        slot: int,
        call: int,
        micro_step: int,
        width: int,
    ) -> None: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def damaged(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

def find_drift(directories: list[bytes], /) -> dict[str, Any] | None: ...
def find_journals(directory: str | os.PathLike[str], /) -> list[str]: ...
def export_journal(
    journal: str | os.PathLike[str], sink: str, directory: str | os.PathLike[str], /
) -> int: ...
def compute_stats(
    tensor: torch.Tensor,
    eps: float = 1e-8,
    isa: str | None = None,
    *,
    histogram: tuple[int, float, float] | None = None,
    exponents: bool = False,
    content_hash: bool = False,
    threads: int = 1,
) -> dict[str, Any]: ...
def compute_adam(
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    step: float = 0.0,
    zeros_eps: float = 1e-8,
    histogram: tuple[int, float, float] | None = None,
    isa: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]: ...
def compute_agreement(
    gradient: torch.Tensor, momentum: torch.Tensor, isa: str | None = None
) -> dict[str, Any]: ...
def shortcuts() -> dict[str, bool]: ...
def inert_hook() -> ModuleHook: ...
