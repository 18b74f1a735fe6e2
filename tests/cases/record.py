"""Record every labelled case on a GPU: `python record.py OUT [--ranks 2] [CASE…]`.

A case is a folder named after its rule, with `before.py` (shows the rule) and `after.py` (the fix). Each is a
plain PyTorch program with `build(device) -> step` and, where the defaults do not do, `RECORD`:

    warmup 5            steps before the profiler starts
    schedule_warmup 1   the profiler's own warm-up steps
    active 3            recorded steps
    schedule True       False: no schedule and no step annotations
    with_stack, shapes, gc_info, compile_log     what is recorded beside the events (shapes are on)
    fresh_process       a process of its own: cold starts, compile logs
    ranks 1             2: one process a GPU, NCCL
    measure "steps"     steady state without the profiler; "recorded": the recorded steps' wall time; "none"
    updates             [class, parameters with gradients] of each optimizer's step in a step
    padding             tokens of a batch, those that are padding, those beyond its longest text
    memory              the allocator's history of the recorded steps, and their peak without the profiler
    drop_device_events  the middle third of the device's events is taken out of the file

It needs torch and nothing of kinetoscope. OUT gets CASE/{before,after}[.rankN].json.gz, CASE/*.compile.log.gz
and `measured.json`: step times without the profiler, wall times with it, NVML readings. Files are trimmed:
flows, short Python frames and arguments that no rule reads are left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import gzip
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DEFAULTS: dict[str, Any] = {
    "warmup": 5,
    "schedule_warmup": 1,
    "active": 3,
    "schedule": True,
    "with_stack": False,
    "shapes": True,
    "gc_info": False,
    "compile_log": False,
    "fresh_process": False,
    "ranks": 1,
    "measure": "steps",
    "drop_device_events": False,
    "memory": False,
    "updates": [],
    "padding": None,
}
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
UNREAD = {
    "Ev Idx",
    "Record function id",
    "queued",
    "kernel_hash",
    "kernel_backend",
    "num_warps",
}
# Records of a compile log that are large and say nothing about breaks, recompilations or CUDA graphs.
UNREAD_RECORDS = re.compile(
    r"^(fx_graph_cache_hit|aotautograd_cache|fx_graph_runnable|aot_forward_graph_fw_metadata|(before|after)_\w+_graph"
    r"|torch._functorch.config|describe_|dynamo_cpp_guards|triton_kernel_info)"
)
# Calls that take part in no analysis and that a busy thread makes thousands of.
UNREAD_CALLS = {
    "cudaEventQuery",
    "cudaThreadExchangeStreamCaptureMode",
    "cudaStreamIsCapturing",
    "cudaGetFuncBySymbol",
}
LONG_EVENT = 900  # characters of a timed phase's record; the long ones carry the whole configuration
SHORT_FRAME_US = 20.0  # Python frames shorter than this are left out of the committed file


def program(case: str, side: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{case}_{side}", HERE / case / f"{side}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def options(case: str, side: str) -> dict[str, Any]:
    """RECORD without running the program (torch is not imported yet in the driver)."""
    import ast

    for node in ast.parse((HERE / case / f"{side}.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "RECORD":
            return DEFAULTS | ast.literal_eval(node.value)
    return DEFAULTS


def clocks() -> dict[str, Any] | None:
    try:
        import pynvml
    except ImportError:
        return None
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }


def steady_state_us(step: Any, synchronize: Any, count: int | None, repeats: int = 5) -> list[float]:
    """Time of a step in µs, without the profiler: `repeats` runs of `count` steps (None: 60 ms of them)."""
    synchronize()
    begin = time.perf_counter()
    step()
    synchronize()
    count = count or max(3, min(300, int(0.06 / max(time.perf_counter() - begin, 1e-6))))
    result = []
    for _ in range(repeats):
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        result.append((time.perf_counter() - begin) / count * 1e6)
    return result


def record(case: str, side: str, out: Path, device: str) -> dict[str, Any]:
    """Run one program, measure it, record it and write its trimmed trace."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    how = options(case, side)
    rank = int(os.environ.get("RANK", 0)) if how["ranks"] > 1 else 0
    on_gpu = device.startswith("cuda")
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    torch.manual_seed(0)
    torch._dynamo.reset()
    if how["memory"]:
        keep_history(True)
    step = program(case, side).build(device)
    result: dict[str, Any] = {"active": how["active"]}
    for _ in range(how["warmup"]):
        step()
    synchronize()
    if how["memory"]:
        keep_history(False)
        torch.cuda.reset_peak_memory_stats()
    if how["measure"] == "steps" or (how["measure"] == "none" and how["warmup"]):
        result["unprofiled_us"] = steady_state_us(step, synchronize, 20 if how["ranks"] > 1 else None)
    if how["memory"]:
        result["peak"] = {
            kind: torch.cuda.memory_stats()[f"{kind}_bytes.all.peak"]
            for kind in ("requested", "allocated", "reserved")
        }
        keep_history(True)
    boundaries: list[int] = []
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    config = torch._C._profiler._ExperimentalConfig(record_python_gc_info=True) if how["gc_info"] else None
    plan = schedule(wait=0, warmup=how["schedule_warmup"], active=how["active"], repeat=1)
    kept: list[Any] = []
    result["clocks"] = [clocks() if on_gpu else None]
    with profile(
        activities=activities,
        schedule=plan if how["schedule"] else None,
        on_trace_ready=kept.append,
        record_shapes=how["shapes"],
        with_stack=how["with_stack"],
        experimental_config=config,
    ) as profiler:
        for i in range((how["schedule_warmup"] if how["schedule"] else 0) + how["active"]):
            if i == how["schedule_warmup"]:
                begin = time.perf_counter()
            boundaries.append(time.time_ns())
            step()
            if how["schedule"]:
                profiler.step()
    synchronize()
    if how["memory"]:
        write_memory(out / case, side, [*boundaries[how["schedule_warmup"] :], time.time_ns()])
    # The last prof.step() stops the profiler: this wall time contains its flush, so it is kept only where it
    # is the measurement itself (cold starts).
    result["recorded_wall_us"] = (time.perf_counter() - begin) / how["active"] * 1e6
    result["clocks"].append(clocks() if on_gpu else None)
    raw = out / f"{case}.{side}.{os.getpid()}.raw.json"
    profiler.export_chrome_trace(str(raw))
    name = f"{side}.rank{rank}.json.gz" if how["ranks"] > 1 else f"{side}.json.gz"
    (out / case).mkdir(exist_ok=True)
    result["bytes"] = trim(raw, out / case / name, how)
    raw.unlink()
    return result


