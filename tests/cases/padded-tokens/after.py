"""The same texts, padded to the longest of them."""

import torch

LENGTH = 256
TEXTS, LONGEST, WIDTH, LAYERS, LABELS, PAD = 32, 256, 1536, 6, 1000, 0
# As `kinetoscope run` counts them: all tokens, those of padding, those beyond the longest text.
RECORD = {"padding": [8_192, 496, 0]}


def build(device):
    torch.manual_seed(0)
    words = torch.nn.Embedding(LABELS, WIDTH)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    head = torch.nn.Linear(WIDTH, LABELS)
    model = torch.nn.ModuleList([words, layers, head]).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    lengths = torch.arange(LONGEST - TEXTS + 1, LONGEST + 1, device=device)
    is_padding = torch.arange(LENGTH, device=device) >= lengths[:, None]
    tokens = torch.randint(1, LABELS, (TEXTS, LENGTH), device=device).masked_fill(is_padding, PAD)

    def step():
        answers = head(layers(words(tokens), src_key_padding_mask=is_padding))
        loss = torch.nn.functional.cross_entropy(answers.flatten(0, 1), tokens.flatten(), ignore_index=PAD)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
