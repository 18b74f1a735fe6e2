"""A small Llama behind HTTP, with continuous batching, and a client that measures it.

    python examples/serve.py --requests 24            # serves on loopback; a client (ask.py) measures it
    kinetoscope run -o serve.rec -- examples/serve.py --requests 200 --result client.json
    kinetoscope steps serve.rec --client client.json  # steps by phase and batch; where a token's time goes

One thread schedules: it admits waiting requests (prefill, one prompt a step) and then decodes one token of
every running request. Keys and values lie in slots of fixed size. On a GPU each batch size's decode is one
CUDA graph (not with ``--no-graphs``); with ``--overlap`` it is launched before the tokens of the last one are
read. Each step is annotated as vLLM annotates its own, so that any tool knows what it held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

SLOTS, LONGEST = 16, 256
GRAPHED = (1, 2, 4, 8, 16)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, keys, values, slots, at, mask):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).unbind(2)
        keys[slots[:, None], at] = k
        values[slots[:, None], at] = v
        q, k, v = q.transpose(1, 2), keys[slots].transpose(1, 2), values[slots].transpose(1, 2)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList((nn.RMSNorm(width), nn.RMSNorm(width)))
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x, *cache):
        x = x + self.attention(self.norms[0](x), *cache)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.words, self.shape = words, (SLOTS, LONGEST, heads, width // heads)
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.place = nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, tokens, caches, slots, at):
        """The next token of each sequence, whose ``tokens`` stand at the places ``at`` of its slot."""
        x = self.embed(tokens) + self.place(at)
        mask = (torch.arange(LONGEST, device=tokens.device) <= at[:, :, None])[:, None]
        for block, (keys, values) in zip(self.blocks, caches, strict=True):
            x = block(x, keys, values, slots, at, mask)
        return self.head(x[:, -1]).argmax(-1)


@dataclass
class Request:
    prompt: list[int]
    wanted: int
    tokens: list[int] = field(default_factory=list)
    slot: int = -1
    asked: int = 0  # tokens that were launched; they may not have been read yet
    first: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def took(self, token: int) -> None:
        self.tokens.append(token)
        self.first.set()
        if len(self.tokens) >= self.wanted:
            self.done.set()


class Decode:
    """One token of each request of a batch: the model with its inputs in buffers, on a GPU as a graph.

    A run leaves in the buffers what the next one reads: the tokens it made, and their places.
    """

    def __init__(self, model: Llama, caches: list, size: int, device: str, *, graph: bool) -> None:
        self.model, self.caches = model, caches
        self.tokens, self.at = (torch.zeros(size, 1, dtype=torch.long, device=device) for _ in range(2))
        self.slots = torch.zeros(size, dtype=torch.long, device=device)
        self.graph = None
        if graph:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step()

    def step(self) -> None:
        self.tokens.copy_(self.model(self.tokens, self.caches, self.slots, self.at)[:, None])
        self.at.add_(1)

    def run(self) -> None:
        self.step() if self.graph is None else self.graph.replay()


class Engine:
    """The scheduler: takes requests from a queue and gives their tokens.

    With ``overlap`` the next step is launched before the tokens of the last are read: the host does its part
    while the device works.
    """

    def __init__(self, model: Llama, device: str, *, graphs: bool, overlap: bool) -> None:
        self.model, self.device, self.overlap, self.graphs = model, device, overlap, graphs
        some = next(model.parameters())
        self.caches = [
            tuple(torch.zeros(model.shape, device=device, dtype=some.dtype) for _ in "kv")
            for _ in model.blocks
        ]
        self.waiting: queue.Queue[Request] = queue.Queue()
        self.running: list[Request] = []
        self.free = list(range(SLOTS))
        self.decodes: dict[int, Decode] = {}
        self.last: tuple[list[Request], torch.Tensor, torch.cuda.Event | None] | None = None
        self.batch: list[Request] = []  # whose inputs are in the buffers
        self.stopped = False
        if graphs:
            with torch.no_grad():
                for size in GRAPHED:
                    self.sized(size)

    def sized(self, size: int) -> Decode:
        """The decode of a batch size; with graphs, of the next one that was captured."""
        if self.graphs:
            size = next(known for known in GRAPHED if known >= size)
        if size not in self.decodes:
            self.decodes[size] = Decode(self.model, self.caches, size, self.device, graph=self.graphs)
        return self.decodes[size]

    @torch.no_grad()
    def serve(self) -> None:
        while not self.stopped:
            if self.free and (self.running or not self.waiting.empty()):
                with contextlib.suppress(queue.Empty):
                    self.prefill(self.waiting.get_nowait())
            if self.running:
                self.decode()
            else:
                self.read()
                time.sleep(0.001)

    def prefill(self, request: Request) -> None:
        self.read()
        request.slot = self.free.pop()
        with torch.profiler.record_function(f"execute_context_1({len(request.prompt)})_generation_0(0)"):
            tokens = torch.tensor([request.prompt], device=self.device)
            at = torch.arange(len(request.prompt), device=self.device)[None]
            slots = torch.tensor([request.slot], device=self.device)
            request.took(int(self.model(tokens, self.caches, slots, at)))
        request.asked = 1
        self.running.append(request)

    def decode(self) -> None:
        batch = list(self.running)
        with torch.profiler.record_function(f"execute_context_0(0)_generation_{len(batch)}({len(batch)})"):
            decode = self.sized(len(batch))
            if batch != self.batch or not self.overlap:
                self.read()
                self.prepare(decode, batch)
            decode.run()
            out = decode.tokens[:, 0]
            if self.overlap:
                out = out.clone() if self.device == "cpu" else self.copied(out)
            before, self.last = self.last, (batch, out, self.mark())
            if not self.overlap:
                self.read()
            elif before is not None:
                self.give(*before)
        for request in batch:
            request.asked += 1
            if request.asked >= request.wanted:
                self.running.remove(request)
                self.free.append(request.slot)

    def prepare(self, decode: Decode, batch: list[Request]) -> None:
        """The inputs of a batch; the slot of a request that is not there is the last one's."""
        with torch.profiler.record_function("prepare_inputs"):
            rows = [*batch, *[batch[-1]] * (len(decode.slots) - len(batch))]
            decode.tokens.copy_(torch.tensor([[r.tokens[-1]] for r in rows]))
            decode.at.copy_(torch.tensor([[len(r.prompt) + len(r.tokens) - 1] for r in rows]))
            decode.slots.copy_(torch.tensor([r.slot for r in rows]))
        self.batch = batch

    def copied(self, out: torch.Tensor) -> torch.Tensor:
        """The tokens on their way into page-locked memory."""
        return torch.empty(out.shape, dtype=out.dtype, pin_memory=True).copy_(out, non_blocking=True)

    def mark(self) -> torch.cuda.Event | None:
        if self.device == "cpu" or not self.overlap:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def read(self) -> None:
        """The tokens of the last step, where they were not read yet."""
        last, self.last = self.last, None
        if last is not None:
            self.give(*last)

    def give(self, batch: list[Request], out: torch.Tensor, event: torch.cuda.Event | None) -> None:
        with torch.profiler.record_function("process_outputs"):
            if event is not None:
                event.synchronize()
            for request, token in zip(batch, out.tolist(), strict=False):
                request.took(token)


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(asked["prompt"], min(asked["tokens"], LONGEST - len(asked["prompt"])))
            engine.waiting.put(request)
            self.send_response(200)
            self.end_headers()
            request.first.wait()
            self.wfile.write(json.dumps(request.tokens[:1]).encode() + b"\n")
            request.done.wait()
            self.wfile.write(json.dumps(request.tokens).encode() + b"\n")

        def log_message(self, *_: object) -> None: ...

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {"requests": 24, "at-once": 8, "prompt": 32, "tokens": 48}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument(
        "--overlap", action="store_true", help="launch a step before the last one's tokens are read"
    )
    parser.add_argument("--result", help="where the client writes what it measured (default: it prints it)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Llama(arguments.layers, arguments.width, 8, 8000).to(arguments.device).eval()
    if arguments.device == "cuda":
        model.bfloat16()
    graphs = arguments.device == "cuda" and not arguments.no_graphs
    engine = Engine(model, arguments.device, graphs=graphs, overlap=arguments.overlap)
    threading.Thread(target=engine.serve, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(engine))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked = {name: getattr(arguments, name) for name in ("requests", "at_once", "prompt", "tokens", "result")}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if value is not None]
    client = Path(__file__).with_name("ask.py")
    subprocess.run([sys.executable, client, f"--port={server.server_address[1]}", *options], check=True)
    engine.stopped = True
    server.shutdown()


if __name__ == "__main__":
    main()
