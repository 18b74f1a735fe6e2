# A hand-written Triton kernel, launched eagerly and within torch.compile.
# needs: cuda
# packages: triton
import fingerprint
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, out, count, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) * factor, mask=inside)


def scaled(x, factor):
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), factor, BLOCK=256)
    return out


@torch.compile
def chain(x):
    return scaled(torch.sin(x), 2.0) + 1


torch.manual_seed(0)
x = torch.randn(100, 33, device="cuda")
for step in range(60):
    x = chain(scaled(x, 0.5))
    if step % 20 == 0:
        print(step, fingerprint.tensors(x))
print(fingerprint.draws())
