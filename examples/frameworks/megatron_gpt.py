"""Megatron-core with its distributed optimizer.

    torchrun --nproc-per-node 2 examples/frameworks/megatron_gpt.py

Without a GPU parts of Megatron-core have to be replaced, as the tests do: then with
PYTHONPATH=tests/python/ranks in the environment.
"""

import os

import torch
from torch import distributed

import tensorprobe

if not torch.cuda.is_available():
    import megatron_cpu

    megatron_cpu.patch()

from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

VOCABULARY, LENGTH, BATCH, MICRO_BATCHES, STEPS = 64, 32, 4, 2, 20

torch.set_num_threads(1)
distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = distributed.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
parallel_state.initialize_model_parallel()
tensor_parallel.model_parallel_cuda_manual_seed(1)

config = TransformerConfig(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    use_cpu_initialization=True,
    gradient_accumulation_fusion=False,
    masked_softmax_fusion=False,
    bias_dropout_fusion=False,
    apply_rope_fusion=False,
)
model = DistributedDataParallel(
    config,
    DistributedDataParallelConfig(use_distributed_optimizer=True),
    GPTModel(config, get_gpt_layer_local_spec(), VOCABULARY, LENGTH).cuda(),
)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True, clip_grad=1.0),
    [model],
)
config.grad_scale_func = optimizer.scale_loss
config.finalize_model_grads_func = finalize_model_grads


def batch(step, micro_step):
    """Return tokens and their successors."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro_step + rank)
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    ids = ((first + torch.arange(LENGTH + 1) * 3) % VOCABULARY).cuda()
    return ids[:, :-1], ids[:, 1:]


def forward_step(batches, chunk):
    """As in Megatron's training scripts: the output, and what makes the loss of it."""
    ids, labels = next(batches)
    places = torch.arange(LENGTH, device=ids.device).expand_as(ids)
    output = chunk(ids, places, None, labels=labels)
    return output, lambda losses: (losses.mean(), {"loss": losses.mean().detach()})


# Gradients are those of before the clipping; each rank has its range of every parameter.
with tensorprobe.watch(model, optimizer) as monitor:
    for step in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        outputs = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter([batch(step, i) for i in range(MICRO_BATCHES)]),
            model=model,
            num_microbatches=MICRO_BATCHES,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        loss = outputs[-1]["loss"]
        monitor.log_scalar("loss", loss)
        optimizer.step()
        if step % 10 == 9 and rank == 0:
            print(f"step {step + 1}: loss {float(loss):.3f}", flush=True)

distributed.destroy_process_group()
