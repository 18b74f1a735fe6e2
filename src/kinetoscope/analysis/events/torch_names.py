"""Names that PyTorch and the libraries below it give their events, as regular expressions.

Checked on recordings of PyTorch 1.8 (2021) to 2.13, of CUDA and of HIP. Calls of other makers (XPU, MTIA) are
known by their category alone: no recording of theirs was at hand. What kernels are called is in
``kernels.taxonomy``.
"""

from __future__ import annotations

import sys

from kinetoscope.trace.captures import CAPTURE_BEGIN as CAPTURE_BEGIN
from kinetoscope.trace.captures import CAPTURE_END as CAPTURE_END
from kinetoscope.trace.captures import COPY as COPY
from kinetoscope.trace.captures import GRAPH_LAUNCH as GRAPH_LAUNCH
from kinetoscope.trace.captures import KERNEL_LAUNCH as KERNEL_LAUNCH
from kinetoscope.trace.captures import LAUNCH as LAUNCH
from kinetoscope.trace.engines import FAMILIES
from kinetoscope.trace.engines import STEP as STEP

# Versions of one call: cuMemAlloc_v2, and those for per-thread streams, cudaMemcpy_ptds, hipMemcpy_spt.
_END = r"(_v\d+)?(_ptsz|_ptds|_spt)?$"

# What a device's own DMA engine does at its firmware's request (MTIA): no call of the host launched it.
DMA = r"(^|\W)dma_"

# Calls in which the host waits for the device: none that ends in Async, nor cuMemcpyDtoD.
SYNCHRONIZATION = (
    rf"^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize{_END}"
    rf"|^(cuda|cu|hip)Memcpy(2D|3D|HtoD|DtoH|ToSymbol|FromSymbol|WithStream)?{_END}"
)
DEVICE_WAIT = r"^(cuda|cu|hip)(Device|Ctx)Synchronize"
# What the device calls a copy from or to memory that is not pinned: its call returns when it is done.
PAGEABLE_COPY = r"^Memcpy .*Pageable"

# The driver's memory, of the device and pinned of the host: taken, mapped, given back.
ALLOCATION = (
    r"^(cuda|hip)(Ext)?(Host)?(Malloc|Alloc|Free|Register|Unregister)"
    r"|^(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess|Alloc|Free|HostAlloc|Address(Reserve|Free))"
)

# Overhead that is the driver's, not the profiler's: it comes without a profiler as well.
CODE_LOADING = r"^(Lazy Function|Runtime Triggered Module) Loading$"
# And a launch that waits because the device has too much before it.
NOT_OF_THE_PROFILER = rf"{CODE_LOADING}|^Command Buffer Full$"

# A loader's __next__, as torch annotates it and as a recording of Python's stack shows it.
DATA_LOADER = r"^enumerate\(DataLoader\)#"
DATA_LOADER_OF_WORKERS = r"^enumerate\(DataLoader\)#_MultiProcessing"
DATA_LOADER_FRAME = r"torch/utils/data/dataloader\.py\(\d+\): __next__$"

GARBAGE_COLLECTION = r"^Python GC$"

# Where ranks meet without moving data, and whatever gloo does: it does it on the host.
BARRIER = r"^(gloo|mpi|ucc|nccl|c10d):+(monitored_)?barrier|^gloo:"

# What autograd, optimizers and the profiler write around or between ops.
OPTIMIZER = r"^Optimizer\.(step|zero_grad)#|(^|/)torch/optim/\S+: (step|zero_grad)$"
AUTOGRAD_NODE = r"^autograd::engine::evaluate_function"
SCALER = r"^aten::_amp_(foreach_non_finite_check_and_unscale_|update_scale_)$"
GRADIENT = r"^torch::autograd::AccumulateGrad$"
BOOKKEEPING = r"^(profiler::_record_function_(enter|enter_new|exit)|aten::(is_leaf|output_nr|_version))$"