def keep_history(on: bool) -> None:
    """The allocator's history, anew; blocks that live on keep their stacks."""
    import torch

    torch.cuda.memory._record_memory_history(
        "all" if on else None, context="alloc", stacks="python", max_entries=100_000, clear_history=True
    )


def write_memory(folder: Path, side: str, boundaries_ns: list[int]) -> None:
    """The snapshot, and what kinetoscope would ask the program beside it (recording/memory.py)."""
    import pickle

    import torch

    tensors: list[dict[str, Any]] = []
    for module in [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]:
        for name, parameter in module.named_parameters(recurse=False):
            for role, tensor in (("parameter", parameter), ("gradient", parameter.grad)):
                if tensor is not None and tensor.is_cuda:
                    place = {"address": tensor.untyped_storage().data_ptr(), "bytes": tensor.nbytes}
                    tensors.append({"role": role, "name": name, "device": 0, **place})
    folder.mkdir(exist_ok=True)
    content = pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)
    (folder / f"{side}.memory.pickle.gz").write_bytes(gzip.compress(content, 9))
    held = {"schema": "kinetoscope.memory/1", "boundaries_ns": boundaries_ns, "tensors": tensors}
    (folder / f"{side}.memory.json").write_text(json.dumps(held))


def trim(raw: Path, to: Path, how: dict[str, Any]) -> int:
    document = json.loads(raw.read_text())
    events = []
    device = sorted(
        (e for e in document["traceEvents"] if e.get("cat") in DEVICE_WORK), key=lambda event: event["ts"]
    )
    third = len(device) // 3
    dropped = {id(e) for e in device[third : 2 * third]} if how["drop_device_events"] else set()
    for event in document["traceEvents"]:
        if event.get("ph") not in ("X", "M", "i") or id(event) in dropped:
            continue
        if event["name"] in UNREAD_CALLS:
            continue
        if event.get("cat") == "python_function" and event["dur"] < SHORT_FRAME_US:
            continue
        if "args" in event:
            event["args"] = {k: v for k, v in event["args"].items() if k not in UNREAD}
        events.append(event)
    document["traceEvents"] = events
    data = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0)
    to.write_bytes(data)
    return len(data)


def one(case: str, side: str, out: Path, device: str) -> dict[str, Any]:
    """`record`, with a failure turned into its text: one broken case must not cost the others."""
    try:
        return record(case, side, out, device)
    except Exception:
        return {"error": traceback.format_exc()[-2000:]}


