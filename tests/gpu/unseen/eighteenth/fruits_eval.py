"""Which fruits lie where? A detector finds them, and of boxes that overlap the surest stays."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 40))  # batches
KNOWN, BATCH, SIDE, KINDS, WIDTHS, WIDE, BEST = (
    (2, 2, 64, 3, (8, 8, 16, 16), 16, 20) if TINY else (4, 8, 512, 20, (64, 128, 256, 512), 256, 150)
)
SURE, OVERLAP, STRIDES = 0.05, 0.6, (8, 16, 32)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def conv(enter, wide, kernel=3, stride=1):
    return nn.Sequential(
        nn.Conv2d(enter, wide, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(inplace=True),
    )


class Fruits(nn.Module):
    """A backbone, a pyramid of three sizes, and at each place kinds, a box and how central the place is."""

    def __init__(self):
        super().__init__()
        one, two, three, four = WIDTHS
        self.stem = nn.Sequential(conv(3, one, 3, 2), conv(one, one, 3, 2))
        self.parts = nn.ModuleList(
            nn.Sequential(conv(enter, wide, 3, 2), *(conv(wide, wide) for _ in range(4)))
            for enter, wide in ((one, two), (two, three), (three, four))
        )
        self.sides = nn.ModuleList(nn.Conv2d(wide, WIDE, 1) for wide in WIDTHS[1:])
        self.kinds = nn.Sequential(
            *(conv(WIDE, WIDE) for _ in range(3)), nn.Conv2d(WIDE, KINDS, 3, padding=1)
        )
        self.boxes = nn.Sequential(*(conv(WIDE, WIDE) for _ in range(3)), nn.Conv2d(WIDE, 5, 3, padding=1))

    def forward(self, x):
        x, maps = self.stem(x), []
        for part, side in zip(self.parts, self.sides, strict=True):
            x = part(x)
            maps.append(side(x))
        for i in (1, 0):
            maps[i] = maps[i] + F.interpolate(maps[i + 1], scale_factor=2.0)
        return [(self.kinds(one).float(), self.boxes(one).float()) for one in maps]


def candidates(found):
    """The surest boxes of each picture, over all places and kinds."""
    scores, boxes = [], []
    for (kinds, box), stride in zip(found, STRIDES, strict=True):
        high, wide = kinds.shape[2:]
        ys, xs = ((torch.arange(n, device=device) + 0.5) * stride for n in (high, wide))
        middle = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), 2).flatten(0, 1)
        # As if it had learned: few places are sure, each by some distance.
        kinds = F.instance_norm(kinds.flatten(2)).transpose(1, 2) * 1.6 - 4
        far = 4 * stride * F.instance_norm(box[:, :4].flatten(2)).mul(0.4).exp().transpose(1, 2)
        scores.append(kinds.sigmoid() * F.instance_norm(box[:, 4:].flatten(2)).sigmoid().transpose(1, 2))
        boxes.append(torch.cat([middle - far[:, :, :2], middle + far[:, :, 2:]], 2))
    boxes = torch.cat(boxes, 1).clamp(0, SIDE)
    best, at = torch.cat(scores, 1).flatten(1).topk(BEST, 1)
    return best, boxes.gather(1, (at // KINDS)[:, :, None].expand(-1, -1, 4)), at % KINDS


def overlaps(one, many):
    """Intersection over union; of one box with many, or of all with all."""
    low, high = torch.maximum(one[..., :2], many[..., :2]), torch.minimum(one[..., 2:], many[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (one, many)]
    return both / (areas[0] + areas[1] - both).clamp(min=1e-6)


def suppress(boxes, scores):
    """Numbers of the boxes that stay, the surest first."""
    order, kept = scores.argsort(descending=True, stable=True), []
    while order.numel() > 0:
        first = order[0]
        kept.append(first)
        if order.numel() == 1:
            break
        order = order[1:]
        order = order[overlaps(boxes[first], boxes[order]) <= OVERLAP]
    return torch.stack(kept)


def detections(scores, boxes, kinds):
    """Of a picture: kind by kind."""
    sure = scores > SURE
    scores, boxes, kinds = scores[sure], boxes[sure], kinds[sure]
    results = []
    for kind in kinds.unique():
        of_kind = kinds == kind
        stay = suppress(boxes[of_kind], scores[of_kind])
        results.append(torch.cat([boxes[of_kind][stay], scores[of_kind][stay][:, None]], 1))
    return torch.cat(results).cpu() if results else torch.zeros(0, 5)


def detections_together(scores, boxes, kinds):
    """Of all pictures at once: who stays is settled when it does not change any more."""
    over = overlaps(boxes[:, :, None], boxes[:, None]) > OVERLAP
    over &= (kinds[:, :, None] == kinds[:, None]) & (scores > SURE)[:, :, None]
    over = over.triu(1).float()  # the surer comes first
    stay, before = scores > SURE, None
    while before is None or not torch.equal(stay, before):
        before = stay
        stay = (scores > SURE) & ((stay.float()[:, None] @ over)[:, 0] < 0.5)
    found, counts = torch.cat([boxes, scores[:, :, None]], 2)[stay].cpu(), stay.sum(1).tolist()
    return found.split(counts)


@torch.inference_mode()
def main():
    pictures = [torch.rand(BATCH, 3, SIDE // 16, SIDE // 16, device=device) for _ in range(KNOWN)]
    with device:
        model = Fruits()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        model = model.to(dtype).to(memory_format=torch.channels_last).eval()
    lead, began, count, sure = min(STEPS // 2, 3), 0.0, 0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        x = F.interpolate(pictures[step % KNOWN], scale_factor=16.0, mode="bicubic").to(dtype)
        found = candidates(model(x.contiguous(memory_format=torch.channels_last)))
        if "all-pictures-at-once" in FIX:
            results = detections_together(*found)
        elif "on-host" in FIX:
            results = [detections(*one) for one in zip(*(part.cpu() for part in found), strict=True)]
        else:
            results = [detections(*one) for one in zip(*found, strict=True)]
        count += sum(len(one) for one in results)
        sure += sum(one[:, 4].sum().item() for one in results)
        if step % 10 == 0:
            print(f"{BATCH * (step + 1)} pictures: {count / BATCH / (step + 1):.1f} fruits in each")
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{count} fruits, score {sure / max(count, 1):.5f}; {each:.3f} ms per batch")


main()
