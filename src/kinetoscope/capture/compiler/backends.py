"""The backends of torch.compile by name: what each needs, and which are here. No package is imported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CompilerBackend:
    name: str
    does: str  # what it is for
    package: str | None = None  # what pip installs it with; None: it comes with torch
    module: str | None = None  # what must be there; a submodule of it where older or newer releases lack that
    # importing the module registers the name; else torch, or the package's entry point, does
    imported: bool = False
    hardware: str = "any device"  # what it runs on
    gone: str | None = None  # why no installation makes it work with a torch that is supported here

    @property
    def installed(self) -> bool:
        return self.gone is None and (self.module is None or _there(self.module))

    @property
    def needs(self) -> str:
        """The command or change that makes it usable; empty where nothing is missing."""
        if self.gone or self.installed:
            return self.gone or ""
        return f"pip install {self.package}"


BACKENDS = (
    CompilerBackend("inductor", "generates Triton or C++, the default"),
    CompilerBackend("eager", "runs Dynamo's graph as it is: shows graph breaks and guards alone"),
    CompilerBackend("aot_eager", "runs AOTAutograd's graphs as they are"),
    CompilerBackend(
        "cudagraphs",
        "replays AOTAutograd's graphs as CUDA graphs, no kernel generated",
        hardware="NVIDIA GPUs",
    ),
    CompilerBackend(
        "tensorrt",
        "TensorRT engines, inference only",
        "torch-tensorrt",
        "torch_tensorrt",
        imported=True,
        hardware="NVIDIA GPUs",
    ),
    CompilerBackend(
        "openvino",
        "OpenVINO, inference only",
        "openvino",
        "openvino",
        hardware="x86-64 and ARM CPUs, Intel GPUs and NPUs",
    ),
    CompilerBackend(
        "ipex",
        "Intel's extension, which goes with one release of torch",
        "intel-extension-for-pytorch",
        "intel_extension_for_pytorch",
        imported=True,
        hardware="Intel CPUs and GPUs",
    ),
    CompilerBackend(
        "tvm",
        "Apache TVM through its Relay compiler",
        "'apache-tvm<0.20' (later releases have no Relay; for newer Pythons build it)",
        "tvm.relay",
    ),
    CompilerBackend("openxla", "XLA", "torch-xla", "torch_xla", hardware="TPUs, CPUs"),
    CompilerBackend(
        "onnxrt",
        "ONNX Runtime",
        gone="torch registers it no more (since 2.9 at the latest): "
        "export with torch.onnx and run onnxruntime itself",
    ),
)


def known(name: str) -> CompilerBackend | None:
    """The backend of that name, if it is one of ``BACKENDS``."""
    name = "tensorrt" if name == "torch_tensorrt" else name
    return next((backend for backend in BACKENDS if backend.name == name), None)


def _there(module: str) -> bool:
    """Whether the module could be imported, by its files alone: find_spec of a submodule imports packages."""
    package, _, inner = module.partition(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not inner:
        return spec is not None
    return any((Path(place) / inner).exists() for place in spec.submodule_search_locations or ())
