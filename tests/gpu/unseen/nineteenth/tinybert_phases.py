"""A small model of language learns intents from a large one: first how it looks, then what it says."""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 120))  # half of them in each phase
TEXTS, BATCH, LENGTH, VOCAB, INTENTS, HEADS = (
    (32, 4, 8, 60, 4, 2) if TINY else (8192, 64, 128, 30_522, 150, 12)
)
LARGE, SMALL = ((32, 4), (16, 2)) if TINY else ((768, 12), (312, 4))  # width and layers
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
if "tensor-cores" in FIX:
    torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x, asked):
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = None
        if asked:  # the scores themselves are learned from
            scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
            y = scores.softmax(3).to(v.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x)))), scores


class Bert(nn.Module):
    def __init__(self, wide, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, wide), nn.Embedding(LENGTH, wide)
        self.norm, self.layers = nn.LayerNorm(wide), nn.ModuleList(Layer(wide) for _ in range(layers))
        self.pool, self.intents = nn.Linear(wide, wide), nn.Linear(wide, INTENTS)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, words, asked=False):
        x = self.norm(self.words(words) + self.places.weight)
        hidden, scores = [x], []
        for layer in self.layers:
            x, score = layer(x, asked)
            hidden.append(x)
            scores.append(score)
        return self.intents(torch.tanh(self.pool(x[:, 0]))), hidden, scores


class Distillation:
    def __init__(self, texts):
        self.texts = texts
        with device:
            self.teacher, self.student = Bert(*LARGE).eval(), Bert(*SMALL)
            self.fit = nn.Linear(SMALL[0], LARGE[0])  # from narrow to wide
        self.teacher.requires_grad_(False)
        self.every, self.spent, self.counted, self.shown = LARGE[1] // SMALL[1], 0.0, 0, 0.0
        self.mse = nn.MSELoss()

    def ask_teacher(self, words, asked):
        with torch.no_grad():
            if "teacher-low" in FIX:
                with torch.autocast(device.type, torch.bfloat16, enabled=low):
                    return self.teacher(words, asked)
            return self.teacher(words, asked)

    def looks(self, words):
        """Scores of attention and hidden states of every so many layers."""
        _, hidden, scores = self.ask_teacher(words, True)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            _, mine, my_scores = self.student(words, True)
            fitted = [self.fit(one) for one in mine]
        loss = sum(
            self.mse(one.float(), scores[(i + 1) * self.every - 1].float()) for i, one in enumerate(my_scores)
        )
        return loss + sum(
            self.mse(one.float(), hidden[i * self.every].float()) for i, one in enumerate(fitted)
        )

    def says(self, words):
        """Chances of intents."""
        aim, _, _ = self.ask_teacher(words, False)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            answer, _, _ = self.student(words)
        return F.kl_div(answer.float().log_softmax(1), aim.float().softmax(1), reduction="batchmean")

    @staticmethod
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def phase(self, name, loss_of, steps, rate):
        weights = [*self.student.parameters(), *self.fit.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=low)
        lead, began = min(steps // 2, 5), 0.0
        for step in range(steps):
            if step == lead:
                began = self.now()
            words = self.texts[torch.randint(TEXTS, (BATCH,), device=device)]
            loss = loss_of(words)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == steps - 1:
                self.shown = loss.item()
            if step % 20 == 0:
                print(f"{name}, step {step}: loss {self.shown:.4f}")
        self.spent, self.counted = self.spent + self.now() - began, self.counted + steps - lead

    @torch.no_grad()
    def agreement(self):
        same = [
            (self.teacher(one)[0].argmax(1) == self.student(one)[0].argmax(1)).float().mean()
            for one in self.texts[: 8 * BATCH].split(BATCH)
        ]
        return torch.stack(same).mean().item()


def main():
    begin = torch.randint(1, VOCAB - LENGTH, (TEXTS, 1), device=device)
    texts = begin + torch.randint(LENGTH, (TEXTS, LENGTH), device=device)
    job = Distillation(texts)
    with tempfile.TemporaryDirectory() as folder:
        job.phase("looks", job.looks, STEPS // 2, 5e-5)
        torch.save(job.student.state_dict(), Path(folder, "looks.pt"))
        print(f"after the first phase they agree in {job.agreement():.3f}")
        job.phase("says", job.says, STEPS - STEPS // 2, 3e-5)
        torch.save(job.student.state_dict(), Path(folder, "says.pt"))
    print(f"loss {job.shown:.6f}; {1e3 * job.spent / job.counted:.3f} ms per step of both phases")


main()
