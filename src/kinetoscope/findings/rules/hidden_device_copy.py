"""A copy that is not in the program's code, before a matrix product.

What it finds
    ``Memcpy DtoD`` right before a GEMM, launched by the same op: ``addmm`` copies its bias into the output,
    which the GEMM then adds to.

Why it is slow
    The output is written, read and written again. The "fusion" of the addition into the product is one of
    names: the memory traffic of the addition is still there.

How it decides
    On one stream, a device-to-device copy whose next work (memsets aside) is a matrix product of the same op,
    or of the same graph launch.

What to do
    Give ``addmm`` a bias of one row (cuBLASLt adds that while it writes). For a full matrix, let a template
    do it: ``mode="max-autotune"`` can fold the addition into a Triton matmul. Or add in place afterwards, if
    the result is used by a fused kernel anyway.

Source
    "Profiling in PyTorch", part 1: "Do the CUDA launches go down by half?"
"""

from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    copies = view.kernels(r"^Memcpy DtoD")
    if copies.is_empty():
        return
    key = ["device", "stream"]
    ordered = (
        view.work.select("id", *key, "kind", "start_ns", "category", "op", "correlation")
        .filter(pl.col("kind") != "memset")
        .sort(*key, "start_ns")
    )
    same = {name: pl.col(name) == pl.col(name).shift(-1) for name in (*key, "op", "correlation")}
    hidden = ordered.filter(
        matching(ordered, "category", "^matmul$").shift(-1),
        pl.all_horizontal(same[name] for name in key),
        same["op"] | same["correlation"],
        pl.col("id").is_in(copies["id"].implode()),
    )
    if hidden.is_empty():
        return
    hidden = hidden.select("id").join(copies, on="id", maintain_order="left")
    megabytes = view.per_step(int(hidden["bytes"].sum())) / 1e6
    ops = hidden["op_name"].cast(pl.String).drop_nulls().unique().sort()
    names = ops.filter(~ops.str.starts_with("## Call")).to_list()
    number = view.counted(len(hidden), "hidden device-to-device copy")
    yield Finding(
        title=f"{number} per {view.unit} before a matrix product "
        f"({megabytes:.1f} MB; in {', '.join(names[:2]) or 'a CUDA graph'})",
        saving=savings.device(view, hidden, "the copies' own time", saved="duration_ns"),
        evidence=[evidence.of(view, "copies that seed a GEMM's output", hidden)],
        advice="A bias of one row needs no copy; for a full matrix let max-autotune fold the addition into a "
        "template.",
        snippet='torch.compile(fn, mode="max-autotune")',
        source=evidence.source(view, hidden["op"]),
        proof=commands.tune(view, mode="max-autotune"),
    )
