"""Few-shot multiple choice: five solved questions of the subject, then the one to answer, A, B, C or D."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 120))  # questions
DIM, DEPTH, HEADS, VOCAB, CONTEXT = (32, 2, 2, 101, 160) if TINY else (2048, 24, 16, 32_000, 2048)
SHOTS, PER_SUBJECT, QUESTION = (2, 4, (5, 12)) if TINY else (5, 20, (150, 350))
CHOICES = [7, 8, 9, 10]  # the tokens of A, B, C and D
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if torch.cuda.is_available() else torch.float32
torch.manual_seed(0)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.gate, self.up = (nn.Linear(DIM, 5 * DIM // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(5 * DIM // 2, DIM, bias=False)

    def forward(self, x, cos, sin, past=None):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mask = None
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device)
            mask = mask.tril(k.shape[2] - q.shape[2])
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=past is None)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), (k, v)


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(DEPTH)), nn.RMSNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        places = torch.arange(CONTEXT, dtype=torch.float32)
        angles = places[:, None] / 10_000 ** (places[: DIM // HEADS // 2] * 2 * HEADS / DIM)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, input_ids, past_key_values=None):
        since = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        cos, sin = (one[since : since + input_ids.shape[1]].to(dtype) for one in (self.cos, self.sin))
        x, present = self.embed(input_ids), []
        for place, layer in enumerate(self.layers):
            x, kept = layer(x, cos, sin, past_key_values[place] if past_key_values else None)
            present.append(kept)
        if "last-token-head" in FIX:
            x = x[:, -1:]
        return self.lm_head(self.norm(x)).float(), present


def make_subject(rng):
    """Solved questions, and questions with their answers, as tokens."""

    def question():
        return rng.integers(11, VOCAB, rng.integers(*QUESTION)).tolist()

    dev = [[*question(), CHOICES[rng.integers(4)]] for _ in range(SHOTS)]
    return dev, [(question(), int(rng.integers(4))) for _ in range(PER_SUBJECT)]


def gen_prompt(dev, k):
    prompt = [1]
    for example in dev[:k]:
        prompt += example
    return prompt


with torch.device(device):
    torch.set_default_dtype(dtype)
    model = CausalLM().eval()
    torch.set_default_dtype(torch.float32)


@torch.no_grad()
def evaluate(dev, test):
    cors, all_probs, past, times = [], [], None, []
    for question, label in test:
        start = time.time()
        k = SHOTS
        prompt = gen_prompt(dev, k)
        while len(prompt) + len(question) > CONTEXT:
            k -= 1
            prompt = gen_prompt(dev, k)
        if "prefix-cache" in FIX and k == SHOTS:
            if past is None:
                _, past = model(torch.tensor([prompt], device=device))
            logits, _ = model(torch.tensor([question], device=device), past)
        else:
            input_ids = torch.tensor([prompt + question]).to(device)
            logits, _ = model(input_ids)
        probs = torch.softmax(logits[0, -1, CHOICES], dim=0).cpu().numpy()
        cors.append(int(np.argmax(probs)) == label)
        all_probs.append(probs)
        times.append(time.time() - start)
    return np.array(cors), np.array(all_probs), times


rng, all_cors, all_times, sums = np.random.default_rng(0), [], [], 0.0
subject = 0
while sum(map(len, all_cors)) < STEPS:
    dev, test = make_subject(rng)
    cors, probs, times = evaluate(dev, test[: STEPS - sum(map(len, all_cors))])
    all_cors.append(cors)
    all_times += times if subject or TINY else times[3:]
    sums += float(probs.max(1).sum())
    subject += 1
    print(f"Average accuracy {cors.mean():.3f} - subject {subject}")
cors = np.concatenate(all_cors)
print(f"Average accuracy: {cors.mean():.3f}, confidence {sums / len(cors):.4f}")
print(f"{1e3 * np.mean(all_times):.3f} ms per question")
