"""Distil five ECG networks into a small one: the student learns from the mean of what the teachers say."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 160))
RECORDS, SAMPLES, BATCH = (48, 64, 16) if TINY else (6400, 1000, 128)
TEACHERS, TEACHER_WIDTH, STUDENT_WIDTH = (2, 16, 8) if TINY else (5, 128, 32)
LEADS, CLASSES, TEMPERATURE, WEIGHT = 12, 71, 3.0, 0.7
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(inputs, outputs, 7, stride, 3, bias=False)
        self.conv2 = nn.Conv1d(outputs, outputs, 7, 1, 3, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(outputs), nn.BatchNorm1d(outputs)
        self.skip = nn.Conv1d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class ECGNet(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(LEADS, width, 15, 1, 7, bias=False), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(*[Block(width, width, 2 if i % 2 else 1) for i in range(blocks)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(-1))


class Ensemble(nn.Module):
    """Average the logits of several trained networks."""

    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x):
        return torch.stack([member(x) for member in self.members]).mean(0)


def load_teachers():
    """Return the trained teachers; in this script they are as good as random."""
    teachers = []
    for seed in range(TEACHERS):
        torch.manual_seed(seed)
        teachers.append(ECGNet(TEACHER_WIDTH, 8))
    return Ensemble(teachers).to(device).eval()


class Trainer:
    def __init__(self):
        self.teacher = load_teachers()
        torch.manual_seed(7)
        self.student = ECGNet(STUDENT_WIDTH, 4).to(device)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-3)
        self.records = torch.randn(RECORDS, LEADS, SAMPLES, device=device)
        self.labels = (torch.rand(RECORDS, CLASSES, device=device) < 0.05).float()
        self.soft = None
        if "teach-once" in FIX:
            began = time.time()
            with torch.no_grad():
                self.soft = torch.cat([self.teacher(part) for part in self.records.split(BATCH)])
            print(f"teachers asked once, {time.time() - began:.2f} s")

    def teach(self, rows, x):
        if self.soft is not None:
            return self.soft[rows]
        if "no-grad" in FIX:
            with torch.no_grad():
                return self.teacher(x)
        return self.teacher(x).detach()

    def training_step(self, rows):
        x, y = self.records[rows], self.labels[rows]
        student_logits = self.student(x)
        teacher_logits = self.teach(rows, x)
        hard = F.binary_cross_entropy_with_logits(student_logits, y)
        soft = F.binary_cross_entropy_with_logits(
            student_logits / TEMPERATURE, torch.sigmoid(teacher_logits / TEMPERATURE)
        )
        return (1 - WEIGHT) * hard + WEIGHT * TEMPERATURE**2 * soft

    def fit(self):
        done, epoch, warm = 0, 0, STEPS // 5
        while done < STEPS:
            order = torch.randperm(RECORDS, device=device)
            losses = []
            for rows in order.split(BATCH):
                if done == warm:
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    start = time.time()
                loss = self.training_step(rows)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
                done += 1
                if done == STEPS:
                    break
            epoch += 1
            print(f"Epoch {epoch}: train_loss={torch.stack(losses).mean().item():.4f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.time() - start) / (STEPS - warm)


seconds = Trainer().fit()
print(f"{1e3 * seconds:.4f} ms per iteration")
