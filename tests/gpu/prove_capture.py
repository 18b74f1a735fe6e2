"""Prove capture on a GPU: right recordings of every example, the price of recording, the price of waiting.

    PYTHONPATH=src python tests/gpu/prove_capture.py OUT

writes each recording to OUT/recordings as a .tar.gz and a table to stdout and OUT/table.txt. About three
minutes.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import proving

LARGE = "--dim 1024 --layers 4 --heads 16 --batch 8 --length 512 --dtype bfloat16"
PROGRAMS = {
    "train-eager": f"llama.py {LARGE} --steps 40",
    "train-compiled": f"llama.py {LARGE} --steps 40 --compile",
    "generate-eager": "llama.py --generate --dim 512 --layers 8 --dtype bfloat16 --steps 60",
    "generate-compiled": "llama.py --generate --dim 512 --layers 4 --dtype bfloat16 --steps 60 --compile",
    "matmul-eager": "matmul_add.py --size 4096",
    "matmul-compiled": "matmul_add.py --size 4096 --compile",
    "forum-eager": "forum.py",
    "forum-compiled": "forum.py --compile",
    "forum-max-autotune": "forum.py --compile --mode max-autotune",
    "attention-reduce-overhead": "attention.py --mode reduce-overhead --dim 1024 --length 128 --steps 40",
    "dataloader": "dataloader.py --workers 4",
}


def record(name: str, out: Path) -> str:
    """Run one example under `kinetoscope run`, pack the recording, and describe it in a line."""
    script, *words = PROGRAMS[name].split()
    folder, done, seconds = proving.record_and_pack(name, out, proving.ROOT / "examples" / script, *words)
    (out / f"{name}.stderr.txt").write_text(done.stdout + done.stderr)
    if not (folder / "manifest.json").is_file():
        return f"{name:<26} no recording, status {done.returncode}"
    rank = json.loads((folder / "manifest.json").read_text())["ranks"][0]
    steps = rank.get("steps", {})
    plain, under = steps.get("unprofiled_s", []), steps.get("profiled_s", [])
    events = json.loads((folder / rank["trace"]).read_text())["traceEvents"] if "trace" in rank else []
    kernels = sum(event.get("cat") == "kernel" for event in events)
    marks = sum(event.get("cat") == "user_annotation" and "ProfilerStep" in event["name"] for event in events)
    mean = [f"{1e3 * sum(s) / len(s):9.3f}" if s else "        -" for s in (plain, under)]
    return (
        f"{name:<26} status {done.returncode}  {steps.get('found_by', 'whole'):<9} "
        f"steps {len(under):>2} marks {marks:>2} kernels {kernels:>6} "
        f"ms/step {mean[0]} profiled {mean[1]}  {seconds:5.1f} s"
    )


def price(out: Path) -> list[str]:
    """In one process, alternating: steps with nothing, with torch.profiler, with ours; and waiting against
    nothing."""
    sys.path.insert(0, str(proving.ROOT / "examples"))
    import llama
    import matmul_add
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    import kinetoscope
    from kinetoscope.capture.options import Options
    from kinetoscope.capture.recorder.profiler import TorchDevice

    def trainer():
        model = llama.Llama(1000, 1024, 4, 16).to("cuda", torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(1000, (8, 513), device="cuda")

        def step():
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        return step

    def generator():
        model = llama.Llama(1000, 512, 8, 8).to("cuda", torch.bfloat16)
        tokens = torch.randint(1000, (1, 32), device="cuda")

        @torch.no_grad()
        def step():
            model(tokens)

        return step

    def matmul():
        x, w, b = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        run = torch.compile(matmul_add.fn)
        return lambda: run(x, w, b)

    lines: list[str] = []
    trace = out / "price.json"
    for name, make in {"train": trainer, "generate": generator}.items():
        step = make()
        for _ in range(10):
            step()
        torch.cuda.synchronize()

        def nothing(step=step):
            for _ in range(6):
                step()
            torch.cuda.synchronize()

        def plain(step=step):
            kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            with profile(activities=kinds, schedule=schedule(wait=0, warmup=1, active=5, repeat=1)) as p:
                for _ in range(6):
                    step()
                    p.step()
            p.export_chrome_trace(str(trace))

        def ours(step=step):
            session = TorchDevice(Options(), None).session(kind="full", any_thread=False)
            session.prepare()
            step()
            torch.cuda.synchronize()
            session.start()
            for index in range(5):
                session.mark(index)
                step()
            torch.cuda.synchronize()
            session.mark(None)
            session.stop()
            session.export(trace)

        times: dict[str, list[float]] = {"nothing": [], "torch.profiler": [], "kinetoscope": []}
        for _ in range(9):
            for what, act in (("nothing", nothing), ("torch.profiler", plain), ("kinetoscope", ours)):
                began = time.perf_counter()
                act()
                times[what].append(time.perf_counter() - began)
        figures = "  ".join(
            f"{what} {1e3 * median(s[1:]):8.2f} ms (min {1e3 * min(s):.2f})" for what, s in times.items()
        )
        lines.append(f"recording 5 steps and writing them, {name:<9} {figures}")

    for name, make, count in (
        ("train", trainer, 60),
        ("generate", generator, 300),
        ("compiled 64x64", matmul, 4000),
    ):
        step = make()
        for _ in range(20):
            step()
        torch.cuda.synchronize()

        def timed(count=count, step=step) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            return (time.perf_counter() - began) / count

        before = median(timed() for _ in range(3))
        # Waiting, against the same process in the same state but for the sources of steps.
        plain_s: list[float] = []
        waiting_s: list[float] = []
        with kinetoscope.profile(out=out / "work" / f"wait-{name.split()[0]}", warmup=10**9) as p:
            for _ in range(30):  # past the provisional recording
                step()
            session = p._session
            for _ in range(11):
                waiting_s.append(timed())
                session.sources.suspend()
                plain_s.append(timed())
                session.sources.resume()
        slower = median(b / a - 1 for a, b in zip(plain_s, waiting_s, strict=True))
        lines.append(
            f"waiting, {name:<15} {1e6 * median(plain_s):9.2f} us per step, "
            f"waiting {1e6 * median(waiting_s):9.2f} us: {100 * slower:+.2f} % "
            f"(median of 11 pairs of {count} steps; "
            f"plain spread {100 * (max(plain_s) / min(plain_s) - 1):.1f} %; before any recording "
            f"{1e6 * before:.2f} us; {session.recorder.detector.leader[0]}, {session.recorder.phase.name})"
        )
    return lines


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("--only-price", action="store_true")
    options = parser.parse_args()
    out: Path = options.out
    if options.only_price:
        print("\n".join(price(out)))
        return
    with ThreadPoolExecutor(4) as pool:
        lines = list(pool.map(lambda name: record(name, out), PROGRAMS))
    priced = proving.python(__file__, out, "--only-price")
    lines += priced.stdout.splitlines() or [priced.stderr[-3000:]]
    proving.show(out, lines)


if __name__ == "__main__":
    main()
