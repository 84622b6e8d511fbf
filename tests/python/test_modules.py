"""What modules take and return, in containers of every kind."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from test_hooks import Call, draw, equal, linear, named, norm_of, rows, start

pytestmark = pytest.mark.usefixtures("seed")

Old = namedtuple("Old", ["first", "second"])


class Pair(NamedTuple):
    """Two values."""

    first: Any
    second: Any


@dataclass
class Result:
    """Fields of all sorts."""

    kind: ClassVar[Tensor] = torch.ones(3)
    first: Any
    flag: bool
    second: Any = None
    unset: Any = field(init=False)


@dataclass(frozen=True, slots=True)
class Slotted:
    """Without a dict."""

    first: Any
    second: Any


def output_of_transformers(first: Any, second: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=first, attentions=(second,))


CONTAINERS: dict[str, Any] = {
    "tuple": lambda a, b: (a, None, b),
    "list": lambda a, b: [a, "text", b],
    "dict": lambda a, b: {"z": a, "none": None, "a": b},
    "OrderedDict": lambda a, b: OrderedDict(z=a, a=b),
    "namedtuple": Old,
    "NamedTuple": Pair,
    "dataclass": lambda a, b: Result(a, True, b),
    "slots": Slotted,
    "UserDict": lambda a, b: UserDict(z=a, a=b),
    "deque": lambda a, b: deque([a, 3, b]),
    "ModelOutput": output_of_transformers,
    "nested": lambda a, b: {"x": [Result(Pair(a, 1), False, deque([Slotted(b, [])]))]},
}


def unpack(value: Any) -> list[Tensor]:
    """Find the tensors by other means than the code under test."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (dict, UserDict)):
        return [t for item in value.values() for t in unpack(item)]
    if isinstance(value, (tuple, list, deque)):
        return [t for item in value for t in unpack(item)]
    if isinstance(value, (Result, Slotted)):
        return unpack(value.first) + unpack(value.second)
    return []


@pytest.mark.parametrize("kind", CONTAINERS)
def test_tensors_in_containers(tmp_path: Path, kind: str) -> None:
    pack = CONTAINERS[kind]

    def inner(_: nn.Module, value: Any, *, more: Any) -> Any:
        a, b = unpack(value)
        c, d = unpack(more)
        return pack(a * 2 + c, b * 3 * d)

    def outer(m: Any, x: Tensor) -> Any:
        y = m.fc(x)
        made = m.inner(pack(y, y + 1), more=pack(y + 2, y + 3))
        return sum(t.sum() for t in unpack(made))

    model = Call(outer, fc=linear(), inner=Call(inner))
    x = draw(3, 4)
    y = model.get_submodule("fc")(x).detach()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)
    inputs = ("input_0", "input_1", "input_more.0", "input_more.1")
    for added, name in enumerate(inputs):
        assert equal(norm_of(records, f"inner.{name}"), y + added)
    assert equal(norm_of(records, "inner.output_0"), y * 2 + y + 2)
    assert equal(norm_of(records, "inner.output_1"), (y + 1) * 3 * (y + 3))
    gradients = (torch.full_like(y, 2), 3 * (y + 3), torch.ones_like(y), 3 * (y + 1))
    for name, gradient in zip(inputs, gradients, strict=True):
        assert equal(norm_of(records, f"inner.{name}", "actv_grad"), gradient)
    for slot in range(2):
        row = f"inner.output_{slot}"
        assert equal(norm_of(records, row, "actv_grad"), torch.ones_like(y))


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass", "UserDict", "deque"])
def test_a_spec_selects_an_element(tmp_path: Path, kind: str) -> None:
    pack = CONTAINERS[kind]
    length = 2 if kind == "UserDict" else 4 if kind == "dataclass" else 3
    place = 1 if kind == "UserDict" else 2
    model = Call(
        lambda m, x: sum(t.sum() for t in unpack(m.inner(m.fc(x)))),
        fc=linear(),
        inner=Call(lambda _, y: pack(y, y * 2)),
    )
    x = draw(3, 4)
    y = model.get_submodule("fc")(x).detach()
    spec = f"tuple[{length}]:{place}"
    session = start(model, tmp_path, targets={"inner": {"output": spec, "output_grad": spec}})
    model(x).backward()
    session.step()
    records = [r for r in rows(session) if r["quantity"] in ("actv", "actv_grad")]
    assert [r["row"] for r in records] == ["inner.output"] * 2
    assert equal(norm_of(records, "inner.output"), y * 2)
    assert equal(norm_of(records, "inner.output", "actv_grad"), torch.ones_like(y))


