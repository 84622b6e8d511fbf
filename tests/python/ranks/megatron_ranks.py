"""Megatron-core's layouts, each trained without and with a monitor: one rank of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import common
import megatron_cpu
from common import STEPS, Collectives, Truth

CLIP, WIDTH, LENGTH, VOCABULARY = 0.2, 16, 8, 40


class Layout:
    """One configuration of model, wrapper and optimizer."""

    def __init__(
        self,
        *,
        tp: int = 1,
        pp: int = 1,
        chunks: int = 1,
        dtype: str = "f32",
        distributed: bool = False,
        overlap: bool = False,
        sequence: bool = False,
        tied: bool = False,
        experts: int = 0,
        ep: int = 1,
        micros: int = 2,
        place: str = "after",
        clip: float = CLIP,
        each: bool = False,
        checks: bool = False,
        layers: int = 2,
    ) -> None:
        """each: gradients before the reduction are recorded of each micro step.

        checks: over ranks.
        """
        self.each, self.checks, self.layers = each, checks, layers
        self.tp, self.pp, self.chunks, self.ep = tp, pp, chunks, ep
        self.dtype, self.distributed, self.overlap = dtype, distributed, overlap
        self.sequence, self.tied, self.experts, self.micros = sequence, tied, experts, micros
        self.place, self.clip = place, clip

    def config(self) -> Any:
        from megatron.core.transformer import TransformerConfig

        bits16 = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = bits16.get(self.dtype, torch.float32)
        experts: dict[str, Any] = {}
        if self.experts:
            experts = {
                "num_moe_experts": self.experts,
                "expert_model_parallel_size": self.ep,
                "moe_token_dispatcher_type": "allgather",
                "moe_router_load_balancing_type": "none",
                "add_bias_linear": False,
            }
        virtual = 2 if self.chunks > 1 else None
        return TransformerConfig(
            num_layers=max(self.layers, self.pp * self.chunks),
            hidden_size=WIDTH,
            ffn_hidden_size=3 * WIDTH,
            num_attention_heads=2,
            tensor_model_parallel_size=self.tp,
            pipeline_model_parallel_size=self.pp,
            virtual_pipeline_model_parallel_size=virtual,
            sequence_parallel=self.sequence,
            bf16=self.dtype == "bf16",
            fp16=self.dtype == "fp16",
            params_dtype=dtype,
            pipeline_dtype=dtype,
            use_cpu_initialization=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            gradient_accumulation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            apply_rope_fusion=False,
            deallocate_pipeline_outputs=self.pp > 1,
            **experts,
        )

    def provider(self, config: Any, stage: int | None) -> Any:
        """What users call the model provider: one chunk of the model of this rank."""
        from megatron.core import parallel_state as ps
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

        return GPTModel(
            config,
            get_gpt_layer_local_spec(num_experts=self.experts or None),
            VOCABULARY,
            LENGTH,
            pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            share_embeddings_and_output_weights=self.tied,
            position_embedding_type="learned_absolute",
            vp_stage=stage,
        )

    def build(self, in_provider: Callable[[list[Any]], None]) -> tuple[list[Any], list[Any], Any]:
        """Bare chunks, wrapped chunks, and the optimizer."""
        from megatron.core import parallel_state as ps
        from megatron.core import tensor_parallel
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.module import Float16Module

        ps.initialize_model_parallel(
            self.tp,
            self.pp,
            2 if self.chunks > 1 else None,
            expert_model_parallel_size=self.ep,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1234)
        torch.manual_seed(1234)
        config = self.config()
        stages: list[int | None] = list(range(self.chunks)) if self.chunks > 1 else [None]
        bare = [self.provider(config, stage) for stage in stages]
        in_provider(bare)
        half = self.dtype in ("bf16", "fp16")
        ddp_config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=self.overlap,
            use_distributed_optimizer=self.distributed,
            bucket_size=1500,
        )
        wrapped = [
            DistributedDataParallel(
                config, ddp_config, Float16Module(config, chunk) if half else chunk
            )
            for chunk in bare
        ]
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.dtype, torch.float32)
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=common.LR,
                weight_decay=0.01,
                adam_beta1=common.BETAS[0],
                adam_beta2=common.BETAS[1],
                adam_eps=common.EPS,
                bf16=self.dtype == "bf16",
                fp16=self.dtype == "fp16",
                initial_loss_scale=256.0,
                params_dtype=dtype,
                use_distributed_optimizer=self.distributed,
                clip_grad=self.clip,
            ),
            wrapped,
        )
        config.grad_scale_func = optimizer.scale_loss
        config.finalize_model_grads_func = finalize_model_grads
        if self.overlap:
            config.no_sync_func = [chunk.no_sync for chunk in wrapped]
            if len(wrapped) == 1:
                config.no_sync_func = config.no_sync_func[0]
        return bare, wrapped, optimizer

    def forward_backward(self, wrapped: list[Any], optimizer: Any, batches: list[Any]) -> None:
        """As Megatron's training scripts have it, for these micro steps."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        def forward_step(batches: Iterator[Any], model: Any, *_: Any) -> Any:
            ids, labels = next(batches)
            out = model(ids, torch.arange(LENGTH).expand_as(ids), None, labels=labels)
            return out, lambda loss: (loss.float().mean(), {"loss": loss.float().mean().detach()})

        for chunk in wrapped:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        data = [iter(batches) for _ in wrapped]
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=data if len(wrapped) > 1 else data[0],
            model=wrapped if len(wrapped) > 1 else wrapped[0],
            num_microbatches=len(batches),
            seq_length=LENGTH,
            micro_batch_size=2,
            forward_only=False,
        )

    def train(self, watch: Callable[..., Any] | None, truth: Truth) -> None:
        """With the monitor that watch makes, or, without one, writing down the truth."""
        from megatron.core import parallel_state as ps

        monitors: list[Any] = []

        def in_provider(bare: list[Any]) -> None:
            if watch is not None and self.place == "before":
                monitors.append(watch(bare))

        bare, wrapped, optimizer = self.build(in_provider)
        names: dict[Any, str] = {}
        for number, chunk in enumerate(bare):
            for name, p in chunk.named_parameters():
                names[p] = f"{number}:{name}"
        local: dict[tuple[str, int], Tensor] = {}
        alone: dict[tuple[str, int], Tensor] = {}  # the same of micro steps
        micro_of: dict[str, int] = defaultdict(int)
        step = 0

        def collect(name: str) -> Callable[[Tensor], None]:
            def hook(grad: Tensor) -> None:
                part = grad.detach().float().clone()
                if self.each:
                    alone[name, common.by_micro(step, micro_of[name])] = part
                    micro_of[name] += 1
                before = local.get((name, step))
                local[name, step] = part if before is None else before + part

            return hook

        if watch is None:
            for p, n in names.items():
                p.register_hook(collect(n))
        elif self.place == "after":
            monitors.append(watch(wrapped, optimizer))

        rank = ps.get_data_parallel_rank()
        scales = []
        for step in range(STEPS):
            micro_of.clear()
            if watch is None:
                for p, n in names.items():
                    truth.origin[n, step] = p.detach().clone()
            begin = Collectives.now()
            batches = [common.batch(step, i, rank) for i in range(self.micros)]
            self.forward_backward(wrapped, optimizer, batches)
            scales.append(float(optimizer.get_loss_scale()))
            _, norm, _ = optimizer.step()
            truth.collectives.append(Collectives.now() - begin)
            truth.norms[step] = -1.0 if norm is None else float(norm)
            if watch is None:
                for p, n in names.items():
                    truth.updated[n, step] = p.detach().clone()
        members = getattr(optimizer, "chained_optimizers", [optimizer])
        truth.state = common.digest(
            list(names), [list(one.optimizer.state.values()) for one in members]
        )
        for monitor in monitors:
            truth.kinds = sorted(monitor._optimizers.kinds())
            monitor.close()
        if watch is None:
            self.finish(truth, names, local, scales)
            if self.each:
                truth.unreduced = {(n, at): g / scales[at // 100] for (n, at), g in alone.items()}
        ps.destroy_model_parallel()

    def finish(
        self,
        truth: Truth,
        names: dict[Any, str],
        local: dict[tuple[str, int], Tensor],
        scales: list[float],
    ) -> None:
        """Reduce by ourselves, as Megatron-core does, and simulate Adam."""
        from megatron.core import parallel_state as ps

        for step in range(STEPS):
            for p, n in names.items():
                value = local.get((n, step))
                if value is None:  # an expert that nothing was sent to
                    value = torch.zeros(p.shape)
                value = value / scales[step]
                truth.unreduced[n, step] = value
                total = value.double()
                expert = not getattr(p, "allreduce", True)
                group = ps.get_expert_data_parallel_group() if expert else None
                dist.all_reduce(total, group=group or ps.get_data_parallel_group())
                total /= ps.get_data_parallel_world_size()
                if getattr(p, "sequence_parallel", False):
                    dist.all_reduce(total, group=ps.get_tensor_model_parallel_group())
                if getattr(p, "shared_embedding", False) and self.pp > 1:
                    dist.all_reduce(total, group=ps.get_embedding_group())
                truth.reduced[n, step] = total
        common.adam(truth, list(names.values()), common.clipping(truth, self.clip))

    def __call__(self, out: Path) -> dict[str, Any]:
        """Both trainings, and the comparison."""
        truth, second, monitor = common.train_twice(self.train, out, self.each, self.checks)
        return common.compare(truth, second, monitor, self.dtype, self.each, self.checks)


def layouts() -> Iterator[tuple[str, Layout]]:
    """All of them, by name; those that begin with 4 are for four ranks."""
    yield "dp", Layout()
    yield "dp_overlap", Layout(overlap=True)
    yield "dp_distributed", Layout(distributed=True)
    yield "dp_bf16", Layout(dtype="bf16")
    yield "dp_fp16", Layout(dtype="fp16")
    yield "dp_bf16_distributed_overlap", Layout(dtype="bf16", distributed=True, overlap=True)
    yield "dp_fp16_distributed", Layout(dtype="fp16", distributed=True)
    yield "tp", Layout(tp=2)
    yield "tp_sequence", Layout(tp=2, sequence=True)
    yield "tp_bf16_sequence", Layout(tp=2, sequence=True, dtype="bf16")
    yield "pp", Layout(pp=2, micros=4)
    yield "pp_tied", Layout(pp=2, micros=4, tied=True)
    yield "pp_chunks", Layout(pp=2, chunks=2, micros=4)
    yield "pp_bf16_distributed", Layout(pp=2, dtype="bf16", distributed=True, micros=4)
    yield "ep", Layout(experts=4, ep=2)
    yield "ep_distributed", Layout(experts=4, ep=2, distributed=True)
    yield "dp_each", Layout(each=True)
    yield "dp_fp16_each", Layout(each=True, dtype="fp16")
    yield "pp_chunks_each", Layout(pp=2, chunks=2, micros=4, each=True)
    yield "before_dp", Layout(place="before")
    yield "before_bf16_distributed", Layout(place="before", dtype="bf16", distributed=True)
    yield "before_pp_chunks", Layout(pp=2, chunks=2, micros=4, place="before")
    yield "tp_sequence_checks", Layout(tp=2, sequence=True, checks=True)
    yield "pp_tied_checks", Layout(pp=2, tied=True, micros=4, checks=True)
    yield "ep_distributed_checks", Layout(experts=4, ep=2, distributed=True, checks=True)
    yield "dp_fp16_distributed_checks", Layout(dtype="fp16", distributed=True, checks=True)
    yield "4_tp_distributed", Layout(tp=2, sequence=True, distributed=True)
    yield "4_pp_tied_distributed", Layout(pp=2, tied=True, distributed=True, micros=4)
    yield "4_ep_distributed", Layout(experts=4, ep=2, distributed=True)
    yield "4_tp_checks", Layout(tp=2, sequence=True, dtype="bf16", checks=True)


if __name__ == "__main__":
    megatron_cpu.patch()
    common.main(dict(layouts()))
