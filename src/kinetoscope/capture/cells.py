"""Names for the cells of notebooks: IPython gives the code of each a file of its own, in a temporary folder,
and a number by which its author knows it."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

SHELL = "IPython.core.interactiveshell"


def named(file: str) -> str:
    """``In[3]`` for the file of the third cell that was run; any other file as it is."""
    module = sys.modules.get(SHELL)
    with suppress(Exception):  # IPython's private names
        shell: Any = getattr(module, "InteractiveShell", None)
        number = shell.instance().compile._filename_map.get(file) if shell and shell.initialized() else None
        return file if number is None else f"In[{number}]"
    return file
