"""``python -m tensorprobe.selftest``: does it all hold on this machine?

Proves with the torch, the CPU and the disk that are there: watching a training changes no bit of
it, the kernels of this CPU give what scalar code gives, and what was recorded is read back from the
journal, the csv tables and the event files, right to the last bit. Prints a short table; the exit
status is 0 when everything holds, else 1. ``tensorprobe selftest`` runs it.
"""

from __future__ import annotations

import argparse
import csv
import platform
import random
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tensorprobe
from tensorprobe import _core

STEPS = 8
OPS = ["norm", "min", "max", "mean", "zeros", "nans"]
Series = dict[tuple[str, str, int, int], list[float]]
"""(quantity, row, micro step, step) → values of the ops."""


class ProofError(Exception):
    """Something does not hold."""


# ---- the observer is neutral ----


class Block(nn.Module):
    """Attention and a gated layer with an activation in place, dropout, and a second output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.gate = nn.Linear(width, 2 * width)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what goes on, and the attention's weights."""
        y = self.norm(x)
        mixed, weights = self.attention(y, y, y)
        x = x + mixed
        return x + self.drop(self.down(self.act(self.gate(x)))), weights


class Model(nn.Module):
    """Two blocks between an embedding and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        x = self.embed(ids)
        for block in self.blocks:
            x, _ = block(x)
        y: Tensor = self.head(x)
        return y


def train(directory: Path | None) -> tuple[dict[str, Tensor], list[dict[str, Tensor]], str]:
    """Train from the same start; with a directory watched.

    Returns all that is left, the gradients of each step by torch itself, and where the journal is.
    """
    random.seed(7)
    torch.manual_seed(7)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = None
    if directory is not None:
        config = {"strict": True, "format": ["csv", "tensorboard"], "ops": OPS}
        session = tensorprobe.watch(model, optimizer, output_dir=directory, config=config, rank=0)
    gradients = []
    for _ in range(STEPS):
        for _ in range(2):
            ids = torch.randint(0, 17, (3, 6))
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        if session is not None:
            session.log_scalar("loss", loss)
        named = model.named_parameters()
        gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
    where = ""
    if session is not None:
        where = session.directory
        session.close()
        errors = session.counters()["errors"]
        if errors:
            raise ProofError(f"{errors} observations failed")
    left = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            left[f"{name} {key}"] = torch.as_tensor(value).clone()
    left["random numbers"] = torch.get_rng_state()
    left["python's random numbers"] = torch.tensor([random.getrandbits(62) for _ in range(4)])
    return left, gradients, where


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare the bytes: NaN is like NaN, and 0 isn't like -0."""
    bytes_of = [t.contiguous().flatten().view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and torch.equal(*bytes_of)


def check_neutral(plain: dict[str, Tensor], watched: dict[str, Tensor]) -> str:
    """The same bits with and without."""
    for name, value in plain.items():
        if not same_bits(value, watched[name]):
            raise ProofError(f"{name} has other bits when it is watched")
    return f"{len(plain)} tensors and random states: the same bits after {STEPS} steps"


# ---- the kernels agree ----

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OTHERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
EIGHTS = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def draw(dtype: torch.dtype, count: int, generator: torch.Generator) -> Tensor:
    """Any bits: numbers of every size, NaN, infinities, subnormals."""
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (max(count, 1) * size,), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        return (raw & 1).bool()[:count]
    return raw.view(dtype)[:count]


def usable(isa: str) -> bool:
    """Whether this CPU has it."""
    try:
        _core.compute_stats(torch.zeros(1), isa=isa)
    except ValueError:
        return False
    return True


def check_kernels() -> str:
    """Each instruction set gives the bits of scalar code, for each dtype and many sizes."""
    generator = torch.Generator().manual_seed(11)
    sets = [isa for isa in ("avx2", "avx512", "neon") if usable(isa)]
    eights = [getattr(torch, name) for name in EIGHTS if hasattr(torch, name)]
    dtypes = [*FLOATS, *OTHERS, *eights, torch.complex64, torch.complex128]
    count = 0
    for dtype in dtypes:
        for size in (0, 1, 7, 33, 1000, 20011):
            whole = draw(dtype, size, generator)
            for tensor in (whole, whole[1::3]):
                expected = stats_of(tensor, "scalar")
                for isa in sets:
                    count += 1
                    if stats_of(tensor, isa) != expected:
                        raise ProofError(
                            f"{isa} differs from scalar for {size} elements of {dtype}"
                        )
    return (
        f"{', '.join([*sets, 'scalar'])}: the same bits for {count} tensors of {len(dtypes)} dtypes"
    )


def stats_of(tensor: Tensor, isa: str) -> dict[str, Any]:
    """Every number as its bits."""
    found = _core.compute_stats(tensor, isa=isa)
    del found["kernel"]
    return {
        name: struct.pack("<d", value) if isinstance(value, float) else value
        for name, value in found.items()
    }


# ---- what was recorded is read back ----


def read_journal(where: str, gradients: list[dict[str, Tensor]]) -> tuple[Series, str]:
    """Every step is there, and gradients have the norms that torch computes."""
    found: Series = {}
    steps = 0
    for step in tensorprobe.Journal(where):
        steps += 1
        if step.partial or step.gap or step.micro_steps != 2:
            raise ProofError(f"step {step.step} of the journal is not whole")
        for r in step.records:
            if r["quantity"] != "scalar":
                place = (r["quantity"], r["row"], r["micro_step"], step.step)
                zeros = r["zeros"] / r["count"] if r["count"] else float("nan")
                found[place] = [r["norm"], r["min"], r["max"], r["mean"], zeros, float(r["nan"])]
    if steps != STEPS:
        raise ProofError(f"the journal has {steps} steps of {STEPS}")
    for step_number, of_step in enumerate(gradients):
        for name, gradient in of_step.items():
            norm = float(torch.linalg.vector_norm(gradient.double()))
            recorded = found["grad_reduced", name, 0, step_number][0]
            if abs(recorded - norm) > 1e-12 * norm:
                raise ProofError(
                    f"step {step_number}: the gradient of {name} has norm {norm}, "
                    f"and {recorded} was recorded"
                )
    return (
        found,
        f"{len(found)} records of {steps} steps, norms of gradients as torch computes them",
    )


def bits(values: list[float]) -> bytes:
    """All NaN alike: text doesn't tell them apart."""
    return struct.pack(f"<{len(values)}d", *(v if v == v else float("nan") for v in values))


def compare(found: Series, recorded: Series, of: str) -> str:
    """Everything that the journal has, and nothing else."""
    if found.keys() != recorded.keys():
        raise ProofError(f"{of} has {len(found)} rows, the journal {len(recorded)}")
    for place, values in recorded.items():
        if bits(found[place]) != bits(values):
            raise ProofError(f"{of} has other numbers than the journal for {place}")
    return f"{len(found)} rows, every number as in the journal"


def check_csv(where: str, recorded: Series) -> str:
    """Python's own csv reader."""
    found: Series = {}
    for path in sorted(Path(where).glob("*.csv")):
        quantity = path.name.rpartition("_")[0]
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if quantity != "scalar":
                    place = (quantity, row["name"], int(row.get("micro_step", 0)), int(row["step"]))
                    found[place] = [float(row[op]) for op in OPS]
    return compare(found, recorded, "the csv tables")


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        size = {0: 0, 1: 8, 5: 4}.get(tag & 7)
        if size == 0:
            yield tag >> 3, varint()
            continue
        if size is None:
            size = varint()
        yield tag >> 3, message[at : at + size]
        at += size


OF_ITS_OWN = ("tensorprobe/", "custom_scalars__config__")  # texts, and what watching has cost


def check_events(where: str, recorded: Series) -> str:
    """The frames of the event file, and the exact number in each value's tensor."""
    kinds = {"acc_grad": "grad_unreduced", "post_grad": "grad_reduced"}
    found: Series = {}
    (path,) = Path(where).glob("events.out.tfevents.*")
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = data[at + 12 : at + 12 + length]
        at += 16 + length
        of_event = list(fields(event))
        step = next((value for number, value in of_event if number == 2), 0)
        for summary in (value for number, value in of_event if number == 5):
            for value in (one for number, one in fields(summary) if number == 1):
                of_value = dict(fields(value))
                tag = of_value[1].decode()
                if tag.startswith(OF_ITS_OWN):
                    continue
                row, _, kind = tag.rpartition("/rank0/")
                if kind == "scalar":
                    continue
                kind, _, op = kind.rpartition("_")
                row = row.partition(":")[2]
                micro = "0"
                if kind.startswith("actv"):
                    row, _, micro = row.rpartition(":")
                place = (kinds.get(kind, kind), row, int(micro), step)
                number = struct.unpack("<d", dict(fields(of_value[8]))[6])[0]
                found.setdefault(place, [float("nan")] * len(OPS))[OPS.index(op)] = number
    return compare(found, recorded, "the event file")


# ---- all of it ----


def main(arguments: list[str] | None = None) -> int:
    """Run every check and print the table."""
    parser = argparse.ArgumentParser(
        prog="tensorprobe selftest",
        description="Proves on this machine that watching changes nothing, that the kernels agree, "
        "and that what is recorded is read back. Takes seconds.",
    )
    parser.parse_args(arguments)
    print(
        f"tensorprobe {tensorprobe.__version__}, torch {torch.__version__}, "
        f"python {platform.python_version()}, {platform.machine()} with {tensorprobe.isa}"
    )
    failures = 0

    def check(what: str, prove: Callable[[], str]) -> None:
        nonlocal failures
        try:
            verdict, text = "ok", prove()
        except Exception as error:  # whatever it is, the other checks go on
            failures += 1
            verdict = "FAILED"
            text = (
                str(error) if isinstance(error, ProofError) else f"{type(error).__name__}: {error}"
            )
        print(f"  {what:<24}{verdict:<8}{text}", flush=True)

    state: dict[str, Any] = {}

    def observer() -> str:
        plain, _, _ = train(None)
        watched, state["gradients"], state["where"] = train(Path(directory))
        return check_neutral(plain, watched)

    def journal() -> str:
        state["recorded"], text = read_journal(state["where"], state["gradients"])
        return text

    with tempfile.TemporaryDirectory(prefix="tensorprobe-selftest-") as directory:
        check("observer is neutral", observer)
        check("kernels agree", check_kernels)
        if "where" in state:
            check("journal", journal)
        if "recorded" in state:
            check("csv tables", lambda: check_csv(state["where"], state["recorded"]))
            check("TensorBoard files", lambda: check_events(state["where"], state["recorded"]))
    print("everything holds" if failures == 0 else f"{failures} of the checks failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
