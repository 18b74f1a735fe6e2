# transformers' Trainer with a tiny model made from its configuration.
# needs: cpu
# exact: no
# packages: transformers, accelerate
import warnings

import fingerprint
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed

warnings.filterwarnings("ignore")


class Numbers(Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 100, (256, 16), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


set_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir="out",
    max_steps=70,
    per_device_train_batch_size=8,
    logging_steps=20,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Numbers())
trainer.remove_callback(PrinterCallback)  # prints how long it took
result = trainer.train()
for row in trainer.state.log_history:
    print({name: value for name, value in row.items() if name in ("loss", "step", "learning_rate")})
print(result.global_step, fingerprint.weights(model), fingerprint.draws())
