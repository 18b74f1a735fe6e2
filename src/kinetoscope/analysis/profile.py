"""What analyses and rules are given: the traces of one run, its compilation, its manifest, its devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Manifest
from kinetoscope.trace.model import Trace

if TYPE_CHECKING:
    from kinetoscope.compilation.model import Compilation


@dataclass(frozen=True, eq=False)  # identity: analyses remember their result per profile
class Profile:
    """One run as it was recorded: every rank's trace, and whatever else is known of it."""

    traces: tuple[Trace, ...]
    manifest: Manifest | None = None
    compilation: Compilation | None = None
    folder: Path | None = None


def load(*inputs: str | Path) -> Profile:
    """Read recordings, traces, compile logs or folders of them.

    Raises:
        InputError: an input cannot be used; the message says why.
    """
    from kinetoscope.trace.read import read

    traces: list[Trace] = []
    manifest: Manifest | None = None
    folder: Path | None = None
    for item in map(Path, inputs):
        if manifests.is_recording(item):
            manifest, folder = manifests.read(item), item
            traces += [read(item / r.trace, rank=r.rank) for r in manifest.ranks if r.trace]
        else:
            traces.append(read(item))
    return Profile(tuple(traces), manifest, None, folder)
