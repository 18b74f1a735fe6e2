# transformers' generate with a static cache, which compiles the decoding step and replays it as a CUDA graph.
# needs: cuda
# packages: transformers
import warnings

import fingerprint
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

warnings.filterwarnings("ignore")
logging.set_verbosity_error()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
model = LlamaForCausalLM(config).cuda().eval()
for request in range(8):
    ids = torch.randint(2, 256, (2, 12), device="cuda")
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=24,
        do_sample=False,
        cache_implementation="static",
    )
    print(request, out[:, 12:].tolist())
print(fingerprint.weights(model), fingerprint.draws())
