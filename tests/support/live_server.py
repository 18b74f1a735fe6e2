"""A server for tests, by threads, asyncio, or with a worker that is spawned or forked: `live_server.py KIND`.

It prints its port. Each line that a client sends is a number, each answer what a small model makes of it; an
empty line ends the server. One step is one call of the model.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socketserver
import sys
import threading

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@torch.inference_mode()
def answer(model: Model, line: str) -> str:
    return f"{model(torch.full((4, 16), float(line))).sum().item():.6f}"


class Served:
    """A model behind a lock, here or in another process."""

    def __init__(self, kind: str) -> None:
        self.lock, self.pipe, self.model = threading.Lock(), None, None
        if kind in ("spawn", "fork"):
            context = multiprocessing.get_context(kind)
            self.pipe, other = context.Pipe()
            self.worker = context.Process(target=work, args=(other,))
            self.worker.start()
        else:
            self.model = Model()

    def __call__(self, line: str) -> str:
        with self.lock:
            if self.pipe is None:
                return answer(self.model, line)
            self.pipe.send(line)
            return self.pipe.recv()

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.send("")
            self.worker.join()


def work(pipe) -> None:
    model = Model()
    while line := pipe.recv():
        pipe.send(answer(model, line))


def by_threads(served: Served) -> None:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                if not line.strip():
                    threading.Thread(target=self.server.shutdown).start()
                    return
                self.wfile.write(served(line.decode()).encode() + b"\n")

    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], os.getpid(), flush=True)
        server.serve_forever()


async def by_asyncio(served: Served) -> None:
    stopped = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if not line.strip():
                stopped.set()
                break
            writer.write(served(line.decode()).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], os.getpid(), flush=True)
    await stopped.wait()
    server.close()


def main(kind: str) -> None:
    served = Served(kind)
    if kind == "asyncio":
        asyncio.run(by_asyncio(served))
    else:
        by_threads(served)
    served.close()
    print("served")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
