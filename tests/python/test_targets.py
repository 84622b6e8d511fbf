"""Which modules and parameters a target names."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe

pytestmark = pytest.mark.usefixtures("seed")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 2)
        self.mlp = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mlp(self.attn(x))
        return y


class Deep(nn.Module):
    """Twelve layers, so that one number is the beginning of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(12))
        self.norm = nn.LayerNorm(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = self.norm(x)
        return y


def names(
    tmp_path: Path, targets: dict[str, Any], model: Any = None, **config: Any
) -> tuple[set[str], set[str]]:
    """What is recorded when it is trained for a step: modules, parameters."""
    model = model or Deep()
    chunks = model if isinstance(model, list) else [model]
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.1)
    settings = {
        "targets": targets,
        "xy_distribution": True,
        "param_distribution": True,
        "format": "api",
        **config,
    }
    monitor = tensorprobe.TrainerMon(settings, output_dir=tmp_path)
    monitor.set_monitor(model, optimizer)
    for chunk in chunks:
        chunk(torch.randn(3, 2)).sum().backward()
    optimizer.step()
    monitor.close()
    prefix = len(chunks) > 1
    found: tuple[set[str], set[str]] = (set(), set())
    for series in tensorprobe.Journal(monitor.directory).defined():
        name = f"{series['vpp_stage']}:{series['name']}" if prefix else series["name"]
        found[series["quantity"].startswith("param")].add(name)
    return found


EVERY_MODULE = {
    name for name, module in Deep().named_modules() if not isinstance(module, nn.ModuleList)
}
EVERY_PARAMETER = {name for name, _ in Deep().named_parameters()}


def matching(every: set[str], regex: str) -> set[str]:
    """Judge by Python's own regular expressions."""
    return {name for name in every if re.search(regex, name)}


@pytest.mark.parametrize(
    ("target", "modules", "parameters"),
    [
        ("layers.1", r"^layers\.1$", r"^layers\.1\."),
        ("layers.1.mlp.0", r"^layers\.1\.mlp\.0$", r"^layers\.1\.mlp\.0\."),
        ("", r"^$", ""),
        ("layers.*", r"^layers\.\d+$", r"^layers\."),
        ("layers.?", r"^layers\.\d$", r"^layers\.\d\."),
        ("layers.1?.attn", r"^layers\.1\d\.attn$", r"^layers\.1\d\.attn\."),
        ("layers.[0-2].**", r"^layers\.[0-2]\.", r"^layers\.[0-2]\."),
        ("layers.[!0-9]*", "^never$", "^never$"),
        ("**.weight", "^never$", r"\.weight$"),
        ("*orm", "^norm$", r"^norm\."),
        (r"re:^layers\.(3|11)$", r"^layers\.(3|11)$", "^never$"),
        (r"re:\.attn", r"\.attn", r"\.attn"),
        (r"re:(?<=mlp\.)0\b", r"mlp\.0$", r"mlp\.0\."),
    ],
)
def test_what_a_target_names(tmp_path: Path, target: str, modules: str, parameters: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those that name nothing
        found = names(tmp_path, {target: {}}, all_xy=False)
    assert found == (matching(EVERY_MODULE, modules), matching(EVERY_PARAMETER, parameters))


def test_a_string_prefix_by_a_switch(tmp_path: Path) -> None:
    found = names(tmp_path, {"layers.1": {}}, string_prefix=True)
    assert found[0] == {"layers.1"}
    assert found[1] == {name for name in EVERY_PARAMETER if name.startswith("layers.1")}
    assert "layers.10.attn.weight" in found[1]


def test_chunks(tmp_path: Path) -> None:
    found = names(tmp_path, {"1:layers.[01]": {}, "0:re:^norm": {}}, [Deep(), Deep()])
    assert found[0] == {"1:layers.0", "1:layers.1", "0:norm"}
    assert found[1] == {"0:norm.weight", "0:norm.bias"} | {
        f"1:{name}" for name in matching(EVERY_PARAMETER, r"^layers\.[01]\.")
    }


def test_a_name_with_the_signs_of_a_pattern_goes_first(tmp_path: Path) -> None:
    model = nn.Sequential()
    for name in ("fc*", "fc1", "a[0]"):
        model.add_module(name, nn.Linear(2, 2))
    assert names(tmp_path, {"fc*": {}}, model)[0] == {"fc*"}
    assert names(tmp_path, {"fc?": {}}, model)[0] == {"fc*", "fc1"}
    assert names(tmp_path, {"a[0]": {}}, model)[1] == {"a[0].weight", "a[0].bias"}


def test_patterns_see_through_wrappers(tmp_path: Path) -> None:
    model = nn.Module()
    model.module = Deep()
    model.forward = model.module.forward
    found = names(tmp_path, {"layers.0": {}, "layers.1?.mlp": {}, r"re:^norm\b": {}}, model)
    assert found[0] == {
        "module.layers.0",
        *(f"module.layers.1{i}.mlp" for i in (0, 1)),
        "module.norm",
    }


def test_targets_that_match_nothing_are_named_with_the_nearest(tmp_path: Path) -> None:
    targets: dict[str, Any] = {"layers.1.atn": {}, "layers.*.mpl": {}, "re:^nrom$": {}, "norm": {}}
    targets |= {f"other{i}": {} for i in range(3)}
    with pytest.warns(RuntimeWarning, match="no module or parameter") as caught:
        names(tmp_path, targets)
    (message,) = [str(w.message) for w in caught]
    assert "'layers.1.atn'; the nearest names are 'layers.1.attn', " in message
    assert "'layers.*.mpl'; the nearest names are 'layers." in message
    assert "'re:^nrom$'; the nearest name is 'norm'" in message
    assert message.endswith("and 2 more")


@pytest.mark.parametrize("pattern", ["re:(", "re:[", "re:a{2,1}", "1:re:*"])
def test_a_wrong_expression_is_an_error_with_a_place(pattern: str) -> None:
    text = {"xy_distribution": True, "targets": {pattern: {}}}
    with pytest.raises(tensorprobe.ConfigError, match="is no regular expression") as caught:
        tensorprobe.TrainerMon(text)
    assert caught.value.field.startswith("targets.")
    assert caught.value.line == 1


def test_a_pattern_that_takes_too_long_matches_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential()
    model.add_module("a" * 40, nn.Linear(2, 2))
    with pytest.warns(RuntimeWarning, match="no module or parameter"):
        names(tmp_path, {"re:^(a+)+$x|(a|aa)+b": {}}, model)
    assert "can't be compared" in capfd.readouterr().err
