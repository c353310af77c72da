"""Text of any length with a small transformer: mixed after the embedding, with masks joined.

python examples/text.py            # a few seconds

Words cannot be mixed, their embeddings can. Where either of both texts has a word the mixture has one: masks are
joined, and a padded place is a zero vector, so that a longer partner's words come in with its share.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mixreg import Mixup, mixed_loss

WORDS, LENGTH, CLASSES, PADDING = 40, 12, 3, 0


def texts(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ids n × 12, 0 where a text has ended, and a topic for each, to which most words belong on average."""
    generator = torch.Generator().manual_seed(seed)
    topic = torch.randint(CLASSES, (n,), generator=generator)
    is_on_topic = torch.rand(n, LENGTH, generator=generator) < 0.6
    words = torch.randint(1, WORDS, (n, LENGTH), generator=generator)
    words = torch.where(is_on_topic, 1 + topic.unsqueeze(1) + CLASSES * (words % 13), words)
    length = torch.randint(4, LENGTH + 1, (n, 1), generator=generator)
    return words.masked_fill(torch.arange(LENGTH) >= length, PADDING), topic


class Reader(nn.Module):
    """An embedding, one layer of attention, and the mean over words."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=PADDING)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def embed(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What is mixed: embeddings n × 12 × width, and a mask of words n × 12."""
        return self.embedding(ids), ids != PADDING

    def read(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Logits n × c."""
        hidden = self.encoder(embedded, src_key_padding_mask=~mask) * mask.unsqueeze(2)
        return self.head(hidden.sum(1) / mask.sum(1, keepdim=True))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits n × c."""
        return self.read(*self.embed(ids))


def main(epochs: int) -> float:
    """Train, and say how many topics of new texts are right."""
    torch.manual_seed(0)
    ids, topic = texts(512, seed=0)
    net, mix, criterion = Reader(), Mixup(alpha=0.5), mixed_loss(nn.CrossEntropyLoss())
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(ids)).split(64):
            (embedded, mask), mixed = mix(net.embed(ids[chosen]), topic[chosen], parts=True)
            optimizer.zero_grad()
            criterion(net.read(embedded, mask), mixed).backward()
            optimizer.step()
    net.eval()
    ids, topic = texts(256, seed=1)
    with torch.no_grad():
        accuracy = float((net(ids).argmax(1) == topic).float().mean())
    print(f"{100 * accuracy:.1f} % of topics are right")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    main(parser.parse_args().epochs)
