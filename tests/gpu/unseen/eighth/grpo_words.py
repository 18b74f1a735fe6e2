"""GRPO: a small language model learns by reward to write what was asked; groups of answers, one policy."""

import os
import time

import torch
import torch.nn.functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 6))
VOCAB, WIDTH, LAYERS, HEADS, PROMPT, NEW, QUESTIONS, GROUP = (
    (64, 16, 2, 2, 8, 5, 2, 3) if TINY else (8192, 768, 8, 12, 320, 96, 8, 8)
)
PAD, END, CLIP, BETA = 0, 1, 0.2, 0.04
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


def language_model(gradient_checkpointing=True):
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=PROMPT + NEW,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
        use_cache=not gradient_checkpointing,  # they do not go together
    )
    model = LlamaForCausalLM(config).to(device, dtype)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def questions(generator):
    """Solved examples, then a word that shall be said often; of any length, padded on the left."""
    ids = torch.randint(2, VOCAB, (QUESTIONS, PROMPT), generator=generator)
    lengths = torch.randint(PROMPT * 3 // 4, PROMPT + 1, (QUESTIONS,), generator=generator)
    mask = torch.arange(PROMPT) >= PROMPT - lengths[:, None]
    return ids.where(mask, PAD).to(device), mask.long().to(device), ids[:, -1].tolist()


def rewards(answers, wanted):
    """How much of an answer is near the word that was asked for, and whether it ends in time."""
    found = []
    for answer, word in zip(answers.tolist(), wanted, strict=True):
        said = answer[: answer.index(END)] if END in answer else answer
        near = sum(abs(one - word) < VOCAB // 16 for one in said)
        found.append(near / max(len(said), 1) + 0.1 * (END in answer))
    return torch.tensor(found, device=device)


def log_probabilities(model, ids, mask):
    """Of the answers' words."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        logits_to_keep=NEW + 1,
        use_cache=False,
    ).logits[:, :-1]
    return torch.gather(F.log_softmax(logits.float(), 2), 2, ids[:, -NEW:, None]).squeeze(2)


class Trainer:
    def __init__(self):
        self.policy, self.reference = language_model(), language_model(False)
        self.reference.load_state_dict(self.policy.state_dict())
        self.reference.eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-6)
        self.generator = torch.Generator().manual_seed(1)
        self.sampling = GenerationConfig(
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            pad_token_id=PAD,
            eos_token_id=END,
            use_cache=True if "cache" in FIX else self.policy.config.use_cache,
        )

    @torch.no_grad()
    def roll_out(self):
        ids, mask, wanted = questions(self.generator)
        ids, mask = ids.repeat_interleave(GROUP, 0), mask.repeat_interleave(GROUP, 0)
        wanted = [word for word in wanted for _ in range(GROUP)]
        self.policy.eval()
        whole = self.policy.generate(input_ids=ids, attention_mask=mask, generation_config=self.sampling)
        self.policy.train()
        answers = whole[:, PROMPT:]
        ended = (answers == END).cumsum(1)
        kept = (ended - (answers == END).long()) == 0
        return whole, torch.cat([mask, torch.ones_like(answers)], 1), kept.float(), rewards(answers, wanted)

    def step(self):
        whole, mask, kept, reward = self.roll_out()
        grouped = reward.view(QUESTIONS, GROUP)
        advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)
        with torch.no_grad():
            theirs = log_probabilities(self.reference, whole, mask)
        own = log_probabilities(self.policy, whole, mask)
        ratio = torch.exp(own - own.detach())
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        distance = torch.exp(theirs - own) - (theirs - own) - 1
        loss = -((gain - BETA * distance) * kept).sum() / kept.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), reward.mean(), kept.sum(1).mean()


trainer, times, shown = Trainer(), [], []
for step in range(STEPS):
    began = time.perf_counter()
    figures = trainer.step()
    if "figures-rarely" not in FIX or step == STEPS - 1:
        shown = [float(one) for one in figures]
        print(f"step {step}: loss {shown[0]:.4f}, reward {shown[1]:.3f}, {shown[2]:.1f} words")
    times.append(time.perf_counter() - began)
kept = times[min(STEPS // 2, 1) :]
print(f"loss {shown[0]:.5f}, reward {shown[1]:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
