# Captures a CUDA graph for each batch size while it starts, as inference servers do, and then serves by
# replay.
# needs: cuda
# sanitize: yes
import fingerprint
import torch
from torch import nn

SIZES = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


class Server:
    """Keeps one graph a batch size; all share a memory pool, the largest captured first."""

    def __init__(self, model, width):
        self.model = model
        self.inputs = torch.zeros(max(SIZES), width, device="cuda")
        self.outputs = torch.zeros(max(SIZES), width, device="cuda")
        self.graphs = {}
        self.pool = None

    @torch.inference_mode()
    def capture(self):
        stream = torch.cuda.Stream()
        for size in reversed(SIZES):
            for _ in range(2):
                self.outputs[:size].copy_(self.model(self.inputs[:size]))
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=stream):
                self.outputs[:size].copy_(self.model(self.inputs[:size]))
            self.pool = self.pool or graph.pool()
            self.graphs[size] = graph

    @torch.inference_mode()
    def answer(self, batch):
        size = next(size for size in SIZES if size >= len(batch))
        self.inputs[: len(batch)].copy_(batch)
        self.graphs[size].replay()
        return self.outputs[: len(batch)].clone()


torch.manual_seed(0)
model = nn.Sequential(*(Block(128) for _ in range(4)), nn.Linear(128, 128)).cuda().eval()
server = Server(model, 128)
server.capture()
print("ready", len(server.graphs), "graphs")
generator = torch.Generator().manual_seed(1)
for request in range(60):
    count = int(torch.randint(1, max(SIZES) + 1, (), generator=generator))
    batch = torch.randn(count, 128, generator=generator).cuda()
    answer = server.answer(batch)
    if request % 10 == 0:
        print(request, count, fingerprint.tensors(answer))
print(fingerprint.weights(model), fingerprint.draws())
