"""What callers give by mistake, and what they are told to write instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def kind(value: Any) -> str:
    """The type's name with its article."""
    name = type(value).__name__
    return f"an {name}" if name[:1] in "AEIOUaeiou" else f"a {name}"


def check_model(model: Any, call: str) -> None:
    """Raise TypeError when this is no model; call is what the user called."""
    from torch.nn import Module
    from torch.optim import Optimizer

    chunks = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    for chunk in chunks:
        if isinstance(chunk, Module):
            continue
        if isinstance(chunk, Optimizer):
            raise TypeError(f"the model comes first: {call}(model, optimizer); {kind(chunk)} came")
        hint = "; a state_dict has no forward" if isinstance(chunk, Mapping) else ""
        raise TypeError(
            f"model is a torch.nn.Module or a list of them, not {kind(chunk)}{hint}: "
            f"write {call}(model, optimizer)"
        )


def _culprit(value: Any, place: str) -> str | None:
    """Where in this the first value is that JSON doesn't have, and what it is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key is not None and not isinstance(key, (str, int, float)):
                return f"{place} has {kind(key)} as a field's name; write text"
            found = _culprit(inner, str(key) if place == "config" else f"{place}.{key}")
            if found:
                return found
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            found = _culprit(inner, f"{place}[{number}]")
            if found:
                return found
    elif value is not None and not isinstance(value, (str, int, float)):
        number_of = f", as {place.rpartition('.')[2]}=x.item()" if hasattr(value, "item") else ""
        return f"{place} is {kind(value)}; write a number, text, list or dict{number_of}"
    return None


def config_text(config: dict[str, Any]) -> str:
    """The configuration as JSON. TypeError: it is none, and where."""
    try:
        return json.dumps(config)
    except (TypeError, ValueError) as error:
        raise TypeError(_culprit(config, "config") or f"config: {error}") from None
