"""Compile logs of torch, read: frames, guards, graph breaks, recompilations, graphs, fusion, kernels."""

from kinetoscope.compilation.contract import as_contract
from kinetoscope.compilation.model import Compilation
from kinetoscope.compilation.sources import load

__all__ = ["Compilation", "as_contract", "load"]
