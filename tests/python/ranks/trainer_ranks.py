"""accelerate, transformers' Trainer and Lightning, over DDP and over ZeRO: one rank of them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import common
import tensorprobe
from common import STEPS, Check, Collectives, Truth

CLIP, MICROS = 0.3, 2
OPTIONS: dict[str, Any] = {
    "xy_distribution": False,
    "mv_distribution": True,
    "param_distribution": True,
    "ur_distribution": True,
    "mg_direction": True,
    "self_check": True,
    "strict": True,
    "format": "api",
}


class Batches(Dataset[Any]):
    """What each rank and micro step gets."""

    def __len__(self) -> int:
        return 2 * STEPS * MICROS * dist.get_world_size()

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        ids, labels = common.batch(i, n=1)
        return {"input_ids": ids[0], "labels": labels[0]}


class Model(nn.Module):
    """Gives its loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = common.make_model()

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": common.loss_of(self.gpt, (input_ids, labels))}


class Witness:
    """Writes down what a training without a monitor does."""

    def __init__(self, model: nn.Module, truth: Truth) -> None:
        self.names: dict[Any, str] = {p: f"0:{n}" for n, p in model.named_parameters()}
        self.truth = truth
        self.step = 0
        self.losses: list[float] = [0.0] * (STEPS + 1)
        self.rates: list[float] = []
        self.spent = 0  # collectives of its own
        for p, n in self.names.items():
            p.register_hook(self._hook(n))

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def add(grad: Tensor) -> None:
            place = (name, self.step)
            part = grad.detach().float().clone()
            known = self.truth.unreduced.get(place)
            self.truth.unreduced[place] = part if known is None else known + part

        return add

    def weights(self, into: dict[tuple[str, int], Tensor]) -> None:
        for p, n in self.names.items():
            if hasattr(p, "ds_tensor"):
                import deepspeed

                with deepspeed.zero.GatheredParameters([p]):
                    into[n, self.step] = p.detach().clone()
            else:
                into[n, self.step] = p.detach().clone()

    def begin(self) -> None:
        with self.counted():
            self.weights(self.truth.origin)

    def end(self) -> None:
        with self.counted():
            self.weights(self.truth.updated)
        self.step += 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        before = Collectives.now()
        yield
        self.spent += Collectives.now() - before

    def finish(self) -> None:
        with self.counted():
            self.reduce()
        self.truth.collectives = [-self.spent]

    def reduce(self) -> None:
        names = list(self.names.values())
        for step in range(STEPS):
            squares = 0.0
            for name in names:
                total = self.truth.unreduced[name, step].double()
                dist.all_reduce(total)
                self.truth.reduced[name, step] = total / dist.get_world_size()
                squares += self.truth.reduced[name, step].square().sum().item()
            self.truth.norms[step] = squares**0.5
        common.adam(self.truth, names, common.clipping(self.truth, CLIP))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=common.LR, betas=common.BETAS, eps=common.EPS, weight_decay=0.01
    )


def zero_config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROS,
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 1500,
            "stage3_param_persistence_threshold": 0,
        },
    }


def digest(model: nn.Module) -> str:
    return common.digest([getattr(p, "ds_tensor", p) for p in model.parameters()])


