"""Running a program and recording it, without a change to the program.

    launch.py         `kinetoscope run`: starts the program as a child of its own interpreter, waits, merges
    bootstrap/        found by the child's interpreter before its first line; waits for the program to import torch
    session.py        one process being recorded: everything below, put together and taken apart again
    sources.py        where steps begin: optimizers, modules, compiled functions, named ranges, the user's step()
    steady.py         when the time of a step has settled
    recorder.py       the state machine: watch, wait, time without the profiler, record with it
    profiler.py       torch.profiler, behind three verbs
    compile_log.py    what torch.compile says of itself, streamed to disk
    ...

Everything here but launch.py runs inside the user's process.
"""
