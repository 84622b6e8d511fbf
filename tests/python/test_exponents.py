"""How many elements have which exponent: the journal beside numpy.frexp, on tensors kept for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import tensorprobe
from journal_reader import read_journal
from tensorprobe import _core, _torch_stats

BATCH = 2  # type of a frame
Place = tuple[int, str, str]  # step, quantity, row


def exponents_of(tensor: Tensor) -> Counter[int]:
    values = tensor.detach().double().numpy().ravel()
    finite = values[np.isfinite(values) & (values != 0)]
    return Counter((np.clip(np.frexp(finite)[1] - 1, -160, 159)).tolist())


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96, dtype=dtype)  # its output is larger than 1 KiB
        self.act = nn.ReLU()
        self.last = nn.Linear(96, 3, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.act(self.first(x)))


def train(
    config: dict[str, Any], base: Path, dtype: torch.dtype, steps: int, watch: bool = True
) -> tuple[Path, dict[Place, Tensor], list[Tensor]]:
    """Return the directory, copies of what passed by, and the parameters at the end."""
    torch.manual_seed(3)
    net = Net(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    kept: dict[Place, Tensor] = {}
    step = 0

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: Any, output: Tensor) -> None:
            kept[step, "actv", f"{name}.input"] = inputs[0].detach().clone()
            kept[step, "actv", f"{name}.output"] = output.detach().clone()

        return hook

    for name, module in net.named_children():
        module.register_forward_hook(keep(name))
    monitor = tensorprobe.watch(net, optimizer, config, output_dir=str(base)) if watch else None
    for step in range(steps):
        x = torch.randn(8, 24).to(dtype)
        if step == 2:
            x[1, 5] = float("nan")
        for name, parameter in net.named_parameters():
            kept[step, "param_origin", name] = parameter.detach().clone()
        net(x).float().square().mean().backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            if step == 2:
                parameter.grad.nan_to_num_(0.01)
            kept[step, "grad_reduced", name] = parameter.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    directory = Path(monitor.directory) if monitor is not None else Path()
    return directory, kept, [p.detach() for p in net.parameters()]


def found_in(directory: Path) -> dict[Place, dict[str, Any]]:
    return {
        (step.step, record["quantity"], record["row"]): record
        for step in tensorprobe.Journal(directory)
        for record in step.records
    }


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exponents_of_everything(dtype: torch.dtype, path: str, tmp_path: Path) -> None:
    config = {"exponents": True, "device_path": path, "format": "api"}
    directory, kept, after = train(config, tmp_path, dtype, 4)
    found = found_in(directory)
    assert len(kept) == 4 * (6 + 4 + 4)
    for place, tensor in kept.items():
        record = found[place]
        bins = record["exponents"]["bins"]
        first = record["exponents"]["first"]
        counts = {first + k: count for k, count in enumerate(bins) if count}
        assert counts == exponents_of(tensor), place
        assert min(bins[0], bins[-1]) > 0
        assert record["nan"] == int(tensor.isnan().sum())
    plain = train(config, tmp_path, dtype, 4, watch=False)[2]
    assert all(torch.equal(a, b) for a, b in zip(after, plain, strict=True))

    # The same by a reader that knows the format from its document, and as a table.
    beside = {}
    for item, _ in read_journal(directory):
        for raw in item.records if item.type == BATCH else ():
            exponents = item.exponents(raw)
            if exponents is not None:
                beside[item.step, item.order(raw)] = exponents
    table: Any = pa.RecordBatchReader.from_stream(
        tensorprobe.open(directory).exponents()
    ).read_pandas()
    assert (table["elements"] > 0).all()
    for (step, order), (low, bins) in beside.items():
        part = table[(table["step"] == step) & (table["order"] == order)]
        right = {low + k: count for k, count in enumerate(bins) if count}
        assert dict(zip(part["exponent"], part["elements"], strict=True)) == right
    assert len(beside) == sum("exponents" in record for record in found.values())
    assert table["elements"].sum() == sum(sum(bins) for _, bins in beside.values())


def test_a_nan_keeps_its_element(tmp_path: Path) -> None:
    directory, _, _ = train({"exponents": True, "format": "api"}, tmp_path, torch.float32, 4)
    (incident,) = tensorprobe.Journal(directory).incidents()
    assert (incident.name, incident.element, incident.first_step) == ("", 1 * 24 + 5, 2)


def test_only_those_that_a_rule_asks_for(tmp_path: Path) -> None:
    for rule, quantities in (
        ({"rule_name": "OverflowShare"}, {"actv", "actv_grad", "grad_reduced", "grad_unreduced"}),
        ({"rule_name": "UnderflowShare"}, set()),
        (
            {"rule_name": "UnderflowShare", "args": {"dtype": "float16"}},
            {"actv", "actv_grad", "grad_reduced", "grad_unreduced"},
        ),
        ({"rule_name": "Exploding"}, set()),
    ):
        config = {"format": "api", "alert": {"rules": [rule]}}
        directory, _, _ = train(config, tmp_path, torch.float32, 2)
        records = found_in(directory).values()
        with_them = {record["quantity"] for record in records if "exponents" in record}
        assert with_them <= quantities, rule
        assert ("actv" in with_them) == bool(quantities), rule
        without = {record["quantity"] for record in records if "exponents" not in record}
        assert without.isdisjoint(with_them)


def test_a_rule_tells_of_gradients_too_small_for_half_precision(tmp_path: Path) -> None:
    """A loss that is scaled down from step 20 on."""
    config = {
        "format": "api", "alert": {"rules": [
            {"rule_name": "UnderflowShare", "args": {"dtype": "float16", "threshold": 0.5}},
        ]},
    }  # fmt: skip
    torch.manual_seed(0)
    net = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    share = 0.0
    with tensorprobe.watch(net, optimizer, config, output_dir=str(tmp_path)) as monitor:
        for step in range(30):
            scale = 1.0 if step < 20 else 1e-5
            (net(torch.randn(4, 16)).square().mean() * scale).backward()
            assert net.weight.grad is not None
            if step == 24:
                share = int((net.weight.grad.abs() < 2.0**-14).sum()) / 256
            optimizer.step()
            optimizer.zero_grad()
    alerts = tensorprobe.Journal(monitor.directory).alerts()
    assert {alert.rule for alert in alerts} == {"UnderflowShare"}
    (alert,) = [one for one in alerts if (one.row, one.quantity) == ("weight", "grad_reduced")]
    assert (alert.step, alert.value) == (24, share)
    assert share > 0.9
    assert all(alert.step == 24 for alert in alerts)


def test_by_torch_operations() -> None:
    """Bits of every kind, expanded and strided, against the kernels."""
    generator = torch.Generator().manual_seed(8)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8,
                  torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64):  # fmt: skip
        raw = torch.randint(0, 256, (96 * 64 * dtype.itemsize,), dtype=torch.uint8,
                            generator=generator)  # fmt: skip
        flat = raw.view(dtype).reshape(96, 64)
        for x in (flat, flat.t(), flat[::3, 1::2], flat[:, :1].expand(96, 5)):
            right = _core.compute_stats(x, exponents=True)
            both = zip(right["exponents_negative"], right["exponents_positive"], strict=True)
            assert _torch_stats.read(x, 0.0, 1)[1] == [a + b for a, b in both], dtype