# Compiled code. A region is one entry into a compiled function, its compile id last; a call is one of a graph
# that Inductor compiled, by the key of its module. A compiled backward runs in autograd's thread, outside of
# the region.
REGION = r"^Torch-Compiled Region: (?:(?:.*\s)?([!\d/]+)$)?"
CALL = r"^## Call CompiledFxGraph (\S+) ##$"
COMPILED_FORWARD = r"^CompiledFunction$"
COMPILED_BACKWARD = r"^(autograd::engine::evaluate_function: )?\S*CompiledFunctionBackward"
CACHE_LOOKUP = r"^TorchDynamo Cache Lookup$"
# What an entry into compiled code does itself, in addition to the ops.
ENTRY = rf"{REGION}|{CALL}|^AOTDispatcher Runtime Wrapper|^Pregraph bytecode"

# The compiler at work: every timed phase of Dynamo, AOTAutograd and Inductor is marked so. What older
# versions and Triton write, and frames of Python, tell of it as well.
COMPILER_PHASE = r" \(dynamo_timed\)$"
GRAPH_RECORDING = r"^CUDAGraphNode\.record"
COMPILATION = (
    rf"{COMPILER_PHASE}|{GRAPH_RECORDING}"
    r"|^(dynamo|entire_frame_compile|backend_compile|inductor_compile|code_gen|compile_attempt_\d+)$"
    r"|^(CachingAutotuner\.|async_compile\.)"
    r"|torch/_dynamo/convert_frame\.py\(\d+\): (_compile|compile_inner)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$"
)

# Annotations that say what the step or the compiled graph around the work says already.
NOT_AN_ANNOTATION = "|".join((STEP, CALL, *FAMILIES))
MODULE = "nn.Module: "  # how a recorded call of a module begins
CLOCK = "kinetoscope: clock"  # events that Python's clock and the profiler's both timed
BASE = "baseTimeNanoseconds"  # of a trace's metadata: what its times are counted from, on the wall clock
STANDARD_FRAME = rf"^({'|'.join(sorted(sys.stdlib_module_names))})(/\S+)?\.py\("
# Frames that are not the user's: of C, of Python's own library, of torch, of what is installed. Torch cuts
# the folders of sys.path off, site-packages among them: what is well known is known by its name.
LIBRARY_FRAME = (
    r"^<|^nn\.Module: |(^|/)(torch|torchvision|torchaudio|transformers|triton|kinetoscope/capture)/"
    r"|(^|/)(numpy|scipy|pandas|sklearn|PIL|tqdm)/|(^|/)torchinductor_[^/]*/"
    r"|(site|dist)-packages/|^/usr/lib|/lib/python3[^/]*/"
    rf"|{STANDARD_FRAME}"
)
# Of what was captured the lines of an engine or a library of models are known as well as the program's.
TORCH_FRAME = (
    r"^<|^nn\.Module: |(^|/)(torch|triton|kinetoscope/capture)/|/lib/python3[^/]*/[^/]*\.py\("
    rf"|{STANDARD_FRAME}"
)

OPS = r"(?i)^(cpu_op|operator)$"  # categories; of older versions the second
# What the dispatcher calls: ``namespace::op``. Nodes of autograd and collectives are called so as well.
OP = r"^[a-z]\w*::"
# Of these some describe memory, take it and give it back, or leave the work to ops inside them; some wait for
# other ranks; and an optimizer counts its steps on the CPU, which goes with its launches once it is fused.
COMPUTES_NOTHING = (
    r"^(autograd|torch|c10d|nccl|gloo|profiler|inductor)::"
    r"|^aten::(_foreach_\w+|(new_)?empty(_\w+)?|resize_(as_)?|set_|item|_local_scalar_dense|result_type"
    r"|(_unsafe_)?view(_as)?(_\w+)?|(_reshape_)?alias|(un)?flatten(_dense_tensors)?|to|contiguous|reshape|t"
    r"|transpose|permute|movedim|expand(_as)?|(un)?squeeze|select|slice|narrow|split(_with_sizes)?|chunk"
    r"|unbind|diagonal|as_strided|detach_?|lift(_fresh)?|resolve_(conj|neg)|record_stream|(lstm|gru|rnn_\w+)_cell)$"
)
