"""Watching changes nothing: parameters, optimizer state and random generators end in the same bits.

The watched trainings are the very runs whose rows test_values.py compares with brute force.
"""

from __future__ import annotations

import pytest
import torch

import models
from brute import watched_run


@pytest.mark.parametrize("setting", models.SETTINGS, ids=lambda s: f"{s.model}-{s.optimizer}")
def test_watching_keeps_the_bits(setting: models.Setting) -> None:
    watched = watched_run(setting)
    assert watched.counters["steps"] == models.STEPS
    assert watched.counters["records"] > 100 * models.STEPS
    plain = models.train(setting)
    changed = [
        name
        for name, tensor in plain.tensors.items()
        if not torch.equal(tensor, watched.outcome.tensors[name])
    ]
    assert watched.outcome.tensors.keys() == plain.tensors.keys()
    assert changed == []
    assert watched.outcome.random_states == plain.random_states


def test_the_comparison_can_fail() -> None:
    """One random number drawn, or one weight touched in its last bit, is seen."""
    setting = models.SETTINGS[0]
    plain = models.train(setting, steps=2)
    again = models.train(setting, steps=2)
    assert plain.random_states == again.random_states
    torch.rand(1)
    assert torch.get_rng_state().tolist() != plain.random_states["torch"]
    name, tensor = next(iter(plain.tensors.items()))
    touched = torch.nextafter(tensor, torch.tensor(float("inf")))
    assert torch.equal(tensor, again.tensors[name])
    assert not torch.equal(touched, again.tensors[name])
