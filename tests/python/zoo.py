"""Many kinds of models, made tiny: how to build each, what it is called with, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def floats(value: Any) -> list[Tensor]:
    """The floating-point tensors of a tree, in order."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor) and x.is_floating_point()]


def any_loss(output: Any) -> Tensor:
    """Use every output, each in its own way."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    total = torch.zeros(())
    for number, tensor in enumerate(floats(output)):
        if tensor.requires_grad:
            total = total + (tensor.float() * (0.5 + 0.25 * number)).sin().mean()
    return total


@dataclass(frozen=True)
class Case:
    """One kind of model. full: torch's full backward hook leaves it working."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    full: bool = True


def call(*shapes: tuple[int, ...], **more: Callable[[], Any]) -> Callable[[], Batch]:
    """Draw positional arguments of these shapes; more are keyword arguments."""
    return lambda: (
        tuple(torch.randn(shape) for shape in shapes),
        {name: draw() for name, draw in more.items()},
    )


def ids(*shape: int, high: int = 50) -> Callable[[], Tensor]:
    """Draw token ids."""
    return lambda: torch.randint(3, high, shape)


def token_batch(*shape: int, high: int = 50) -> Callable[[], Batch]:
    """Draw token ids as the one positional argument."""
    return lambda: ((torch.randint(0, high, shape),), {})


def image(size: int = 16, channels: int = 3) -> Callable[[], Batch]:
    """Draw a batch of two images."""
    return call((2, channels, size, size))


class Bottleneck(nn.Module):
    """A block of a ResNet, activations in place."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        same = stride == 1 and inputs == width
        self.shortcut: nn.Module = (
            nn.Identity() if same else nn.Conv2d(inputs, width, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        y: Tensor = self.relu(out)
        return y


class Inverted(nn.Module):
    """A block of a MobileNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.Hardswish(),
            nn.Conv2d(2 * width, width, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


class Dense(nn.Module):
    """A block of a DenseNet: the features so far are a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 + 4 * i, 4, 3, 1, 1) for i in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)).relu())
        return features


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, 2, 1)
        self.middle = nn.Conv2d(8, 8, 3, 1, 1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.out = nn.Conv2d(11, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.middle(self.down(x).relu()).relu()
        y: Tensor = self.out(torch.cat([self.up(inner), x], 1))
        return y


class Encoded(nn.Module):
    """Token ids, an embedding, and any body behind it."""

    def __init__(self, body: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.body = body

    def forward(self, tokens: Tensor) -> Any:
        return self.body(self.embed(tokens))


class SelfAttention(nn.Module):
    """Query, key and value are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(x, x, x)
        return x + mixed, weights


class CellLoop(nn.Module):
    """A cell that is called for each step in time."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        y: Tensor = self.out(state[0] if isinstance(state, tuple) else state)
        return y


class Packed(nn.Module):
    """Sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True)
        result, _ = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(result, batch_first=True)[0]


class Experts(nn.Module):
    """Each token goes to one of several experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * weight[rows, None])
        return out.view_as(x)


class Autoencoder(nn.Module):
    """A VAE: random numbers, and a dictionary of what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.Linear(8, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 8), nn.ELU(inplace=True), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, spread = self.encoder(x).chunk(2, -1)
        latent = mean + torch.randn_like(mean) * spread.exp()
        return {"out": self.decoder(latent), "mean": mean, "spread": spread}


