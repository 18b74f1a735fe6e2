# LoRA by peft on a tiny model; the adapter is merged and saved.
# needs: cpu
# packages: peft, transformers
import warnings

import fingerprint
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore")
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
device = "cuda" if torch.cuda.is_available() else "cpu"
base = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)).to(device)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
for step in range(60):
    ids = torch.randint(0, 100, (4, 16), device=device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, f"{loss.item():.5f}")
merged = model.merge_and_unload()
torch.save(merged.state_dict(), "merged.pt")
print(fingerprint.weights(merged), fingerprint.draws())
