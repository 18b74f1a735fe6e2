"""A recurrent net is called time step by time step.

What it finds
    ``nn.LSTMCell``, ``nn.GRUCell`` or ``nn.RNNCell`` in a loop over time.

Why it is slow
    Each cell launches a handful of kernels of a few microseconds, and autograd as many again. cuDNN's net
    multiplies all inputs at once and runs through time within its own kernels.

How it decides
    At least eight calls of a cell in the recorded steps. The host's time for the cells and their backward
    nodes goes, but for one of them. Nothing is promised where a softmax, a draw or a choice runs between the
    cells, as in a decoder; where a step has fewer than eight, or no backward pass. On a CPU an LSTM's
    products stay; of others nothing is promised.

What to do
    ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` over the whole sequence; what is computed of each output, such as a
    loss, over all of them at once. Cells stay where each input is made of the last output.

Source
    PyTorch documentation of torch.nn.LSTM; "Optimizing Performance of Recurrent Neural Networks on GPUs"
    (Appleyard et al., 2016).
"""

from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.findings.in_force import trains
from kinetoscope.findings.rule import *

CELL = r"^aten::(lstm|gru|rnn_tanh|rnn_relu)_cell$"
CALLS = 8  # fewer may be the layers of a net that runs once
FEEDS = r"^aten::(argmax|topk|multinomial|_softmax|softmax)$"  # what a decoder does between its cells
LAYERS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def find(view: RankView) -> Findings:
    cells = view.inside(view.host(CELL))
    if len(cells) < CALLS:
        return
    layer = LAYERS[str(cells["name"][0]).removeprefix("aten::").removesuffix("_cell")]
    host = view.trace.host_events
    sequences = host["sequence"].filter(view.around(CELL).is_not_null()).drop_nulls().unique()
    nodes = host.filter(
        matching(host, "name", AUTOGRAD_NODE) & host["sequence"].is_in(sequences.implode()).fill_null(False)
    )
    gone = pl.concat([cells, nodes]).with_columns(share=pl.lit(1 - min(1.0, view.steps / len(cells))))
    basis = "the host's time for the cells and their backward passes, but for one"
    if view.on_cpu:
        basis += ", but for its products"
        ops = view.computed.filter(view.inside_of(gone["id"]).gather(view.computed["id"]).is_not_null())
        ops = ops.filter(~matching(ops, "category", "^matmul$"))
        saving = savings.device(view, ops, basis, "duration_ns", savings.called(view, gone))
    else:
        saving = savings.host(view, gone, basis)
    between = view.host(FEEDS).filter(
        pl.col("start_ns").is_between(cells["start_ns"].min(), cells["start_ns"].max())
    )
    known = len(cells) >= CALLS * view.steps > len(between) and trains(view)
    if not known or (view.on_cpu and layer != "LSTM"):
        saving = savings.not_predicted(
            saving, "no trace shows whether a cell's input is made of the last output"
        )
    times = view.counted(len(cells), "time")
    yield Finding(
        title=f"{layer}Cell is called {times} per {view.unit}, one time step after the other",
        affected_us=view.us_of(gone),
        saving=saving,
        at_least="info",
        evidence=[evidence.of(view, f"{len(cells)} calls of {layer}Cell", cells)],
        advice=f"If its inputs are known beforehand, run nn.{layer} over the whole sequence"
        + ("." if view.on_cpu else ": cuDNN then launches a few kernels for all of it."),
        snippet=f"outputs, state = nn.{layer}(inputs, hidden, num_layers=layers)(sequence)",
        source=evidence.source(view, cells["id"]),
    )
