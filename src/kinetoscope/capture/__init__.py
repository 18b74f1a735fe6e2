"""Running a program and recording it, without a change to the program.

    process/          `run` starts the program; in it a bootstrap waits for torch, then begins to record
    live/             `record` has a server's steps recorded while it serves
    api.py            `kinetoscope.profile` records a block, `kinetoscope.listen` waits to be recorded
    options.py        the options of a recording, declared once
    steps/            sources tick, the detector says which of them marks steps; what steps take
    recorder/         from step to step: watch, settle, time, record in one pass or two, time again
    compiler/         what torch.compile and Triton made, in addition to the trace
    hooks/            noticing what the program imports and calls
    torch_private.py  every private name of torch's that this needs
    checkup.py        what a profiler can see on this machine

All of it runs inside the user's process, but for the checkup and `run` itself (process/launch.py).
"""
