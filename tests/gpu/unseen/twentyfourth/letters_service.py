"""Letters to an office get a line that says what they are about: sixteen of a queue are read together."""

import asyncio
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))  # batches of letters
WORDS, WIDE, LAYERS, HEAD, SHORT, LONG, ANSWER, BATCH = (
    (50, 16, 1, 8, 3, 6, 5, 2) if TINY else (32_000, 768, 6, 64, 256, 512, 40, 16)
)
SENDERS, PAD, BEGIN, END = 2 * BATCH, 0, 1, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key_value = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 2 * WIDE)
        self.out = nn.Linear(WIDE, WIDE)

    def forward(self, x, seen, mask=None, causal=False):
        q = self.query(x).unflatten(2, (-1, HEAD)).transpose(1, 2)
        k, v = self.key_value(seen).unflatten(2, (2, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, decodes):
        super().__init__()
        self.itself, self.norm1, self.norm2 = Attention(), nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        if decodes:
            self.other, self.norm3 = Attention(), nn.LayerNorm(WIDE)

    def forward(self, x, mask, memory=None):
        if memory is None:
            x = self.norm1(x + self.itself(x, x, mask))
        else:
            x = self.norm1(x + self.itself(x, x, causal=True))
            x = self.norm3(x + self.other(x, memory, mask))
        return self.norm2(x + self.down(F.relu(self.up(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(max(LONG, ANSWER), WIDE)
        self.encoder = nn.ModuleList(Layer(False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Layer(True) for _ in range(LAYERS))
        self.head = nn.Linear(WIDE, WORDS)

    def begin(self, words):
        return self.words(words) + self.places.weight[: words.shape[1]]

    def encode(self, source, mask):
        x = self.begin(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def decode(self, memory, mask, target):
        x = self.begin(target)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return x

    def forward(self, source, target):
        mask = (source != PAD)[:, None, None]
        return self.head(self.decode(self.encode(source, mask), mask, target))


class Reader:
    def __init__(self):
        with device:
            self.model = Transformer().to(dtype).eval()

    @torch.inference_mode()
    def headlines(self, letters):
        """The likeliest next word of each line, until all have ended."""
        longest = max(len(letter) for letter in letters)
        rows = [letter + [PAD] * (longest - len(letter)) for letter in letters]
        source = torch.tensor(rows, device=device)
        target = torch.full((len(rows), 1), BEGIN, device=device)
        mask = (source != PAD)[:, None, None]
        memory = self.model.encode(source, mask) if "encoded-once" in FIX else None
        for place in range(ANSWER - 1):
            if memory is None:
                logits = self.model(source, target)[:, -1]
            else:
                logits = self.model.head(self.model.decode(memory, mask, target))[:, -1]
            target = torch.cat([target, logits.argmax(1, keepdim=True)], 1)
            asked = "ended-rarely" not in FIX or place % 8 == 7
            if asked and (target == END).any(1).all():
                break
        return target.tolist()


class Service:
    def __init__(self):
        self.reader, self.queue = Reader(), asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)

    async def headline(self, letter):
        answer = asyncio.get_running_loop().create_future()
        await self.queue.put((letter, answer))
        return await answer

    async def work(self):
        loop, lead, began = asyncio.get_running_loop(), min(STEPS // 2, 6), 0.0
        for batch in range(STEPS):
            if batch == lead:
                began = time.perf_counter()
            waiting = [await self.queue.get()]
            while len(waiting) < BATCH and not self.queue.empty():
                waiting.append(self.queue.get_nowait())
            letters = [letter for letter, _ in waiting]
            answers = await loop.run_in_executor(self.thread, self.reader.headlines, letters)
            for (_, future), answer in zip(waiting, answers, strict=True):
                future.set_result(answer)
            if batch % 20 == 0:
                print(f"{len(waiting)} letters read: {answers[0][:6]}")
        return 1e3 * (time.perf_counter() - began) / (STEPS - lead)


async def sender(service, number, read):
    """Somebody who writes one letter after the other."""
    rng = random.Random(number)
    while True:
        letter = [rng.randrange(3, WORDS) for _ in range(rng.randint(SHORT, LONG))]
        read.append(sum(await service.headline(letter)))


async def main():
    service, read = Service(), []
    senders = [asyncio.create_task(sender(service, number, read)) for number in range(SENDERS)]
    each = await service.work()
    await asyncio.sleep(0.01)
    for task in senders:
        task.cancel()
    print(f"sum {sum(read)} of {len(read)} letters; {each:.3f} ms per batch")


asyncio.run(main())