class Graph(nn.Module):
    """A graph convolution: an adjacency matrix by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Tensor, *, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(edges @ x).relu_()
        return x


class Siamese(nn.Module):
    """One tower, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 4))
        self.compare = nn.Bilinear(4, 4, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        y: Tensor = self.compare(self.tower(a), self.tower(b))
        return y


def torch_cases() -> list[Case]:
    """What torch.nn itself has."""
    seq = nn.Sequential
    return [
        Case(
            "MLP",
            lambda: seq(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 4)),
            call((3, 6)),
        ),
        Case("RNN", lambda: nn.RNN(5, 6, num_layers=2, batch_first=True), call((2, 4, 5))),
        Case("LSTM", lambda: nn.LSTM(5, 6, batch_first=True, proj_size=3), call((2, 4, 5))),
        Case("GRU", lambda: nn.GRU(5, 6, bidirectional=True), call((4, 2, 5))),
        Case("RNNCell", lambda: CellLoop(nn.RNNCell(5, 6)), call((2, 4, 5))),
        Case("LSTMCell", lambda: CellLoop(nn.LSTMCell(5, 6)), call((2, 4, 5))),
        Case("GRUCell", lambda: CellLoop(nn.GRUCell(5, 6)), call((2, 4, 5))),
        Case("PackedSequence", Packed, call((2, 4, 5))),
        Case(
            "Transformer",
            lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
            call((2, 5, 8), (2, 4, 8)),
        ),
        Case(
            "TransformerEncoder",
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2),
            call((5, 2, 8)),
        ),
        Case(
            "TransformerDecoder",
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 1),
            call((4, 2, 8), (5, 2, 8)),
        ),
        Case("MultiheadAttention", SelfAttention, call((2, 5, 8))),
        Case(
            "Embedding", lambda: Encoded(seq(nn.LayerNorm(8), nn.Linear(8, 4))), token_batch(2, 5)
        ),
        Case(
            "EmbeddingBag", lambda: seq(nn.EmbeddingBag(50, 8), nn.Linear(8, 4)), token_batch(2, 5)
        ),
        Case(
            "Conv1d",
            lambda: seq(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.Tanh(), nn.AvgPool1d(2)),
            call((2, 3, 10)),
        ),
        Case(
            "Conv2d",
            lambda: seq(
                nn.Conv2d(3, 6, 3),
                nn.GroupNorm(2, 6),
                nn.SiLU(inplace=True),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.LazyLinear(4),
            ),
            image(),
            full=False,
        ),
        Case(
            "Conv3d",
            lambda: seq(
                nn.Conv3d(1, 4, 3),
                nn.InstanceNorm3d(4, affine=True),
                nn.Mish(),
                nn.AdaptiveAvgPool3d(1),
            ),
            call((2, 1, 5, 5, 5)),
        ),
        Case(
            "ConvTranspose",
            lambda: seq(nn.ConvTranspose2d(3, 4, 3), nn.PReLU(), nn.Upsample(scale_factor=2)),
            image(6),
        ),
        Case(
            "ResNet",
            lambda: seq(Bottleneck(3, 8), Bottleneck(8, 8), Bottleneck(8, 12, 2)),
            image(),
            full=False,
        ),
        Case(
            "MobileNet",
            lambda: seq(nn.Conv2d(3, 8, 3), Inverted(8), Inverted(8)),
            image(),
            full=False,
        ),
        Case("DenseNet", lambda: seq(nn.Conv2d(3, 4, 1), Dense()), image(8)),
        Case("UNet", UNet, image()),
        Case(
            "PixelShuffle",
            lambda: seq(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.ChannelShuffle(3)),
            image(6),
        ),
        Case("Experts", Experts, call((2, 5, 8))),
        Case("Autoencoder", Autoencoder, call((3, 6)), full=False),
        Case("Graph", Graph, call((5, 6), edges=lambda: torch.rand(5, 5)), full=False),
        Case("Siamese", Siamese, call((3, 6), (3, 6))),
        Case(
            "Normalizations",
            lambda: seq(
                nn.Linear(8, 8),
                nn.RMSNorm(8),
                nn.Linear(8, 8),
                nn.LayerNorm(8),
                nn.Softplus(),
                nn.Identity(),
                nn.Linear(8, 2),
                nn.LogSoftmax(-1),
            ),
            call((3, 8)),
        ),
        Case(
            "WeightNorm",
            lambda: seq(
                nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
                nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
            ),
            call((3, 6)),
        ),
        Case(
            "Bfloat16",
            lambda: seq(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).bfloat16(),
            lambda: ((torch.randn(3, 6).bfloat16(),), {}),
        ),
    ]


