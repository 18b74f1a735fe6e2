"""Is a comment kind? A pipeline of transformers is asked about all comments of a day."""

import os
import random
import time
import warnings

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    TextClassificationPipeline,
)

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 600))  # comments
WORDS, SHORT, LONG, WIDE, LAYERS, HEADS, TOGETHER = (
    (80, 3, 8, 32, 2, 2, 4) if TINY else (50_000, 12, 48, 768, 12, 12, 32)
)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
warnings.filterwarnings("ignore")


def tokenizer():
    """Words as they stand, each with a number, between a beginning and an end."""
    vocabulary = {word: i for i, word in enumerate(SPECIAL + [f"word{i}" for i in range(WORDS - 4)])}
    splits = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    splits.pre_tokenizer = pre_tokenizers.Whitespace()
    splits.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=splits,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
    )


def network():
    config = RobertaConfig(
        vocab_size=WORDS,
        hidden_size=WIDE,
        intermediate_size=4 * WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=1,
        num_labels=3,
        id2label={0: "unkind", 1: "neutral", 2: "kind"},
        label2id={"unkind": 0, "neutral": 1, "kind": 2},
    )
    model = RobertaForSequenceClassification(config).eval()
    return model.to(torch.bfloat16) if "bfloat16" in FIX else model


def comments(count):
    rng = random.Random(0)
    for _ in range(count):
        yield " ".join(f"word{rng.randrange(WORDS - 4)}" for _ in range(rng.randint(SHORT, LONG)))


def main():
    classify = TextClassificationPipeline(model=network(), tokenizer=tokenizer(), device=device)
    together = TOGETHER if "batched" in FIX else 1
    lead = min(STEPS // 2, TOGETHER)
    counts, sure = {"unkind": 0, "neutral": 0, "kind": 0}, 0.0
    for answer in classify(comments(lead), batch_size=together):
        sure += answer["score"]
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for done, answer in enumerate(classify(comments(STEPS - lead), batch_size=together), 1):
        counts[answer["label"]] += 1
        sure += answer["score"]
        if done % 200 == 0:
            print(f"{done} comments: {counts}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{counts}, sure {sure / STEPS:.5f}; {each:.3f} ms per comment")


main()