def child(case: str, side: str, out: Path, device: str, extra: dict[str, str]) -> dict[str, Any]:
    """One program in a process of its own."""
    environment = dict(os.environ, **extra)
    log = out / f"{case}.{side}.torch_trace"
    if options(case, side)["compile_log"]:
        environment["TORCH_TRACE"] = str(log)
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(out / f"{case}.{side}.cache")
    answer = out / f"{case}.{side}.{extra.get('RANK', 0)}.answer.json"
    command = [
        sys.executable,
        __file__,
        str(out),
        "--one",
        case,
        side,
        "--device",
        device,
        "--answer",
        str(answer),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    result = json.loads(answer.read_text()) if answer.exists() else {"error": done.stderr[-2000:]}
    for written in sorted(log.glob("*.log")) if log.is_dir() else ():
        text = trim_log(written.read_text())
        (out / case / f"{side}.compile.log.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return result


def trim_log(text: str) -> str:
    """A compile log without the records that no rule reads. A record is a line with JSON and its payload,
    indented. Of the cache misses, which hold the whole configuration each, the first stays."""
    kept = []
    missed = False
    for record in re.split(r"^(?=[VIWE]\d{4} )", text, flags=re.MULTILINE):
        head = record.split("\n", 1)[0]
        found = re.search(r"\] (\{.*\})$", head)
        fields = json.loads(found[1]) if found else {}
        name = fields["artifact"]["name"] if "artifact" in fields else next(iter(fields), "")
        if UNREAD_RECORDS.search(name) or (name == "chromium_event" and len(record) > LONG_EVENT):
            continue
        if missed and name == "fx_graph_cache_miss":
            continue
        missed = missed or name == "fx_graph_cache_miss"
        kept.append(record)
    return "".join(kept)


def distributed(case: str, side: str, out: Path, ranks: int, port: int) -> list[dict[str, Any]]:
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        jobs = [
            pool.submit(child, case, side, out, f"cuda:{r}", shared | {"RANK": str(r), "LOCAL_RANK": str(r)})
            for r in range(ranks)
        ]
        return [job.result() for job in jobs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--ranks", type=int, default=1, help="2: record only the cases of two ranks")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    if arguments.one:
        case, side = arguments.one
        if options(case, side)["ranks"] > 1:
            import torch

            torch.cuda.set_device(arguments.device)
            torch.distributed.init_process_group("nccl")
        arguments.answer.write_text(json.dumps(one(case, side, out, arguments.device)))
        if options(case, side)["ranks"] > 1:
            torch.distributed.destroy_process_group()
        return

    cases = arguments.cases or sorted(p.name for p in HERE.iterdir() if (p / "after.py").exists())
    pairs = [(c, s) for c in cases for s in ("before", "after") if (HERE / c / f"{s}.py").exists()]
    pairs = [p for p in pairs if (options(*p)["ranks"] > 1) == (arguments.ranks > 1)]
    measured: dict[str, Any] = {}
    table = out / "measured.json"
    if table.exists():
        measured = json.loads(table.read_text())

    def keep(case: str, side: str, result: Any) -> None:
        measured.setdefault(case, {})[side] = result
        table.write_text(json.dumps(measured, indent=1))
        first = result[0] if isinstance(result, list) else result
        times = first.get("unprofiled_us")
        print(
            case,
            side,
            f"{statistics.median(times):.1f} us" if times else "",
            first.get("error", ""),
            flush=True,
        )

    if arguments.ranks > 1:
        for i, (case, side) in enumerate(pairs):
            keep(case, side, distributed(case, side, out, arguments.ranks, 29500 + i))
        return
    alone = [p for p in pairs if options(*p)["fresh_process"]]
    # Compilers in parallel (their clock is not the measurement); cold starts one by one.
    parallel = [p for p in alone if options(*p)["compile_log"]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for (case, side), result in zip(
            parallel, pool.map(lambda p: child(*p, out, arguments.device, {}), parallel), strict=True
        ):
            keep(case, side, result)
    for case, side in alone:
        if (case, side) not in parallel:
            keep(case, side, child(case, side, out, arguments.device, {}))
    for case, side in pairs:
        if (case, side) not in alone:
            keep(case, side, one(case, side, out, arguments.device))
            gc.unfreeze()
            gc.collect()
            with contextlib.suppress(ImportError):
                import torch

                if torch.cuda.is_available():
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
