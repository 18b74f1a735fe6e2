"""What other tools take for the same input, and what they say of it: the table of docs/evidence/peers.md.

    python benchmarks/peers.py [--peers PY] [--rounds 3] [--write]

PY is an interpreter that has them, in an environment of its own: `pip install HolisticTraceAnalysis tlparse
memray torch-tb-profiler git+https://github.com/AMD-AGI/TraceLens`.
A tool that is not there is left out, and said to be. Each row is a process of its own, the best of the
rounds: the CPU time of it and its children, and the most memory that one process of them had. What is kept
between runs is turned off. With --write the table goes into the page.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
PAGE = ROOT / "docs" / "evidence" / "peers.md"
BEGINS, ENDS = "<!-- measured -->\n", "<!-- end of what was measured -->"
STRAGGLER = """
import sys; from hta.trace_analysis import TraceAnalysis
t = TraceAnalysis(trace_dir=sys.argv[1])
print("stragglers", t.get_potential_stragglers(num_candidates=1))
"""
IDLE = """
import sys; from hta.trace_analysis import TraceAnalysis
t = TraceAnalysis(trace_dir=sys.argv[1])
print(t.get_idle_time_breakdown(ranks=[0, 1], visualize=False)[0].to_string())
"""
KERNELS = """
import sys; from hta.trace_analysis import TraceAnalysis
t = TraceAnalysis(trace_dir=sys.argv[1])
print(t.get_temporal_breakdown(visualize=False).to_string())
print(t.get_gpu_kernel_breakdown(visualize=False)[0].to_string())
"""
# What the plugin does before a page of TensorBoard asks it: in processes of its own, which import this file.
PLUGIN = """
import sys
if __name__ == "__main__":
    from torch_tb_profiler.io.cache import Cache
    from torch_tb_profiler.profiler import RunLoader
    for profile in RunLoader("run", sys.argv[1], Cache()).load().profiles.values():
        print(profile.overview["performance"], profile.overview["recommendations"])
"""
GROWS = """
kept = []
def grow():
    kept.append(bytearray(100_000))
for _ in range(300):
    grow()
"""


def measured(command: list[str], rounds: int) -> tuple[float, float, str] | str:
    """Seconds of CPU, megabytes at most, and what was printed; where it failed, the last line that was."""
    best: tuple[float, float, str] | None = None
    for _ in range(rounds):
        with tempfile.TemporaryFile() as out:
            running = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=_environment())
            _, status, used = os.wait4(running.pid, 0)
            seconds = used.ru_utime + used.ru_stime
            out.seek(0)
            said = out.read().decode(errors="replace")
        if status:
            return said.strip().splitlines()[-1]
        if best is None or seconds < best[0]:
            best = seconds, used.ru_maxrss / 1024, said
    return best or "not run"


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "KINETOSCOPE_CACHE": "0", "COLUMNS": "100"}


def cases(peers: str, work: Path) -> dict[str, dict[str, list[str]]]:
    """Question → tool → command; the inputs are laid out as each tool wants them."""
    ours = [sys.executable, "-m", "kinetoscope"]
    ranks = work / "ranks"
    ranks.mkdir()
    for rank in (0, 1):
        shutil.copy(FIXTURES / "h200-dist" / f"ddp_straggler_rank{rank}.json.gz", ranks)
    one = work / "one"
    one.mkdir()
    shutil.copy(FIXTURES / "h200" / "llama_train_eager.json.gz", one)
    log = work / "recompile.log"
    log.write_bytes(gzip.decompress((FIXTURES / "compile-logs" / "recompile.log.gz").read_bytes()))
    plugin = work / "plugin"
    plugin.mkdir()
    shutil.copy(FIXTURES / "h200" / "llama_train_eager.json.gz", plugin / "worker0.1.pt.trace.json.gz")
    (work / "plugin.py").write_text(PLUGIN)
    (work / "grows.py").write_text(GROWS)
    grown = str(work / "grown.bin")
    programs = Path(peers).parent
    tlparse = str(programs / "tlparse")
    lens = str(programs / "TraceLens_generate_{}_report_pytorch")
    return {
        "two ranks: who is late?": {
            "kinetoscope report": [*ours, "report", str(ranks)],
            "HTA, potential stragglers": [peers, "-c", STRAGGLER, str(ranks)],
            "HTA, idle time": [peers, "-c", IDLE, str(ranks)],
            "TraceLens, collectives of ranks": [
                lens.format("multi_rank_collective"),
                *("--trace_pattern", str(ranks / "ddp_straggler_rank*.json.gz"), "--world_size", "2"),
                *("--output_csvs_dir", str(work / "lens_ranks")),
            ],
        },
        "one training step: where did the time go?": {
            "kinetoscope report": [*ours, "report", str(one / "llama_train_eager.json.gz")],
            "HTA, temporal and kernel breakdown": [peers, "-c", KERNELS, str(one)],
            "TraceLens, perf report": [
                lens.format("perf"),
                *("--profile_json_path", str(one / "llama_train_eager.json.gz")),
                *("--output_csvs_dir", str(work / "lens_one")),
            ],
            "TensorBoard plugin, all its pages": [peers, str(work / "plugin.py"), str(plugin)],
        },
        "a compile log: what was compiled?": {
            "kinetoscope graphs": [*ours, "graphs", str(log)],
            "tlparse": [tlparse, str(log), "-o", str(work / "tl"), "--overwrite", "--no-browser"],
        },
        "the host's memory grows: which line?": {
            "memray run": [peers, "-m", "memray", "run", "-fqo", grown, str(work / "grows.py")],
            "memray stats": [peers, "-m", "memray", "stats", grown],
        },
    }


def table(peers: str, rounds: int) -> str:
    lines = ["| question | tool | CPU seconds | memory |", "|---|---|--:|--:|"]
    with tempfile.TemporaryDirectory() as folder:
        for question, tools in cases(peers, Path(folder)).items():
            for tool, command in tools.items():
                if shutil.which(command[0]) is None:
                    lines.append(f"| {question} | {tool} | not here | |")
                    continue
                found = measured(command, rounds)
                if isinstance(found, str):
                    lines.append(f"| {question} | {tool} | failed: `{found[:80]}` | |")
                    continue
                seconds, megabytes, said = found
                lines.append(f"| {question} | {tool} | {seconds:.1f} | {megabytes:,.0f} MB |")
                print(f"== {tool}\n{said}", file=sys.stderr)
    today = datetime.date.today().isoformat()
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {today}"
    return "\n".join([*lines, "", f"{where}; the load at the end was {os.getloadavg()[0]:.0f}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    text = table(chosen.peers, chosen.rounds)
    print(text)
    if chosen.write:
        page = PAGE.read_text("utf-8")
        before, _, rest = page.partition(BEGINS)
        PAGE.write_text(f"{before}{BEGINS}{text}{ENDS}{rest.partition(ENDS)[2]}", "utf-8")


if __name__ == "__main__":
    main()
