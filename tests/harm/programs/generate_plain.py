# transformers' generate, eager, with a growing cache; it samples.
# needs: cpu
# packages: transformers
import warnings

import fingerprint
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

warnings.filterwarnings("ignore")
logging.set_verbosity_error()
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
config = GPT2Config(
    vocab_size=200, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=None
)
model = GPT2LMHeadModel(config).to(device).eval()
for request in range(20):
    ids = torch.randint(2, 200, (1, 4 + request % 5), device=device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=True, pad_token_id=0
    )
    print(request, out[0].tolist())
print(fingerprint.weights(model), fingerprint.draws())
