# A plain Lightning training with validation, callbacks and a checkpoint in the working folder.
# needs: cpu
# packages: lightning
import logging
import warnings

import fingerprint
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regressor(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("valid", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Printer(lightning.Callback):
    def on_validation_end(self, trainer, module):
        print(trainer.global_step, f"{trainer.callback_metrics['valid'].item():.6f}")


lightning.seed_everything(0, verbose=False)
x = torch.randn(512, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
model = Regressor()
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="auto",
    devices=1,
    logger=False,
    callbacks=[Printer()],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, loader)
trainer.save_checkpoint("last.ckpt")
print(fingerprint.weights(model), fingerprint.draws())
