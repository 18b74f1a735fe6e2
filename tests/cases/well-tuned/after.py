"""Nothing to find: bfloat16, compiled with its loss, large batch, flash attention, fused optimizer."""

import torch

WIDTH, HEADS, VOCABULARY = 2048, 16, 32768


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        h = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(n, length, WIDTH))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(3)))
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        logits = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build(device):
    model = Model().to(device, torch.bfloat16)
    loss_of = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY, (16, 1024), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tokens, tokens)
        loss.backward()
        optimizer.step()
        return loss

    return step
