"""What the user asks of a recording."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``kinetoscope run`` and ``kinetoscope.profile``.

    Attributes:
        steps: how many steps to record with the profiler; None: 3, more where a step is very short.
        warmup: how many steps to let pass first; None: until the step time has settled.
        whole: record everything, from the import of torch (or the block's start) to the end.
        one_pass: record once, the host and the device together; otherwise, where it can, a second, light pass
            records the device alone.
        range: record only inside ``torch.profiler.record_function`` blocks of this name.
        shapes, stacks, memory, flops: what torch.profiler's record_shapes, with_stack, profile_memory and
            with_flops add, each at a price in recording time; ``memory`` keeps the history of the device's
            allocator as well.
        compile_log: keep torch.compile's structured log and the generated code.
        source: keep the source of the program's own modules, and of what was compiled.
        provenance: have Inductor write down which of the user's lines each kernel comes from (changes its
            cache keys too: what a plain run compiled is compiled again, once).
        bench_harness: have Inductor write a benchmark into each generated file (changes its cache keys).
        kernel_inputs: keep what kernels are called with in one more step: integer and boolean tensors of
            generated kernels (up to 64 MiB, the program's own data), sources and arguments of hand-written
            Triton kernels.
        ranks: which ranks of a launched program to record: all, first, hosts (the first of each), or a list
            of them (0,3,8-15).
        budget_mb: stop a recording of the whole program when the process has grown by this much.
        careful: record as cautiously as possible: not the first steps, nothing detached; without the compile
            log, whatever ``compile_log`` says.
    """

    steps: int | None = None
    warmup: int | None = None
    whole: bool = False
    one_pass: bool = False
    range: str | None = None
    shapes: bool = False
    stacks: bool = False
    memory: bool = False
    flops: bool = False
    compile_log: bool = True
    source: bool = True
    provenance: bool = True
    bench_harness: bool = False
    kernel_inputs: bool = False
    ranks: str = "all"
    budget_mb: int = 1000
    careful: bool = False

    def __post_init__(self) -> None:
        if self.careful and self.compile_log:
            msgspec.structs.force_setattr(self, "compile_log", False)
