"""A small Llama behind HTTP, with continuous batching, and a client that measures it.

    python examples/serve.py --requests 24            # serves on loopback, asks itself, prints what it saw
    kinetoscope run -o serve.rec -- examples/serve.py --requests 200
    kinetoscope report serve.rec                      # steps by phase and batch

    kinetoscope run --on-request -o live -- examples/serve.py --serve 8000       # until it is ended
    python examples/serve.py --ask 8000 --requests 2000 &
    kinetoscope record live --steps 200               # some steps of it, while it serves

One thread schedules: it admits waiting requests (prefill, one prompt a step) and then decodes one token of
every running request. Keys and values lie in slots of fixed size. On a GPU each batch size's decode is one
CUDA graph. Each step is annotated as vLLM annotates its own, so that any tool knows what it held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import statistics
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
    done: threading.Event = field(default_factory=threading.Event)


class Engine:
    """The scheduler: takes requests from a queue and gives their tokens."""

    def __init__(self, model: Llama, device: str) -> None:
        self.model, self.device = model, device
        some = next(model.parameters())
        self.caches = [
            tuple(torch.zeros(model.shape, device=device, dtype=some.dtype) for _ in "kv")
            for _ in model.blocks
        ]
        self.waiting: queue.Queue[Request] = queue.Queue()
        self.running: list[Request] = []
        self.free = list(range(SLOTS))
        self.graphs: dict[int, tuple] = {}
        self.stopped = False

    @torch.no_grad()
    def capture(self) -> None:
        """One graph for each batch size; the slot of a request that is not there is the last one's."""
        for size in GRAPHED:
            tokens, at = (torch.zeros(size, 1, dtype=torch.long, device=self.device) for _ in range(2))
            slots = torch.zeros(size, dtype=torch.long, device=self.device)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.model(tokens, self.caches, slots, at)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.model(tokens, self.caches, slots, at)
            self.graphs[size] = graph, tokens, slots, at, out

    @torch.no_grad()
    def serve(self) -> None:
        while not self.stopped:
            if self.free and (self.running or not self.waiting.empty()):
                with contextlib.suppress(queue.Empty):
                    self.prefill(self.waiting.get_nowait())
            if self.running:
                self.decode()
            else:
                time.sleep(0.001)

    def prefill(self, request: Request) -> None:
        request.slot = self.free.pop()
        with torch.profiler.record_function(f"execute_context_1({len(request.prompt)})_generation_0(0)"):
            tokens = torch.tensor([request.prompt], device=self.device)
            at = torch.arange(len(request.prompt), device=self.device)[None]
            slots = torch.tensor([request.slot], device=self.device)
            request.tokens.append(int(self.model(tokens, self.caches, slots, at)))
        self.running.append(request)

    def decode(self) -> None:
        batch = self.running
        with torch.profiler.record_function(f"execute_context_0(0)_generation_{len(batch)}({len(batch)})"):
            size = next((s for s in GRAPHED if s >= len(batch)), SLOTS) if self.graphs else len(batch)
            rows = [*batch, *[batch[-1]] * (size - len(batch))]
            tokens = torch.tensor([[r.tokens[-1]] for r in rows])
            at = torch.tensor([[len(r.prompt) + len(r.tokens) - 1] for r in rows])
            slots = torch.tensor([r.slot for r in rows])
            if self.graphs:
                graph, *inputs, out = self.graphs[size]
                for there, here in zip(inputs, (tokens, slots, at), strict=True):
                    there.copy_(here)
                graph.replay()
            else:
                out = self.model(
                    tokens.to(self.device), self.caches, slots.to(self.device), at.to(self.device)
                )
            for request, token in zip(batch, out.tolist(), strict=False):
                request.tokens.append(token)
        for request in [r for r in batch if len(r.tokens) >= r.wanted]:
            self.running.remove(request)
            self.free.append(request.slot)
            request.done.set()


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(asked["prompt"], min(asked["tokens"], LONGEST - len(asked["prompt"])))
            began = time.perf_counter()
            engine.waiting.put(request)
            request.done.wait()
            body = json.dumps({"tokens": request.tokens, "seconds": time.perf_counter() - began}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    return Handler


def ask(
    port: int,
    requests: int,
    at_once: int,
    prompt: int,
    tokens: int,
    words: int,
    over: threading.Event | None = None,
) -> list[float]:
    """Milliseconds per token of each request, as a client sees them."""
    numbers, times = iter(range(requests)), []

    def client() -> None:
        for number in numbers:
            if over is not None and over.is_set():
                return
            body = json.dumps({"prompt": [(number * 7 + n) % words for n in range(prompt)], "tokens": tokens})
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", body.encode()) as answer:
                made = len(json.load(answer)["tokens"])
            times.append(1e3 * (time.perf_counter() - began) / made)

    threads = [threading.Thread(target=client) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--serve", type=int, metavar="PORT", help="serve alone; 0: any port, which is printed"
    )
    parser.add_argument("--ask", type=int, metavar="PORT", help="ask a server that runs")
    parser.add_argument("--until-stdin-ends", action="store_true", help="ask no longer than that")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.ask is None:
        serve(arguments)
    else:
        measure(arguments, arguments.ask)


def serve(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = Llama(arguments.layers, arguments.width, 8, 8000).to(arguments.device).eval()
    if arguments.device == "cuda":
        model.bfloat16()
    engine = Engine(model, arguments.device)
    if arguments.device == "cuda" and not arguments.no_graphs:
        engine.capture()
    threading.Thread(target=engine.serve, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", arguments.serve or 0), handler(engine))
    if arguments.serve is not None:
        print(server.server_address[1], flush=True)
        server.serve_forever()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    measure(arguments, server.server_address[1])
    engine.stopped = True
    server.shutdown()


def measure(arguments: argparse.Namespace, port: int) -> None:
    """Ask the server, and print what a client sees."""
    began = time.perf_counter()
    over = threading.Event()
    if arguments.until_stdin_ends:
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    times = ask(port, arguments.requests, arguments.at_once, arguments.prompt, arguments.tokens, 8000, over)
    took = time.perf_counter() - began
    said = {
        "requests": len(times),
        "output_tokens": len(times) * arguments.tokens,
        "median_tpot_ms": round(statistics.median(times), 3),
        "longest_ms": round(max(times) * arguments.tokens, 1),
        "output_throughput": round(len(times) * arguments.tokens / took, 1),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