def with_accelerate(stage: int, out: Path, truth: Truth, watched: bool) -> Any:
    """A loop as accelerate's documents have it. stage: of ZeRO; 0 is DDP."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = DeepSpeedPlugin(hf_ds_config=zero_config(stage)) if stage else None
    accelerator = Accelerator(
        cpu=not stage, gradient_accumulation_steps=MICROS, deepspeed_plugin=plugin
    )
    torch.manual_seed(1)
    model = Model()
    witness = None if watched else Witness(model, truth)
    wrapped, optimizer = accelerator.prepare(model, make_optimizer(model))
    monitor = None
    if watched:
        given = optimizer.optimizer if stage else optimizer
        monitor = tensorprobe.watch(wrapped, given, output_dir=out, **OPTIONS)
    for step in range(STEPS):
        if witness is not None:
            witness.begin()
        for micro in range(MICROS):
            with accelerator.accumulate(wrapped):
                ids, labels = common.batch(step, micro, dist.get_rank())
                loss = wrapped(input_ids=ids, labels=labels)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(wrapped.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
        if witness is not None:
            witness.end()
    if witness is not None:
        witness.finish()
    truth.state = digest(model)
    if monitor is not None:
        monitor.close()
    return monitor


def with_transformers(stage: int, out: Path, truth: Truth, watched: bool) -> Any:
    """The Trainer with our callback, and with one that writes down the truth."""
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tensorprobe.transformers_callback import TensorProbeCallback

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(1)
    model = Model()
    witness = None if watched else Witness(model, truth)
    ours = TensorProbeCallback(output_dir=out, **OPTIONS)

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if witness is not None:
                witness.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if witness is not None:
                witness.end()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            logs = kwargs.get("logs", {})
            if "loss" in logs:
                truth.logged.append(logs)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            report_to=[],
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=MICROS,
            save_strategy="no",
            logging_steps=1,
            logging_nan_inf_filter=False,
            disable_tqdm=True,
            max_grad_norm=CLIP,
            lr_scheduler_type="linear",
            learning_rate=common.LR,
            adam_beta2=common.BETAS[1],  # with ZeRO it makes its own optimizer
            seed=1,
            deepspeed=zero_config(stage) if stage else None,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Batches(),
            callbacks=[ours, Steps()] if watched else [Steps()],
            optimizers=(make_optimizer(model), None),
        )
        trainer.train()
    if witness is not None:
        witness.finish()
    truth.state = digest(model)
    return ours.session


def _initialize(whole: Callable[..., Any], *, args: Any = None, **kwargs: Any) -> Any:
    return whole(args=None, **kwargs)


def with_lightning(stage: int, out: Path, truth: Truth, watched: bool) -> Any:
    """Lightning's trainer with our callback."""
    import lightning

    from tensorprobe.lightning_callback import TensorProbeCallback

    environments: Any = importlib.import_module("lightning.pytorch.plugins.environments")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            loss: Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

    class Steps(lightning.Callback):
        def on_before_backward(self, *args: Any) -> None:
            truth.logged.append({"micro": float(args[-1])})

        def on_train_batch_start(self, *args: Any) -> None:
            if args[-1] % MICROS == 0 and witness is not None:
                witness.begin()

        def on_train_batch_end(self, *args: Any) -> None:
            if args[-1] % MICROS == MICROS - 1 and witness is not None:
                witness.end()

    torch.manual_seed(1)
    net = Net()
    witness = None if watched else Witness(net, truth)
    ours = TensorProbeCallback(output_dir=out, **OPTIONS)
    strategy: Any = "ddp"
    if stage:
        # It insists on GPUs, whose number it hands on, without need.
        import deepspeed
        from lightning.pytorch.strategies import DeepSpeedStrategy

        strategies: Any = sys.modules["lightning.pytorch.strategies.deepspeed"]
        whole = deepspeed.initialize
        if not hasattr(whole, "func"):
            deepspeed.initialize = functools.partial(_initialize, whole)
        strategies.CUDAAccelerator = lightning.pytorch.accelerators.CPUAccelerator
        strategies._validate_device_index_selection = lambda _: None
        config = zero_config(stage)  # these two come from the trainer
        del config["gradient_accumulation_steps"], config["gradient_clipping"]
        strategy = DeepSpeedStrategy(config=config)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=strategy,
        plugins=[environments.TorchElasticEnvironment()],
        max_steps=STEPS,
        accumulate_grad_batches=MICROS,
        gradient_clip_val=CLIP,
        callbacks=[ours, Steps()] if watched else [Steps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, torch.utils.data.DataLoader(Batches(), batch_size=2))
    if witness is not None:
        witness.finish()
    truth.state = digest(net)
    return ours.session


def layout(train: Callable[..., Any], stage: int) -> Callable[[Path], dict[str, Any]]:
    def run(out: Path) -> dict[str, Any]:
        truth, second = Truth(), Truth()
        os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)  # left behind by the layout before
        begin = Collectives.now()
        train(stage, out, truth, False)
        between = Collectives.now()
        session = train(stage, out, second, True)
        truth.collectives += [between - begin]
        second.collectives = [Collectives.now() - between]
        check = Check("", truth, 1e-5)
        check.journal(session.directory)
        if truth.state != second.state:
            check.problems.append("training has other bits with a monitor")
        expected = sum(truth.collectives) + STEPS  # of self_check, each step
        if second.collectives != [expected]:
            check.problems.append(f"collectives {second.collectives}, not {expected}")
        journal = tensorprobe.Journal(session.directory)
        names = ("loss", "lr", "grad_norm", "self_check.recorded", "self_check.framework")
        scalars = {n: journal.series(n, "scalar")[1] for n in names}
        return {
            "problems": check.problems,
            "seen": check.seen,
            "checked": check.checked,
            "norms": truth.norms,
            "scalars": scalars,
            "logged": truth.logged,
        }

    return run


def layouts() -> Iterator[tuple[str, Callable[[Path], dict[str, Any]]]]:
    """All of them, by name."""
    for name, train in (
        ("accelerate", with_accelerate),
        ("transformers", with_transformers),
        ("lightning", with_lightning),
    ):
        for stage in range(4):
            yield f"{name}_{stage}", layout(train, stage)


if __name__ == "__main__":
    if any(not name.endswith("_0") for name in sys.argv[2:]):
        import deepspeed

        comm: Any = sys.modules["deepspeed.comm.torch"]
        comm.build_shm_op = lambda: None
        deepspeed.logger.setLevel("ERROR")
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "x")  # Lightning's environment wants torchrun
    common.main(dict(layouts()))
