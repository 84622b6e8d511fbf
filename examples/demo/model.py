"""A small GPT, written the way one writes it from scratch, and the text that it learns."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

SYMBOLS = "\n" + "".join(chr(code) for code in range(32, 127))


class Attention(nn.Module):
    """Causal self-attention over normalised queries and keys, which keep its gradients steady.

    The keys have no bias: it would add the same number to all scores of a query, which softmax
    takes away again, so its gradient would be nothing but rounding noise.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(t: Tensor) -> Tensor:
            return t.view(batch, length, self.heads, -1).transpose(1, 2)

        size = (width // self.heads,)
        query = functional.rms_norm(split(self.query(x)), size)
        key = functional.rms_norm(split(self.key(x)), size)
        mixed = functional.scaled_dot_product_attention(
            query, key, split(self.value(x)), is_causal=True, scale=2.0 * size[0] ** -0.5
        )
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return y


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(self.up(x)))
        return y


class Block(nn.Module):
    """One layer of the transformer: attention and MLP, each on a normalised residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class GPT(nn.Module):
    """Token ids (batch, length) in, logits (batch, length, vocabulary) out."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # Unit variance in, unit variance out; what is added to the residual stream a
                # little less, so that early and late layers learn at a similar pace.
                residual = name.endswith(("attn.out", "mlp.down"))
                scale = (2 * layers) ** -0.25 if residual else 1.0
                nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.normal_(module.bias, std=0.02)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.5)

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        x = self.token(ids) + self.position(place)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def standard_library_text(max_characters: int = 4_000_000) -> tuple[Tensor, Path]:
    """Read the source of Python's standard library as symbol numbers; say where it was found."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = ""
    for path in sorted(folder.glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace").expandtabs(4)
        if len(text) > max_characters:
            break
    table = torch.full((128,), SYMBOLS.index("?"))
    for number, symbol in enumerate(SYMBOLS):
        table[ord(symbol)] = number
    codes = bytearray(text[:max_characters].encode("ascii", "replace"))
    return table[torch.frombuffer(codes, dtype=torch.uint8).long()], folder


def sample(text: Tensor, batch: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw random windows of the text and the same windows one symbol later."""
    starts = torch.randint(len(text) - length - 1, (batch,), generator=draw)
    windows = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]
