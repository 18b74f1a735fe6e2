"""Train a vision transformer by a trainer of our own, grown over the years: modules, callbacks, progress."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
MAX_STEPS = int(os.environ.get("STEPS", 3 if TINY else 220))
SIZE, PATCH, DIM, DEPTH, BATCH = (32, 16, 48, 2, 2) if TINY else (224, 16, 384, 12, 64)
torch.manual_seed(11)


class Pictures(Dataset):
    def __init__(self):
        self.pictures = torch.randint(0, 256, (64, 3, SIZE, SIZE), dtype=torch.uint8)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        picture = self.pictures[i % 64]
        if i % 2:
            picture = picture.flip(2)
        return (picture.float() / 255 - 0.5) / 0.25, i % 1000


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.places = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(
            DIM, DIM // 16 if TINY else 6, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.head = nn.Linear(DIM, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class LitClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.logged = ViT(), {}

    def log(self, name, value):
        self.logged[name] = value.item() if isinstance(value, torch.Tensor) else value

    def training_step(self, batch, _):
        images, labels = batch
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        self.log("train_loss", loss)
        self.log("train_acc", (logits.argmax(1) == labels).float().mean())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 3e-4, weight_decay=0.05)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, MAX_STEPS + 1)


class Callback:
    def on_after_backward(self, trainer, module): ...

    def on_train_batch_end(self, trainer, module): ...


class EMA(Callback):
    def __init__(self, module, decay=0.999):
        self.shadow, self.decay = copy.deepcopy(module).eval(), decay

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module):
        if "foreach-ema" in FIX:
            torch._foreach_lerp_(list(self.shadow.parameters()), list(module.parameters()), 1 - self.decay)
            return
        for kept, new in zip(self.shadow.state_dict().values(), module.state_dict().values(), strict=True):
            kept.copy_(self.decay * kept + (1 - self.decay) * new)


class GradientNorms(Callback):
    def on_after_backward(self, trainer, module):
        if "norms-rarely" in FIX and trainer.step % 50:
            return
        trainer.norms = {f"grad/{n}": p.grad.norm(2).item() for n, p in module.named_parameters()}
        trainer.norms["grad/total"] = sum(v**2 for v in trainer.norms.values()) ** 0.5


class ProgressBar(Callback):
    def on_train_batch_end(self, trainer, module):
        if trainer.step % 20 == 0:
            shown = {
                **module.logged,
                "lr": trainer.scheduler.get_last_lr()[0],
                "norm": trainer.norms["grad/total"],
            }
            print(f"{trainer.step}/{MAX_STEPS}: " + ", ".join(f"{k}={v:.3g}" for k, v in shown.items()))


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.step, self.norms = callbacks, 0, {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def call(self, hook, module):
        for callback in self.callbacks:
            getattr(callback, hook)(self, module)

    def fit(self, module, loader):
        self.optimizer, self.scheduler = module.configure_optimizers()
        module.train()
        for index, batch in enumerate(loader):
            if index == MAX_STEPS // 3:
                began = time.monotonic()
            batch = [t.to(self.device, non_blocking=True) for t in batch]

            def closure(batch=batch, index=index):
                self.optimizer.zero_grad()
                with torch.autocast(self.device.type, torch.bfloat16, enabled="bf16" in FIX):
                    loss = module.training_step(batch, index)
                loss.backward()
                self.call("on_after_backward", module)
                return loss

            self.optimizer.step(closure)
            self.scheduler.step()
            self.call("on_train_batch_end", module)
            self.step += 1
            if self.step == MAX_STEPS:
                break
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        print(f"{(time.monotonic() - began) / (MAX_STEPS - MAX_STEPS // 3):.5f} s/batch")


if __name__ == "__main__":
    module = LitClassifier().to("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Pictures(), BATCH, num_workers=2 if TINY else 12, pin_memory=torch.cuda.is_available()
    )
    Trainer([EMA(module), GradientNorms(), ProgressBar()]).fit(module, loader)
