"""Translate with beam search: encoder and decoder of six layers, sixteen sentences, four beams each."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
BATCHES = int(os.environ.get("STEPS", 2 if TINY else 8))
SENTENCES, BEAMS, MAX_LENGTH, LAYERS = (2, 2, 6, 2) if TINY else (16, 4, 48, 6)
DIM, HEADS, VOCAB, PAD, BOS, EOS = (32, 2, 100, 0, 1, 2) if TINY else (512, 8, 32_000, 0, 1, 2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(17)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x, k, v, mask=None):
        y = F.scaled_dot_product_attention(self.heads(self.q(x)), k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.cross = Attention(), Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x, past, memory, mask):
        y = self.norms[0](x)
        k, v = self.own.heads(self.own.k(y)), self.own.heads(self.own.v(y))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        x = x + self.own(y, k, v)
        x = x + self.cross(self.norms[1](x), *memory, mask)
        return x + self.down(F.relu(self.up(self.norms[2](x)))), (k, v)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(256, DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.decoder, self.norm = nn.ModuleList(DecoderLayer() for _ in range(LAYERS)), nn.LayerNorm(DIM)

    def encode(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.encoder(x, src_key_padding_mask=ids == PAD).repeat_interleave(BEAMS, 0)
        mask = (ids != PAD).repeat_interleave(BEAMS, 0)[:, None, None, :]
        return [(a.cross.heads(a.cross.k(x)), a.cross.heads(a.cross.v(x))) for a in self.decoder], mask

    def decode(self, token, position, past, memories, mask):
        x = self.words(token)[:, None] + self.places.weight[position]
        kept = []
        for layer, cache, memory in zip(self.decoder, past or [None] * LAYERS, memories, strict=True):
            x, cache = layer(x, cache, memory, mask)
            kept.append(cache)
        return F.linear(self.norm(x[:, 0]), self.words.weight), kept


class BeamScorer:
    """Keeps the best hypotheses of each sentence."""

    def __init__(self, length_penalty=1.0):
        self.finished, self.penalty = [[] for _ in range(SENTENCES)], length_penalty

    def add(self, sentence, score, tokens):
        kept = self.finished[sentence]
        kept.append((score / len(tokens) ** self.penalty, tokens))
        kept.sort(key=lambda one: -one[0])
        del kept[BEAMS:]

    def process(self, sequences, scores, tokens, origins):
        """The beams that go on: their scores, their last words, and which beams they continue."""
        if "scorer-on-host" in FIX:
            return self.process_lists(sequences, scores.tolist(), tokens.tolist(), origins.tolist())
        next_scores = torch.zeros(SENTENCES, BEAMS, device=device)
        next_tokens = torch.zeros(SENTENCES, BEAMS, dtype=torch.long, device=device)
        next_beams = torch.zeros(SENTENCES, BEAMS, dtype=torch.long, device=device)
        for sentence in range(SENTENCES):
            filled = 0
            for token, score, origin in zip(
                tokens[sentence], scores[sentence], origins[sentence], strict=True
            ):
                beam = sentence * BEAMS + origin
                if token.item() == EOS:
                    self.add(sentence, score.item(), sequences[beam].tolist())
                else:
                    next_scores[sentence, filled] = score
                    next_tokens[sentence, filled] = token
                    next_beams[sentence, filled] = beam
                    filled += 1
                if filled == BEAMS:
                    break
        return next_scores, next_tokens.view(-1), next_beams.view(-1)

    def process_lists(self, sequences, scores, tokens, origins):
        chosen = []
        for sentence in range(SENTENCES):
            row = []
            for token, score, origin in zip(
                tokens[sentence], scores[sentence], origins[sentence], strict=True
            ):
                beam = sentence * BEAMS + origin
                if token == EOS:
                    self.add(sentence, score, sequences[beam].tolist())
                elif len(row) < BEAMS:
                    row.append((score, token, beam))
            chosen += row
        next_scores, next_tokens, next_beams = (
            torch.tensor(c, device=device) for c in zip(*chosen, strict=True)
        )
        return next_scores.view(SENTENCES, BEAMS), next_tokens, next_beams


@torch.inference_mode()
def translate(source):
    scorer, past = BeamScorer(), None
    memories, mask = model.encode(source)
    scores = torch.full((SENTENCES, BEAMS), -1e9, device=device)
    scores[:, 0] = 0
    token = torch.full((SENTENCES * BEAMS,), BOS, device=device)
    sequences = token[:, None]
    for position in range(MAX_LENGTH):
        logits, past = model.decode(token, position, past, memories, mask)
        if position < MAX_LENGTH // 2:
            logits[:, EOS] = float("-inf")
        total = logits.float().log_softmax(-1).view(SENTENCES, BEAMS, VOCAB) + scores[..., None]
        best, index = total.flatten(1).topk(2 * BEAMS)
        scores, token, beams = scorer.process(sequences, best, index % VOCAB, index // VOCAB)
        sequences = torch.cat([sequences[beams], token[:, None]], 1)
        past = [(k.index_select(0, beams), v.index_select(0, beams)) for k, v in past]
    for beam, (score, tokens) in enumerate(zip(scores.flatten().tolist(), sequences.tolist(), strict=True)):
        scorer.add(beam // BEAMS, score, tokens)
    return [kept[0] for kept in scorer.finished]


model = Translator().to(device, torch.bfloat16 if "bf16" in FIX else torch.float32).eval()
lengths = torch.randint(8, 40, (BATCHES, SENTENCES))
times = []
for number in range(BATCHES):
    source = torch.randint(3, VOCAB, (SENTENCES, int(lengths[number].max())))
    source.masked_fill_(torch.arange(source.shape[1]) >= lengths[number][:, None], PAD)
    start = time.perf_counter()
    translations = translate(source.to(device))
    times.append(time.perf_counter() - start)
    score = sum(one[0] for one in translations) / SENTENCES
    print(f"batch {number}: {SENTENCES} sentences in {times[-1]:.2f} s, mean score {score:.4f}")
times = times[1:]
print(f"{1e3 * sum(times) / len(times) / MAX_LENGTH:.5f} ms per step of the search")
