"""Fine-tune a text classifier in a loop for any launcher: prepare, backward, gather, evaluate each epoch."""

import contextlib
import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
EPOCHS = max(2, int(os.environ.get("STEPS", 2 if TINY else 10)))
EXAMPLES, BATCH, MAX_LENGTH, DIM, LAYERS = (32, 8, 32, 32, 1) if TINY else (1024, 32, 512, 768, 8)
VOCAB = 30_000
random.seed(42)
torch.manual_seed(42)


class Accelerator:
    """The part of it that one process needs."""

    def __init__(self, mixed_precision="no"):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.mixed_precision, self.num_processes = mixed_precision, 1

    def prepare(self, *things):
        return [t.to(self.device) if isinstance(t, nn.Module) else t for t in things]

    def autocast(self):
        if self.mixed_precision == "no":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def to_device(self, batch):
        return {key: value.to(self.device) for key, value in batch.items()}

    def backward(self, loss):
        loss.backward()

    def gather_for_metrics(self, tensor):
        return tensor.detach().cpu()


class BertLike(nn.Module):
    def __init__(self, labels=5):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(MAX_LENGTH, DIM)
        self.norm, self.dropout = nn.LayerNorm(DIM), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(DIM, 12 if not TINY else 2, 4 * DIM, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.pooler, self.classifier = nn.Linear(DIM, DIM), nn.Linear(DIM, labels)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        x = self.encoder(self.dropout(self.norm(x)), src_key_padding_mask=attention_mask == 0)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


def tokenize(count):
    examples = []
    for _ in range(count):
        length = (
            min(MAX_LENGTH, max(8, int(random.lognormvariate(4.3, 0.6))))
            if not TINY
            else random.randint(4, 16)
        )
        ids = [random.randrange(5, VOCAB) for _ in range(length)]
        if "dynamic-padding" not in FIX:
            ids += [0] * (MAX_LENGTH - length)
        examples.append(
            {"input_ids": ids, "attention_mask": [int(i > 0) for i in ids], "labels": sum(ids) % 5}
        )
    return examples


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    batch = {
        key: torch.tensor([f[key] + [0] * (longest - len(f[key])) for f in features])
        for key in ("input_ids", "attention_mask")
    }
    return batch | {"labels": torch.tensor([f["labels"] for f in features])}


def main():
    accelerator = Accelerator("bf16" if "bf16" in FIX else "no")
    train = DataLoader(tokenize(EXAMPLES), BATCH, shuffle=True, collate_fn=collate)
    evaluation = DataLoader(tokenize(EXAMPLES // 8), BATCH, collate_fn=collate)
    model = BertLike()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5, fused=True if "fused" in FIX else None)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, EPOCHS * len(train))
    model, optimizer, train, evaluation = accelerator.prepare(model, optimizer, train, evaluation)
    criterion = nn.CrossEntropyLoss()
    seconds = steps = 0
    for epoch in range(EPOCHS):
        model.train()
        start, losses = time.time(), []
        for batch in train:
            batch = accelerator.to_device(batch)
            with accelerator.autocast():
                loss = criterion(model(batch["input_ids"], batch["attention_mask"]), batch["labels"])
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(accelerator.gather_for_metrics(loss.repeat(BATCH)))
        if epoch:
            seconds, steps = seconds + time.time() - start, steps + len(train)
        model.eval()
        right = total = 0
        for batch in evaluation:
            batch = accelerator.to_device(batch)
            with torch.no_grad(), accelerator.autocast():
                predictions = model(batch["input_ids"], batch["attention_mask"]).argmax(-1)
            right += int((accelerator.gather_for_metrics(predictions) == batch["labels"].cpu()).sum())
            total += len(predictions)
        print(f"epoch {epoch}: {{'accuracy': {right / total:.4f}}} loss {torch.cat(losses).mean():.4f}")
    print(f"train_runtime {seconds:.2f}, train_seconds_per_step {seconds / steps:.6f}")


if __name__ == "__main__":
    main()
