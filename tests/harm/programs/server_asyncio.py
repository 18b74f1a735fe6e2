# A server by asyncio: requests wait in a queue, batches run in an executor's thread.
# needs: cpu
import asyncio
from concurrent.futures import ThreadPoolExecutor

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(device).eval()
executor = ThreadPoolExecutor(1)


@torch.inference_mode()
def run(batch):
    return model(torch.stack(batch).to(device)).cpu()


async def serve(queue):
    loop = asyncio.get_running_loop()
    while True:
        waiting = [await queue.get() for _ in range(4)]
        answers = await loop.run_in_executor(executor, run, [x for x, _ in waiting])
        for (_, future), answer in zip(waiting, answers, strict=True):
            future.set_result(answer)


async def client(queue, number):
    generator = torch.Generator().manual_seed(number)
    total = torch.zeros(8)
    for _ in range(20):
        future = asyncio.get_running_loop().create_future()
        await queue.put((torch.randn(32, generator=generator), future))
        total += await future
    return f"{number} {total.sum().item():.4f}"


async def main():
    queue = asyncio.Queue()
    server = asyncio.create_task(serve(queue))
    print(await asyncio.gather(*(client(queue, number) for number in range(8))))
    server.cancel()
    try:
        await server
    except asyncio.CancelledError:
        print("stopped")


asyncio.run(main())
executor.shutdown()
print(fingerprint.weights(model), fingerprint.draws())