def transformers_cases() -> list[Case]:
    """What transformers makes of tiny configurations; nothing is downloaded."""
    import transformers as t

    t.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    llama: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    grouped: dict[str, Any] = {**llama, "num_key_value_heads": 1}
    bert: dict[str, Any] = {**llama}
    gpt2: dict[str, Any] = {
        "vocab_size": 50,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 32,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    bart: dict[str, Any] = {
        "vocab_size": 50,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "forced_eos_token_id": 2,
    }
    t5: dict[str, Any] = {
        "vocab_size": 50,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    vit: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "image_size": 16,
        "patch_size": 8,
    }

    def language(name: str, config: Any, **more: Any) -> Case:
        def batch() -> Batch:
            tokens = torch.randint(3, 50, (2, 6))
            return (), {"input_ids": tokens, "labels": tokens}

        model = getattr(t, name)
        return Case(name, lambda: model(config), batch, **more)

    def vision(name: str, config: Any, **more: Any) -> Case:
        size = config.image_size
        model = getattr(t, name)
        return Case(
            name,
            lambda: model(config),
            lambda: ((), {"pixel_values": torch.randn(2, 3, size, size)}),
            **more,
        )

    whisper: dict[str, Any] = {
        "vocab_size": 50,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "num_mel_bins": 8,
        "max_source_positions": 10,
        "max_target_positions": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    clip = t.CLIPConfig(
        text_config={**llama, "projection_dim": 8},
        vision_config={**vit, "projection_dim": 8},
        projection_dim=8,
    )

    def clip_batch() -> Batch:
        return (), {
            "input_ids": torch.randint(3, 50, (2, 6)),
            "pixel_values": torch.randn(2, 3, 16, 16),
            "return_loss": True,
        }

    deepseek = t.DeepseekV3Config(
        **llama,
        moe_intermediate_size=8,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=2,
    )
    return [
        language("LlamaForCausalLM", t.LlamaConfig(**grouped)),
        language("MistralForCausalLM", t.MistralConfig(**grouped, sliding_window=4)),
        language(
            "MixtralForCausalLM",
            t.MixtralConfig(**grouped, num_local_experts=4, output_router_logits=True),
        ),
        language("Qwen2ForCausalLM", t.Qwen2Config(**grouped)),
        language(
            "Qwen2MoeForCausalLM",
            t.Qwen2MoeConfig(
                **grouped,
                num_experts=4,
                moe_intermediate_size=8,
                shared_expert_intermediate_size=8,
                num_experts_per_tok=2,
            ),
        ),
        language("Qwen3ForCausalLM", t.Qwen3Config(**grouped, head_dim=8)),
        language("DeepseekV3ForCausalLM", deepseek),
        language("GemmaForCausalLM", t.GemmaConfig(**grouped, head_dim=8)),
        language(
            "Gemma2ForCausalLM", t.Gemma2Config(**grouped, head_dim=8, query_pre_attn_scalar=8)
        ),
        language("PhiForCausalLM", t.PhiConfig(**llama)),
        language("Phi3ForCausalLM", t.Phi3Config(**llama)),
        language("GPT2LMHeadModel", t.GPT2Config(**gpt2)),
        language("GPTJForCausalLM", t.GPTJConfig(**gpt2, rotary_dim=4)),
        language("GPTNeoXForCausalLM", t.GPTNeoXConfig(**llama)),
        language(
            "GPTNeoForCausalLM",
            t.GPTNeoConfig(
                vocab_size=50,
                hidden_size=16,
                num_layers=2,
                num_heads=2,
                attention_types=[[["global", "local"], 1]],
                max_position_embeddings=32,
                window_size=4,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        language(
            "OPTForCausalLM",
            t.OPTConfig(
                vocab_size=50,
                hidden_size=16,
                ffn_dim=24,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=32,
                word_embed_proj_dim=16,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        language(
            "BloomForCausalLM",
            t.BloomConfig(
                vocab_size=50,
                hidden_size=16,
                n_layer=2,
                n_head=2,
                bos_token_id=1,
                eos_token_id=2,
                pad_token_id=0,
            ),
        ),
        language(
            "FalconForCausalLM",
            t.FalconConfig(
                vocab_size=50,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                bos_token_id=1,
                eos_token_id=2,
            ),
            full=False,
        ),
        language(
            "MptForCausalLM",
            t.MptConfig(vocab_size=50, d_model=16, n_heads=2, n_layers=2, max_seq_len=32),
        ),
        language("StableLmForCausalLM", t.StableLmConfig(**llama, num_key_value_heads=2)),
        language("OlmoForCausalLM", t.OlmoConfig(**llama)),
        language("Starcoder2ForCausalLM", t.Starcoder2Config(**grouped)),
        language(
            "MambaForCausalLM",
            t.MambaConfig(
                vocab_size=50,
                hidden_size=16,
                state_size=4,
                num_hidden_layers=2,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        language("BertForMaskedLM", t.BertConfig(**bert)),
        language("RobertaForMaskedLM", t.RobertaConfig(**bert)),
        language("AlbertForMaskedLM", t.AlbertConfig(**bert, embedding_size=8)),
        language(
            "DistilBertForMaskedLM",
            t.DistilBertConfig(
                vocab_size=50,
                dim=16,
                hidden_dim=24,
                n_layers=2,
                n_heads=2,
                max_position_embeddings=32,
                pad_token_id=0,
            ),
        ),
        language("ElectraForMaskedLM", t.ElectraConfig(**bert, embedding_size=8)),
        language("DebertaV2ForMaskedLM", t.DebertaV2Config(**bert)),
        language(
            "XLNetLMHeadModel",
            t.XLNetConfig(
                vocab_size=50,
                d_model=16,
                n_layer=2,
                n_head=2,
                d_inner=24,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        language("T5ForConditionalGeneration", t.T5Config(**t5)),
        language("MT5ForConditionalGeneration", t.MT5Config(**t5)),
        language("BartForConditionalGeneration", t.BartConfig(**bart)),
        language("PegasusForConditionalGeneration", t.PegasusConfig(**bart)),
        Case(
            "WhisperForConditionalGeneration",
            lambda: t.WhisperForConditionalGeneration(t.WhisperConfig(**whisper)),
            lambda: (
                (),
                {"input_features": torch.randn(2, 8, 20), "labels": torch.randint(3, 50, (2, 5))},
            ),
        ),
        vision("ViTModel", t.ViTConfig(**vit)),
        vision("DeiTModel", t.DeiTConfig(**vit)),
        vision(
            "SwinModel",
            t.SwinConfig(
                image_size=16,
                patch_size=2,
                embed_dim=8,
                depths=[1, 1],
                num_heads=[1, 2],
                window_size=2,
            ),
        ),
        vision(
            "ConvNextModel",
            t.ConvNextConfig(image_size=16, hidden_sizes=[8, 12], depths=[1, 1], num_stages=2),
        ),
        vision("BeitModel", t.BeitConfig(**vit)),
        Case("CLIPModel", lambda: t.CLIPModel(clip), clip_batch),
        Case(
            "Wav2Vec2Model",
            lambda: t.Wav2Vec2Model(
                t.Wav2Vec2Config(
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=24,
                    conv_dim=(8, 8),
                    conv_stride=(4, 4),
                    conv_kernel=(8, 4),
                    num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=2,
                    mask_time_prob=0.0,
                )
            ),
            lambda: ((torch.randn(2, 200),), {}),
        ),
    ]
