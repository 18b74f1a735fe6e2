"""Supervised fine-tuning on conversations: a chat template, and a loss on what the assistant says."""

import os
import random
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 24))
CONVERSATIONS, BATCH, WORDS, LIMIT, WIDTH, LAYERS, HEADS = (
    (12, 2, 6, 64, 16, 1, 2) if TINY else (240, 16, 40, 1024, 640, 6, 10)
)
os.environ["TOKENIZERS_PARALLELISM"] = "false"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def vocabulary(rng):
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "os")]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]


def conversations(count, words, rng):
    """A system prompt, then questions and answers in turn."""
    found = []
    for _ in range(count):
        messages = [{"role": "system", "content": "You are a helpful assistant."}]
        for turn in range(2 * rng.randint(5, 10)):
            length = rng.randint(WORDS // 2, WORDS * 3 // 2) // (2 if turn % 2 == 0 else 1)
            content = " ".join(rng.choices(words, k=max(length, 1)))
            messages.append({"role": "assistant" if turn % 2 else "user", "content": content})
        found.append(messages)
    return found


def byte_pairs(talks):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((one["content"] for talk in talks[:100] for one in talk), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )


def encoded(tokenizer, messages):
    """Tokens of a conversation, and labels: -100 but where the assistant speaks."""
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    labels = [-100] * len(ids)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(
                messages[:i], tokenize=True, add_generation_prompt=True, return_dict=False
            )
            until = tokenizer.apply_chat_template(messages[: i + 1], tokenize=True, return_dict=False)
            labels[len(before) : len(until)] = ids[len(before) : len(until)]
    return ids[:LIMIT], labels[:LIMIT]


class Talks(Dataset):
    def __init__(self, talks, tokenizer):
        self.talks, self.tokenizer = talks, tokenizer
        self.ready = [encoded(tokenizer, talk) for talk in talks] if "tokens-once" in FIX else None

    def __len__(self):
        return len(self.talks)

    def __getitem__(self, idx):
        return self.ready[idx] if self.ready else encoded(self.tokenizer, self.talks[idx])


class Collator:
    """Pads to the longest of a batch, up to a multiple of 64."""

    def __init__(self, tokenizer):
        self.pad = tokenizer.pad_token_id

    def __call__(self, examples):
        longest = -(-max(len(ids) for ids, _ in examples) // 64) * 64
        ids = torch.full((len(examples), longest), self.pad)
        labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for i, (own, asked) in enumerate(examples):
            ids[i, : len(own)], labels[i, : len(own)] = torch.tensor(own), torch.tensor(asked)
            mask[i, : len(own)] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def main():
    cuda, rng = device.type == "cuda", random.Random(0)
    talks = conversations(CONVERSATIONS, vocabulary(rng), rng)
    tokenizer = byte_pairs(talks)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LIMIT,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=cuda)
    loader = DataLoader(
        Talks(talks, tokenizer), BATCH, shuffle=True, drop_last=True, collate_fn=Collator(tokenizer)
    )
    step, epoch, times, shown, tokens = 0, 0, [], 0.0, 0
    while step < STEPS:
        began = time.perf_counter()
        for batch in loader:
            if step == STEPS:
                break
            tokens += int(batch["attention_mask"].sum())
            batch = {name: value.to(device) for name, value in batch.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
                shown = loss.item()
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step}: loss {shown:.4f}, {tokens} tokens")
            step += 1
        epoch += 1
    kept = times[min(STEPS // 2, 5) :]
    print(f"loss {shown:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")


if __name__ == "__main__":
    main()
