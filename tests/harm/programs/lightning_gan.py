# A GAN by Lightning: two optimizers, manual optimization, a compiled generator with cuDNN in it, and memory
# that grows from epoch to epoch.
# needs: cuda
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


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(
            *(nn.Linear(32, 64 * 4 * 4), nn.Unflatten(1, (64, 4, 4)), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh()),
        )


class Discriminator(nn.Sequential):
    def __init__(self):
        super().__init__(
            *(nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(64 * 4 * 4, 1)),
        )


class GAN(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = Generator(), Discriminator()
        self.draw = torch.compile(self.generator)
        self.kept = []

    def training_step(self, batch, index):
        (real,) = batch
        of_generator, of_discriminator = self.optimizers()
        yes, no = (torch.full((len(real), 1), value, device=self.device) for value in (1.0, 0.0))
        judge = nn.functional.binary_cross_entropy_with_logits

        fake = self.draw(torch.randn(len(real), 32, device=self.device))
        loss = judge(self.discriminator(real), yes) + judge(self.discriminator(fake.detach()), no)
        of_discriminator.zero_grad()
        self.manual_backward(loss)
        of_discriminator.step()

        fake = self.draw(torch.randn(len(real), 32, device=self.device))
        fooled = judge(self.discriminator(fake), yes)
        of_generator.zero_grad()
        self.manual_backward(fooled)
        of_generator.step()

        self.kept.append(fake.detach().cpu().repeat(8, 1, 1, 1))
        if index % 16 == 0:
            print(self.current_epoch, index, f"{loss.item():.5f} {fooled.item():.5f}")

    def configure_optimizers(self):
        return [
            torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999))
            for part in (self.generator, self.discriminator)
        ]


lightning.seed_everything(0, verbose=False)
torch.backends.cudnn.deterministic = True
images = TensorDataset(torch.rand(1024, 1, 16, 16) * 2 - 1)
model = GAN()
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(images, batch_size=32, num_workers=2, persistent_workers=True))
print(len(model.kept), fingerprint.weights(model.generator, model.discriminator), fingerprint.draws())
