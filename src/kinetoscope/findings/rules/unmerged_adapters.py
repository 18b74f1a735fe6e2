"""Adapters are computed next to their layers in each forward pass, though they could be part of the weights.

What it finds
    Low-rank adapters (LoRA) in a program that does not train: after a layer's product two thin ones, a
    scaling and a sum, for many layers.

Why it is slow
    Four small kernels for each adapter of each layer, which cost more to launch than to run; the layer's own
    product is one.

How it decides
    By the order of kernels on a stream: two products without bias in a row, both of ``aten::linear``, then
    ``aten::mul`` and ``aten::add``, ten times or more in each step. That all that comes uses the same
    adapters is the condition of the saving: a server of several needs them apart.

What to do
    Add the adapters' products to the weights once: ``model.merge_and_unload()`` in PEFT,
    ``pipe.fuse_lora()`` in diffusers.

Source
    Hu et al., "LoRA" (2021), section 4.1: no additional latency where they are merged; Hugging Face PEFT and
    diffusers, "merge adapters".
"""

from kinetoscope.findings.rule import *

LAYER = r"^aten::linear$"
PARTS = ("mm", "mm", "mul", "add")
MANY = 10  # in a step


def find(view: RankView) -> Findings:
    if view.on_cpu or not matching(view.trace.host_events, "name", LAYER).any() or trains(view):
        return
    work = view.work.filter(view.work["kind"] == "kernel").sort("device", "stream", "start_ns")
    layer = view.around(LAYER)
    name = work["op_name"].cast(pl.String).str.strip_prefix("aten::")
    product = (name == "mm") & layer.gather(work["op"]).is_not_null()
    kinds = work.select("id", "step", "op", kind=pl.when(product | name.is_in(PARTS[2:])).then(name))
    begins = pl.all_horizontal(
        *(pl.col("kind").shift(-place) == part for place, part in enumerate(PARTS)),
        pl.col("step").shift(1 - len(PARTS)) == pl.col("step"),
    )
    rows = kinds.with_row_index("row").filter(begins)["row"]
    if len(rows) < MANY * view.steps:
        return
    adapters = work[pl.concat([rows + place for place in range(len(PARTS))]).unique().sort()]
    saving = savings.device(view, adapters, "the adapters' kernels, and their launches", "duration_ns")
    number = view.counted(len(rows), "adapter")
    yield Finding(
        title=f"{number} per {view.unit} are computed next to their layers, each by four kernels",
        affected_us=view.us_of(adapters),
        saving=savings.if_so(saving, "all that comes uses the same adapters"),
        evidence=[evidence.of(view, f"{len(adapters)} kernels of thin products, scaling and sums", adapters)],
        advice="Add the adapters to the weights once.",
        snippet="model = model.merge_and_unload()  # PEFT; in diffusers: pipe.fuse_lora()",
        at_least="info",
        source=evidence.source(view, adapters["op"]),
    )
