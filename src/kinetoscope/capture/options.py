"""The options of a recording: flags of ``kinetoscope run`` and keywords of ``kinetoscope.profile``."""

from __future__ import annotations

from typing import Annotated, get_type_hints

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a recording: each with the help that the command line prints."""

    steps: Annotated[int | None, "record this many steps (3, more where steps are very short)"] = None
    warmup: Annotated[int | None, "let N steps pass first (otherwise: until the step time has settled)"] = (
        None
    )
    on_request: Annotated[
        bool,
        "for a server: record nothing until `kinetoscope record` requests it, of the program or of processes "
        "that it starts; needs Linux",
    ] = False
    whole: Annotated[
        bool, "record everything, from the import of torch (or the block's start) to the end"
    ] = False
    one_pass: Annotated[
        bool, "record once, the host and the device together, and not the device alone as well"
    ] = False
    range: Annotated[str | None, "record only inside torch.profiler.record_function(NAME)"] = None
    step: Annotated[
        str | None,
        "what a step is: iteration, optimizer, request, module, compiled, graph, range or loop, or the name "
        "of a module's class or attribute, an optimizer's class or a range (`kinetoscope steps` lists them)",
    ] = None
    shapes: Annotated[bool, "record the shapes of operators' inputs"] = False
    stacks: Annotated[bool, "record Python stacks"] = False
    lines: Annotated[
        bool,
        "note, in one more step and with Python's trace function, from which line of the program each op is "
        "called (a block that is recorded whole: only where profile() is given this, and then in all of it)",
    ] = True
    graphs: Annotated[
        bool,
        "record how CUDA graphs are captured, each once, so that the kernels of their replays have ops and "
        "lines",
    ] = False
    memory: Annotated[
        bool, "record allocations, and what the device's memory holds at its peak and when it runs out"
    ] = False
    flops: Annotated[bool, "record FLOPs of matmuls and convolutions (implies the shapes)"] = False
    compile_log: Annotated[bool, "keep torch.compile's log and generated code"] = True
    source: Annotated[bool, "keep the source of the program's own modules"] = True
    provenance: Annotated[
        bool,
        "have Inductor note the source lines of each kernel (for this it compiles again what a plain run has "
        "cached)",
    ] = True
    bench_harness: Annotated[bool, "have Inductor write a benchmark into each generated file"] = False
    kernel_inputs: Annotated[
        bool,
        "in one more step, keep the integers that generated kernels are called with (they are the program's "
        "data: token ids, indices; up to 64 MiB) and the sources of hand-written Triton kernels, for `bench`",
    ] = False
    ranks: Annotated[
        str,
        "of a launcher's ranks, those to record: all, first, hosts (the first of each) or a list (0,3,8-15)",
    ] = "all"
    budget_mb: Annotated[int, "memory that a whole recording may take, in MB (1000)"] = 1000
    careful: Annotated[
        bool,
        "record as cautiously as possible: no recording of the first steps, nothing detached, no compile log",
    ] = False

    def __post_init__(self) -> None:
        if self.careful and self.compile_log:
            msgspec.structs.force_setattr(self, "compile_log", False)


def described() -> dict[str, tuple[object, str]]:
    """Each option's default and help."""
    hints = get_type_hints(Options, include_extras=True)
    return {
        field.name: (field.default, hints[field.name].__metadata__[0])
        for field in msgspec.structs.fields(Options)
    }
