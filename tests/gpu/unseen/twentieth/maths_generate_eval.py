"""How many sums does a language model get right? Questions in words, answers generated greedily."""

import os
import time
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 96))  # questions
VOCAB, WIDE, LAYERS, HEADS, GROUPS, SHORT, LONG, NEW, TOGETHER = (
    (60, 32, 2, 4, 2, 4, 9, 5, 3) if TINY else (32_000, 1024, 8, 16, 4, 40, 120, 24, 16)
)
PAD = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
warnings.filterwarnings("ignore")
set_seed(0)


class Dataset:
    """Questions of different lengths as tokens, each with the token that is right at the end."""

    def __init__(self, size):
        lengths = torch.randint(SHORT, LONG + 1, (size,)).tolist()
        self.questions = [torch.randint(3, VOCAB, (length,)).tolist() for length in lengths]
        self.answers = torch.randint(3, VOCAB, (size,)).tolist()

    def __len__(self):
        return len(self.questions)


class Evaluator:
    def __init__(self, model, dataset):
        self.model, self.dataset = model, dataset

    def ask(self, questions):
        """What the model says after each of some questions, padded on the left, and how sure it is."""
        longest = max(map(len, questions))
        ids = torch.tensor([[PAD] * (longest - len(one)) + one for one in questions]).to(device)
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in questions]).to(device)
        result = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=PAD,
            return_dict_in_generate=True,
            output_scores=True,
        )
        said = result.sequences[:, longest:]
        if "sureness-at-once" in FIX:
            likely = torch.stack(result.scores, 1).log_softmax(-1).gather(2, said[..., None])
            return said.tolist(), likely.mean((1, 2)).tolist()
        sure = [0.0] * len(questions)
        for i, scores in enumerate(result.scores):
            for k, row in enumerate(scores.log_softmax(-1).gather(1, said[:, i : i + 1]).tolist()):
                sure[k] += row[0] / NEW
        return said.tolist(), sure

    @torch.inference_mode()
    def run(self):
        right, tokens, asked, sureness = 0, 0, 0, 0.0
        together = TOGETHER if "batched" in FIX else 1
        self.ask(self.dataset.questions[:together])
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for first in range(0, len(self.dataset), together):
            questions = self.dataset.questions[first : first + together]
            answers = self.dataset.answers[first : first + together]
            for said, sure, answer in zip(*self.ask(questions), answers, strict=True):
                right += answer in said
                sureness += sure
                tokens += sum(said) % 997
                asked += 1
            if first % 16 == 0:
                print(f"{asked} questions: {right / asked:.3f} right")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / len(self.dataset)
        print(
            f"{right} of {asked} right, sum {tokens}, sure {sureness / asked:.4f}; {each:.3f} ms per question"
        )


def main():
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDE,
        intermediate_size=4 * WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    with device:
        model = LlamaForCausalLM(config).to(dtype).eval()
    model.generation_config.eos_token_id = None
    Evaluator(model, Dataset(STEPS)).run()


main()
