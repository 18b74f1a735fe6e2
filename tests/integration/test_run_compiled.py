"""A compiled program under `run` prints what it prints without, from the caches that it filled without."""

from __future__ import annotations

import pytest

from programs import Programs

pytestmark = pytest.mark.timeout(1200)  # both of its programs compile, which took 217 s on a busy machine

# Prints its results, the files that its code came from, what Dynamo counted; last, hits and misses of caches.
PROGRAM = """
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor.codecache import PyCodeCache

    @torch.compile
    def f(x, y):
        return {graph}

    torch.manual_seed(0)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    for rows in {rows}:
        print(f(x[:rows], y).tolist())
    print(sorted(module.__file__ for module in PyCodeCache.modules))
    print([sorted(counters[what].items()) for what in ("frames", "stats", "graph_break", "unimplemented")])
    for what in ("hit", "miss"):
        inductor, autograd = counters["inductor"], counters["aot_autograd"]
        print(inductor["fxgraph_cache_" + what], autograd["autograd_cache_" + what])
"""


@pytest.mark.parametrize(
    ("graph", "rows"),
    [
        ("x @ y", (8, 8)),
        pytest.param("torch.relu(x @ y).sum(dim=0) + 1", (8, 8, 4, 2), marks=pytest.mark.slow),
    ],
)
def test_a_compiled_program_finds_its_caches_as_a_plain_run_does(
    graph: str, rows: tuple[int, ...], programs: Programs
) -> None:
    programs.limit_s = 590
    script = str(programs.write(PROGRAM.format(graph=graph, rows=rows)))
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(programs.home / "cache")}
    cold = programs.plain(script, **cache)
    run = programs.record("--no-provenance", script, **cache)
    assert (cold.status, run.status) == (0, 0), cold.err + run.err
    *printed, hits, misses = cold.out.splitlines()
    assert hits == "0 0"
    assert run.out.splitlines() == [*printed, misses, hits]
    assert run.rank["trace"]
    assert run.rank["compile_log"]
