"""Which frames or kernels a name on the command line means."""

from __future__ import annotations

import difflib

from kinetoscope.compilation.model import Compilation, Frame, Kernel
from kinetoscope.errors import UsageError


def frames_named(compilation: Compilation, name: str | None) -> list[Frame]:
    """The compilations of that id (several after a reset or with several ranks), or the one of that number.

    Raises:
        UsageError: there is none.
    """
    if name is None:
        return list(compilation.frames)
    found = [f for f in compilation.frames if f.compile_id == name or str(f.index) == name]
    if not found:
        ids = ", ".join(dict.fromkeys(f.compile_id for f in compilation.frames))
        raise UsageError(f"no compilation {name!r} in the log", mend=f"name one of: {ids}")
    return found


def kernels_named(compilation: Compilation, name: str) -> list[Kernel]:
    """The generated kernels of that name, in every graph that has one.

    Raises:
        UsageError: there is none; the message names what comes close.
    """
    found = [k for k in compilation.kernels if name in (k.name, k.symbol, k.handle)]
    if not found:
        near = [k.name for k in compilation.kernels if name in k.name][:5]
        near = near or difflib.get_close_matches(name, [k.name for k in compilation.kernels], 3)
        mend = (
            f"did you mean {' or '.join(near)}?" if near else "`kinetoscope graphs INPUT` lists the kernels"
        )
        raise UsageError(f"no generated kernel {name!r} in the log", mend=mend)
    return sorted(found, key=lambda k: -(k.device_time_us or 0.0))
