"""The Trainer of transformers: torchrun --nproc-per-node 2 …/transformers_trainer.py."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tensorprobe.transformers_callback import TensorProbeCallback

config = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
)
ids = (torch.arange(33) * 3 + torch.randint(64, (256, 1))) % 64
data = [{"input_ids": one, "labels": one} for one in ids]
arguments = TrainingArguments(
    output_dir="trainer_output",
    use_cpu=not torch.cuda.is_available(),
    max_steps=20,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    report_to=[],
    save_strategy="no",
)
watching = TensorProbeCallback()  # takes what watch() takes, but for model and optimizer
trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[watching])
trainer.train()
if watching.session is not None:
    print(watching.session.directory)
