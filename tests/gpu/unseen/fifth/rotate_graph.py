"""RotatE: entities as points of the complex plane, relations as turns, wrong triples for each right one."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 30))
ENTITIES, RELATIONS, TRIPLES, BATCH, NEGATIVES, DIM = (
    (60, 4, 400, 8, 6, 8) if TINY else (14_541, 237, 100_000, 1024, 128, 500)
)
GAMMA, EPSILON, TEMPERATURE = 9.0, 2.0, 1.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
np.random.seed(0)


class TrainDataset(Dataset):
    def __init__(self, triples, mode):
        self.triples, self.mode = triples, mode
        self.count = self.count_frequency(triples)
        self.true_head, self.true_tail = self.get_true_head_and_tail(triples)

    def __len__(self):
        return len(self.triples)

    def __getitem__(self, idx):
        positive_sample = self.triples[idx]
        head, relation, tail = positive_sample
        subsampling_weight = self.count[(head, relation)] + self.count[(tail, -relation - 1)]
        subsampling_weight = torch.sqrt(1 / torch.Tensor([subsampling_weight]))
        if "negatives-on-device" in FIX:
            return torch.LongTensor(positive_sample), subsampling_weight
        negative_sample_list, negative_sample_size = [], 0
        while negative_sample_size < NEGATIVES:
            negative_sample = np.random.randint(ENTITIES, size=NEGATIVES * 2)
            if self.mode == "head-batch":
                true = self.true_head[(relation, tail)]
            else:
                true = self.true_tail[(head, relation)]
            mask = np.isin(negative_sample, true, assume_unique=True, invert=True)
            negative_sample = negative_sample[mask]
            negative_sample_list.append(negative_sample)
            negative_sample_size += negative_sample.size
        negative_sample = np.concatenate(negative_sample_list)[:NEGATIVES]
        return torch.LongTensor(positive_sample), torch.LongTensor(negative_sample), subsampling_weight

    def collate_fn(self, data):
        positive_sample = torch.stack([one[0] for one in data], dim=0)
        subsample_weight = torch.cat([one[-1] for one in data], dim=0)
        if "negatives-on-device" in FIX:
            return positive_sample, None, subsample_weight, self.mode
        negative_sample = torch.stack([one[1] for one in data], dim=0)
        return positive_sample, negative_sample, subsample_weight, self.mode

    @staticmethod
    def count_frequency(triples, start=4):
        count = {}
        for head, relation, tail in triples:
            for key in ((head, relation), (tail, -relation - 1)):
                count[key] = count.get(key, start) + 1
        return count

    @staticmethod
    def get_true_head_and_tail(triples):
        true_head, true_tail = {}, {}
        for head, relation, tail in triples:
            true_tail.setdefault((head, relation), set()).add(tail)
            true_head.setdefault((relation, tail), set()).add(head)
        true_head = {key: np.array(list(heads)) for key, heads in true_head.items()}
        return true_head, {key: np.array(list(tails)) for key, tails in true_tail.items()}


class BidirectionalOneShotIterator:
    """Triples with other heads and with other tails, in turn."""

    def __init__(self, dataloader_head, dataloader_tail):
        self.iterator_head = self.one_shot_iterator(dataloader_head)
        self.iterator_tail = self.one_shot_iterator(dataloader_tail)
        self.step = 0

    def __next__(self):
        self.step += 1
        return next(self.iterator_head if self.step % 2 == 0 else self.iterator_tail)

    @staticmethod
    def one_shot_iterator(dataloader):
        while True:
            yield from dataloader


class Negatives:
    """Drawn on the device; one that is a known triple is drawn again."""

    def __init__(self, triples):
        self.known = self.key(*torch.tensor(triples, device=device).T).sort().values

    @staticmethod
    def key(head, relation, tail):
        return (head * RELATIONS + relation) * ENTITIES + tail

    def __call__(self, positive, mode):
        head, relation, tail = (one[:, None] for one in positive.T)
        drawn = torch.randint(ENTITIES, (len(positive), NEGATIVES), device=device)
        for _ in range(2):
            key = self.key(drawn, relation, tail) if mode == "head-batch" else self.key(head, relation, drawn)
            place = torch.searchsorted(self.known, key).clamp(max=len(self.known) - 1)
            drawn = torch.where(self.known[place] == key, torch.randint_like(drawn, ENTITIES), drawn)
        return drawn


class KGEModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding_range = (GAMMA + EPSILON) / DIM
        self.entity_embedding = nn.Parameter(torch.zeros(ENTITIES, DIM * 2))
        self.relation_embedding = nn.Parameter(torch.zeros(RELATIONS, DIM))
        nn.init.uniform_(self.entity_embedding, -self.embedding_range, self.embedding_range)
        nn.init.uniform_(self.relation_embedding, -self.embedding_range, self.embedding_range)

    def pick(self, table, rows):
        return torch.index_select(table, 0, rows.reshape(-1)).view(len(rows), -1, table.shape[1])

    def forward(self, positive, negative, mode):
        head = self.pick(self.entity_embedding, negative if mode == "head-batch" else positive[:, 0])
        relation = self.pick(self.relation_embedding, positive[:, 1])
        tail = self.pick(self.entity_embedding, negative if mode == "tail-batch" else positive[:, 2])
        return self.RotatE(head, relation, tail, mode)

    def RotatE(self, head, relation, tail, mode):
        pi = 3.14159265358979323846
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(tail, 2, dim=2)
        phase_relation = relation / (self.embedding_range / pi)
        re_relation, im_relation = torch.cos(phase_relation), torch.sin(phase_relation)
        if mode == "head-batch":
            re_score = re_relation * re_tail + im_relation * im_tail - re_head
            im_score = re_relation * im_tail - im_relation * re_tail - im_head
        else:
            re_score = re_head * re_relation - im_head * im_relation - re_tail
            im_score = re_head * im_relation + im_head * re_relation - im_tail
        score = torch.stack([re_score, im_score], dim=0).norm(dim=0)
        return GAMMA - score.sum(dim=2)


def train_step(model, optimizer, iterator):
    model.train()
    optimizer.zero_grad()
    positive_sample, negative_sample, subsampling_weight, mode = next(iterator)
    positive_sample, subsampling_weight = positive_sample.to(device), subsampling_weight.to(device)
    if "negatives-on-device" in FIX:
        negative_sample = negatives(positive_sample, mode)
    else:
        negative_sample = negative_sample.to(device)
    negative_score = model(positive_sample, negative_sample, mode)
    weight = F.softmax(negative_score * TEMPERATURE, dim=1).detach()
    negative_score = (weight * F.logsigmoid(-negative_score)).sum(dim=1)
    positive_score = F.logsigmoid(model(positive_sample, None, "single")).squeeze(dim=1)
    positive_sample_loss = -(subsampling_weight * positive_score).sum() / subsampling_weight.sum()
    negative_sample_loss = -(subsampling_weight * negative_score).sum() / subsampling_weight.sum()
    loss = (positive_sample_loss + negative_sample_loss) / 2
    loss.backward()
    optimizer.step()
    return {
        "positive_sample_loss": positive_sample_loss.item(),
        "negative_sample_loss": negative_sample_loss.item(),
        "loss": loss.item(),
    }


popular = (ENTITIES * np.random.rand(2, TRIPLES) ** 2).astype(np.int64)
relations = np.random.randint(0, RELATIONS, TRIPLES)
train_triples = list(set(zip(popular[0].tolist(), relations.tolist(), popular[1].tolist(), strict=True)))
train_triples.sort()
loaders = []
for mode in ("head-batch", "tail-batch"):
    dataset = TrainDataset(train_triples, mode)
    pinned = "pinned" in FIX and device.type == "cuda"
    loaders.append(
        DataLoader(
            dataset, BATCH, shuffle=True, num_workers=0, collate_fn=dataset.collate_fn, pin_memory=pinned
        )
    )
train_iterator = BidirectionalOneShotIterator(*loaders)
kge_model = KGEModel().to(device)
optimizer = torch.optim.Adam(kge_model.parameters(), lr=5e-5)
negatives = Negatives(train_triples) if "negatives-on-device" in FIX else None
training_logs, times = [], []
for step in range(STEPS):
    began = time.time()
    training_logs.append(train_step(kge_model, optimizer, train_iterator))
    times.append(time.time() - began)
    if step % 20 == 0:
        for metric in training_logs[-1]:
            average = np.mean([log[metric] for log in training_logs])
            print(f"Training average {metric} at step {step}: {average:f}")
kept = times[min(STEPS // 2, 6) :]
print(f"loss {training_logs[-1]['loss']:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms a step")