def test_what_is_no_container_is_left_alone(tmp_path: Path) -> None:
    class Odd:
        """Has attributes, and answers to nothing."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __iter__(self) -> Any:
            raise AssertionError("nobody may consume it")

    class Lazy(Mapping[str, Tensor]):
        """Computes what it is asked for, with random numbers."""

        def __getitem__(self, key: str) -> Tensor:
            raise AssertionError("nobody may evaluate it")

        def __iter__(self) -> Any:
            return iter(["y"])

        def __len__(self) -> int:
            return 1

    @dataclass
    class Computed:
        """Its field is a property."""

        value: Any

        @property  # type: ignore[no-redef]
        def value(self) -> Tensor:
            raise AssertionError("nobody may evaluate it")

        @value.setter
        def value(self, value: Any) -> None:
            pass

    class Consumed(deque[Tensor]):
        def __iter__(self) -> Any:
            raise AssertionError("nobody may consume it")

    def inner(_: nn.Module, y: Tensor, *others: Any) -> Any:
        return (
            y * 2,
            Odd(y),
            iter([y]),
            {y},
            Lazy(),
            Computed(y),
            Consumed([y]),
            3,
            "text",
            b"bytes",
            print,
        )

    model = Call(
        lambda m, x: m.inner(m.fc(x), Odd(x), {x}, Result(1, False))[0].sum(),
        fc=linear(),
        inner=Call(inner),
    )
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    assert session.counters()["errors"] == 0
    records = rows(session)
    assert len(named(records, "inner.input")) == len(named(records, "inner.output")) == 1


class Loud(UserDict[str, Tensor]):
    """What it holds is read without asking it."""

    def values(self) -> Any:
        raise AssertionError("nobody may ask it")


@dataclass
class Branch:
    """Part of a tree that knows the other parts."""

    value: Tensor
    parent: Branch | None = None
    others: list[Any] = field(default_factory=list)


def test_what_a_user_dict_holds_is_read_without_its_code(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: m.inner(m.fc(x)).data["y"].sum(),
        fc=linear(),
        inner=Call(lambda _, y: Loud(y=y * 2)),
    )
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    assert len(named(rows(session), "inner.output")) == 1


def test_parts_that_know_each_other_are_read_once(tmp_path: Path) -> None:
    def tree(_: nn.Module, y: Tensor) -> Branch:
        root = Branch(y * 2)
        root.others = [Branch(y * k, root) for k in range(20)]
        for branch in root.others:
            branch.others = root.others
        root.others += [root.others, root.others]
        return root

    model = Call(lambda m, x: m.inner(m.fc(x)).value.sum(), fc=linear(), inner=Call(tree))
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    records = [r for r in rows(session) if r["quantity"] == "actv" and r["role"] == "output"]
    assert sum(r["row"].startswith("inner.output") for r in records) == 21


def test_a_spec_that_does_not_fit_says_once_what_to_write(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: unpack(m.inner(m.fc(x), None, scale=x))[0].sum(),
        fc=linear(),
        inner=Call(lambda _, y, __, scale: Result(y, True, (scale, y))),
    )
    targets = {"inner": {"input": "tuple[2]:0", "output": "tensor"}, "fc": {"output": "tensor"}}
    session = start(model, tmp_path, targets=targets)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model(draw(3, 4)).backward()
    session.step()
    size = "size=(3, 4), dtype=torch.float64"
    assert [str(w.message) for w in caught] == [
        'tensorprobe: targets: "output": "tensor" does not fit module \'inner\', which has '
        f'{{"config": "tuple[4]", "0": "{size}", "1": "<class \'bool\'>", '
        '"2": "<class \'tuple\'>", "3": "<class \'NoneType\'>"}: nothing of this side is '
        f'recorded; write "tuple[4]:0" for {size}'
    ]
    records = rows(session)
    assert len(named(records, "inner.input")) == len(named(records, "fc.output")) == 2
    assert not named(records, "inner.output")
