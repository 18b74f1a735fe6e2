"""Evaluate an image captioner (show, attend and tell) with beam search, and say how many words are right."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 64))  # pictures
SIDE, WIDTH, STAGES, VOCAB, EMBED, HIDDEN, ATTENTION, LONGEST, BEAM, TOGETHER = (
    (32, 4, (1, 1, 1, 1), 40, 8, 16, 8, 5, 3, 4)
    if TINY
    else (256, 64, (3, 4, 6, 3), 9490, 512, 512, 512, 30, 5, 16)
)
START, END = 1, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.down = None
        if stride != 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.down is None else self.down(x)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, inputs = [], WIDTH
        for i, count in enumerate(STAGES):
            for j in range(count):
                blocks.append(Bottleneck(inputs, WIDTH << i, 2 if i and not j else 1))
                inputs = 4 * (WIDTH << i)
        self.blocks, self.outputs = nn.Sequential(*blocks), inputs

    def forward(self, x):
        return self.blocks(self.stem(x)).flatten(2).transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.encoder_att, self.decoder_att = nn.Linear(inputs, ATTENTION), nn.Linear(HIDDEN, ATTENTION)
        self.full_att = nn.Linear(ATTENTION, 1)
        self.embedding = nn.Embedding(VOCAB, EMBED)
        self.init_h, self.init_c = nn.Linear(inputs, HIDDEN), nn.Linear(inputs, HIDDEN)
        self.f_beta = nn.Linear(HIDDEN, inputs)
        self.cell, self.fc = nn.LSTMCell(EMBED + inputs, HIDDEN), nn.Linear(HIDDEN, VOCAB)

    def start(self, features):
        mean = features.mean(-2)
        return self.init_h(mean), self.init_c(mean)

    def step(self, words, features, h, c):
        att = self.full_att(F.relu(self.encoder_att(features) + self.decoder_att(h).unsqueeze(-2)))
        seen = (features * att.softmax(-2)).sum(-2) * torch.sigmoid(self.f_beta(h))
        h, c = self.cell(torch.cat([self.embedding(words), seen], -1), (h, c))
        return F.log_softmax(self.fc(h), -1), h, c


@torch.no_grad()
def caption(picture):
    """The best caption of one picture; beams that end are put aside, the others go on."""
    features = encoder(picture)
    k = BEAM
    features = features.expand(k, -1, -1)
    h, c = decoder.start(features)
    words = torch.full((k,), START, device=device)
    sentences = words[:, None]
    top_scores = torch.zeros(k, 1, device=device)
    complete, complete_scores = [], []
    for step in range(LONGEST):
        scores, h, c = decoder.step(words, features, h, c)
        scores = top_scores + scores
        top, flat = (scores[0] if step == 0 else scores.view(-1)).topk(k)
        previous, following = flat // VOCAB, flat % VOCAB
        sentences = torch.cat([sentences[previous], following[:, None]], 1)
        going = [i for i, word in enumerate(following.tolist()) if word != END]
        ended = [i for i in range(len(following)) if i not in going]
        if ended:
            complete.extend(sentences[ended].tolist())
            complete_scores.extend(top[ended].tolist())
            k -= len(ended)
        if k == 0:
            break
        sentences, h, c = sentences[going], h[previous[going]], c[previous[going]]
        features, top_scores, words = features[going], top[going, None], following[going]
    else:
        complete.extend(sentences.tolist())
        complete_scores.extend(top_scores.squeeze(1).tolist())
    return complete[complete_scores.index(max(complete_scores))]


@torch.no_grad()
def captions(pictures):
    """The best captions of many pictures; beams that have ended stay as they are."""
    features = encoder(pictures)
    n = len(features)
    features = features[:, None].expand(-1, BEAM, -1, -1).flatten(0, 1)
    h, c = decoder.start(features)
    words = torch.full((n * BEAM,), START, device=device)
    sentences = words[:, None]
    top_scores = torch.full((n, BEAM), -1e9, device=device)
    top_scores[:, 0] = 0
    stay = torch.full((VOCAB,), -1e9, device=device)
    stay[END] = 0
    first = BEAM * torch.arange(n, device=device)[:, None]
    for _ in range(LONGEST):
        scores, h, c = decoder.step(words, features, h, c)
        scores = torch.where((words == END)[:, None], stay, scores).view(n, BEAM, VOCAB)
        top_scores, flat = (top_scores[..., None] + scores).view(n, -1).topk(BEAM)
        previous, words = (first + flat // VOCAB).view(-1), (flat % VOCAB).view(-1)
        sentences = torch.cat([sentences[previous], words[:, None]], 1)
        h, c = h[previous], c[previous]
    best = first.squeeze(1) + top_scores.argmax(1)
    return [one[: one.index(END) + 1] if END in one else one for one in sentences[best].tolist()]


encoder = Encoder().to(device).eval()
decoder = Decoder(encoder.outputs).to(device).eval()
pictures = torch.rand(16, 3, SIDE, SIDE)
references = torch.randint(3, VOCAB, (16, 5, LONGEST)).tolist()
caption(pictures[:1].to(device))
if "pictures-at-once" in FIX:
    captions(pictures[:TOGETHER].to(device))
hypotheses, hits, spent, done = [], 0, 0.0, 0
while done < STEPS:
    many = min(TOGETHER, STEPS - done) if "pictures-at-once" in FIX else 1
    began = time.perf_counter()
    rows = [(done + i) % len(pictures) for i in range(many)]
    batch = pictures[rows].to(device)
    found = captions(batch) if "pictures-at-once" in FIX else [caption(batch)]
    for row, words in zip(rows, found, strict=True):
        known = {word for reference in references[row] for word in reference}
        hits += sum(word in known for word in words)
        hypotheses.append(words)
    spent += time.perf_counter() - began
    done += many
total = sum(len(words) for words in hypotheses)
print(f"{done} pictures, unigram precision {hits / total:.4f}, {1e3 * spent / done:.3f} ms per picture")
