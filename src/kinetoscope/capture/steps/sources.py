"""Where steps begin, found without touching the program's objects.

A source ticks at every boundary it sees. None leaves a frame of ours on the user's stack, so tracebacks are
the program's own: a hook returns before the user's code runs on, and a :class:`CallWatch` is a descriptor,
which has done its work once the method it stands for has been looked up. While Dynamo compiles they are
gone, so that it sees, inlines and guards on nothing of ours.

    optimizer   the end of an optimizer's step()
    request     the call of transformers' generate()
    module      the call of a module that no other module's call surrounds
    compiled    the call of what torch.compile returned
    graph       the replay of a CUDA graph, whichever
    range       the entry of a named record_function block
    loop        a call that waits for the device, in a loop in which such calls repeat
    iteration   the first call without gradients after an optimizer's steps, of a program that acts and trains

Once one leads, what it is made of is seen as well: the parts of a request (encode, prefill, decode),
and where a training loop evaluates its model.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from types import FrameType
from typing import Any, cast

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import CALLED_BY_PROGRAMS, CallWatch, EveryCallWatch, ReturnWatch
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.steps.call_sites import OURS
from kinetoscope.capture.steps.detector import Kind, Signal, Source
from kinetoscope.capture.steps.ledgers import NoLedgers
from kinetoscope.capture.steps.updates import Updates

# Called with what ticks, which of its kind it is, and what the program calls it.
OnTick = Callable[[Signal, Hashable, str], None]
OnPart = Callable[[str], None]  # called with the name of what begins inside the step that is running
# Called where a model that is trained is called: whether to be trained. True: further calls are of no matter
# until its optimizer has stepped.
OnModel = Callable[[bool], bool]

GENERATION = "transformers.generation.utils"
INDUCTOR = "torch/_inductor/"
# Optimizers that are none of torch's classes.
FASTAI, OF_FASTAI = "fastai.optimizer", "optimizer of fastai"
LOADER = "torch.utils.data.dataloader"
# An optimizer that has been made is waited for so long from the first call of a module that it may train, and
# so long the end of a call in which the program waits for the device.
OPTIMIZER_PATIENCE_S = 10.0

# Calls that wait are no steps in the first second of them, in which a surer source may tick; before anything
# leads, so many of them are looked at in each second: a look takes some microseconds.
WAITS_PATIENCE_S, WAITS_LOOKED_AT = 1.0, 400

# Ranges that libraries open themselves: no step of the user's.
LIBRARY_RANGES = (
    "Optimizer.",
    "DistributedDataParallel.",
    "enumerate(DataLoader)",
    "ProfilerStep#",
    "FSDP",
    "## ",
)
COMPILER_RANGE = "_data: "  # Dynamo's note on a phase: ``dynamo_data: compile_id=0/0``


class Weak:
    """An attribute that keeps nothing alive: what it was set to, or None once that is gone."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}_reference"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        reference = vars(instance).get(self.name)
        return None if reference is None else reference()

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self.name] = weakref.ref(value)


class Sources:
    # the module whose call ticked last. It and the others are the program's to keep: what it drops is gone
    module = Weak()
    trained = Weak()  # the last of them that was called to be trained
    # the first of them that was called without gradients after the latest step of an optimizer
    acting = Weak()
    encoder = Weak()  # the one of a model that generates
    named = Weak()  # the one that is wanted by the name of an attribute
    before = Weak()  # the one whose call ticked before that of another

    def __init__(
        self,
        tick: OnTick,  # called at every tick
        imports: ImportWatch,
        part: OnPart = lambda name: None,  # called where a part of the leader's step begins
        model_called: OnModel = lambda training: False,  # called where the model is, whose optimizer leads
        # the class of a module whose calls are to tick wherever they are made, or what the modules around it
        # call it (``encoder.layers.0``)
        wanted: str | None = None,
        ledgers: NoLedgers | None = None,  # hear of calls that wait for the device
    ) -> None:
        self.ledgers = ledgers or NoLedgers()
        self.waits_since, self.second, self.waits_looked_at = 0.0, 0, 0
        self.tick, self.imports, self.part, self.model_called = tick, imports, part, model_called
        self.wanted = wanted
        self.watches: dict[str, CallWatch] = {}
        self.removers: dict[str, Callable[[], None]] = {}
        self.replaying: Any = None  # the graph whose replay ticks now
        self.replays = 0  # of graphs, whoever asks for them
        self.compiling = False
        self.calling: frozenset[Any] = frozenset()
        self.stepping: frozenset[Any] = frozenset()  # what runs while an optimizer steps
        self.within_step: frozenset[Any] = frozenset()  # what runs while a part of a step does
        self.prefilled = False  # the running request has called its model
        self.awaiting_since = 0.0  # when a module was called first whose optimizer had been made
        self.trained_now = False  # the model was called to be trained since its optimizer's latest step
        self.updated = True  # an optimizer has stepped since a module was called without gradients
        self.batches = 0  # taken from data loaders
        self.updates = Updates()
        # Grows where the program takes a batch; its value when a module was called last without gradients.
        self.loads: Callable[[], int] = lambda: self.batches
        self.loaded = 0
        self.iterations: Callable[[], bool] = lambda: False  # whether they are looked for
        # Of each class of modules the one called last, and by which key it is known.
        self.called = weakref.WeakKeyDictionary[type, tuple[weakref.ref[Any], int]]()
        self.kind: Kind | None = None  # of the source that leads
        # Of the module whose calls do its class, and by which key it is known.
        self.leads: type = object
        self.key: Hashable = None
        self.step_ended: Any = None
        self.optimizer_hook: Any = None
        self.in_hook = threading.local()  # whether this thread is in it
        # Since steps are only counted, how often each optimizer stepped and each other source ticked.
        self.unwatched: Counter[Hashable] | None = None
        # Dynamo's module, our stand-in for a function of its own, and that function.
        self.compiled_call: tuple[Any, Any, Any] | None = None

    def install(self, range_name: str | None = None, *, compiled: bool = True) -> None:
        """Watch every source, or all but compiled functions; with a ``range_name``, that range alone."""
        import torch

        torch_private.hide_from_dynamo(*CALLED_BY_PROGRAMS, callees=True)
        self.imports.when_imported(torch_private.COMPILE_CALLBACKS, self._watch_compilations)
        enter = torch.profiler.record_function
        if range_name is not None:
            self._bound("range", enter, "__enter__", lambda r: self._range_entered(r, only=range_name))
            left = ReturnWatch(enter, "__exit__", lambda r: self._range_left(r, range_name))
            self.watches["range end"] = left
            left.install()
            return
        self.calling = torch_private.module_call_codes() | torch_private.batch_codes()
        self.stepping = torch_private.optimizer_codes()
        self.within_step = self.calling | self.stepping
        for graph in torch_private.graph_classes():
            self._bound(
                f"graph of {graph.__name__}", graph, "replay", self._graph_replayed, of=EveryCallWatch
            )
        self.switch = torch_private.dynamo_switch()
        torch_private.hide_from_dynamo(type(self)._waits)
        self.widen()
        self.imports.when_imported(LOADER, self._watch_loaders)
        self._watch_optimizers()
        self.imports.when_imported(FASTAI, self._watch_fastai)
        self.imports.when_imported(GENERATION, self._watch_requests)
        if compiled:
            self.imports.when_imported(torch_private.EVAL_FRAME, self._watch_compiled)

    def widen(self) -> None:
        """Watch ranges, all modules and calls that wait, whatever leads."""
        import torch

        self.remove("range", "module")
        self._bound("range", torch.profiler.record_function, "__enter__", self._range_entered)
        self._bound("module", torch.nn.Module, "__call__", self._module_called)
        self.ledgers.listen(self._waits)

    def _watch_loaders(self) -> None:
        for owner, name in torch_private.calls_that_load_data() if self.kind is None else ():
            if name == torch_private.NEXT_BATCH:
                self._bound(f"batch of {owner.__name__}", owner, name, self._takes_batch)

    def _watch_compilations(self) -> None:
        self.removers["compilations"] = torch_private.around_compilations(self.suspend, self.resume)

    def suspend(self) -> None:
        """Take every source out, for as long as Dynamo compiles."""
        self.compiling = True
        for watch in list(self.watches.values()):
            watch.remove()
        self._hook_optimizers(False)
        self._hook_compiled(False)

    def resume(self) -> None:
        self.compiling = False
        for watch in list(self.watches.values()):
            watch.install()
        self._hook_optimizers("optimizer" in self.removers)
        self._hook_compiled("compiled" in self.removers)

    def remove(self, *kinds: str) -> None:
        """Stop watching these sources; all of them where none is named."""
        if not kinds or "loop" in kinds:
            self.ledgers.listen(None)
        for kind in kinds or (*self.watches, *self.removers):
            if kind in self.watches:
                self.watches.pop(kind).remove()
            if kind in self.removers and not (kind == "compilations" and getattr(self.in_hook, "now", False)):
                self.removers.pop(kind)()
        if not kinds and self.optimizer_hook is not None:  # it had to stay, and does nothing
            self.unwatched = Counter()
            self._hook_optimizers(False)

    def only_count(self, leader: Source) -> None:
        """Stop watching all but what counts the leader's ticks to the program's end."""
        kind, key = leader
        self.unwatched = Counter()
        counts = "optimizer" if kind == "iteration" else kind
        own = self.removers if counts == "optimizer" else self.watches
        # Where Dynamo compiles, what is left is taken out, as before.
        kept = {counts, "compilations", OF_FASTAI if counts == "optimizer" else ""}
        self.remove(*{*self.watches, *self.removers, "loop"} - kept)
        if counts not in own:
            self.remove()
        elif counts == "module" or counts == "request":
            module, name = self.module, "generate" if counts == "request" else "__call__"
            self.remove(counts)
            if module is not None and self._key(module) == key:
                self.key = key
                self._bound(counts, type(module), name, self._counted)
        elif counts == "range":
            self.watches[counts].seen = self._range_counted
        elif counts != "optimizer":
            self.remove()

    def _counted(self, module: Any) -> None:
        if self._is_leader(module):
            self._counted_as(self.key)

    def _range_counted(self, range_: Any) -> None:
        self._counted_as(str(range_.name))

    def _counted_as(self, key: Hashable) -> None:
        if self.unwatched is not None:
            self.unwatched[key] += 1

    def ticks_counted(self, leader: Source) -> int | None:
        """The leader's ticks since nothing else is watched; None where they are not counted.

        Where its is the only optimizer of a step, another that steps now carries its steps on. Iterations
        have the steps of all optimizers.
        """
        kind, key = leader
        counted = self.unwatched
        if counted is None or (kind not in self.watches and self.optimizer_hook is None):
            return None
        if kind in ("optimizer", "iteration"):
            alone = kind == "iteration" or len(self.updates.of_a_step(leader)) == 1
            return sum(count for one, count in counted.items() if alone or one == key)
        return counted[key]

    def follow(
        self,
        source: Source,
        # whether those of the optimizer that leads are still looked for
        iterations: Callable[[], bool] = lambda: False,
        loads: Callable[[], int] = lambda: 0,  # grows where the program waits for its data loader
        also: Collection[str] = (),  # kinds of sources that show where a step of several calls ends
        *,
        looking: bool = False,  # it is not known yet whether there are such steps: watch all
    ) -> None:
        """Watch only what may still matter once a source leads: it, cheaply, the optimizers, and replays."""
        kind, key = source
        self.kind, self.iterations, self.loads, self.loaded = kind, iterations, loads, loads()
        if looking or kind == "loop":  # where these lead, surer ones may come
            return
        batches = (watch for watch in self.watches if watch.startswith("batch") and "batch" not in also)
        others = {"module", "model", "compiled", "range", "loop", *batches}
        self.remove(*others - {kind, *also})
        if "module" in also and (other := self.before) is not None and type(other) is not type(self.module):
            self._bound("other module", type(other), "__call__", self._other_called)
        if kind == "optimizer" and iterations():
            self.updated = True
            self._bound("module", self._module_class(), "__call__", self._called_between_updates)
        elif kind == "optimizer":
            self._follow_trained()
        elif kind == "iteration" and self.acting is not None:
            self._bound("model", type(self.acting), "__call__", self._acting_called)
        if kind == "request" and self.module is not None and self._key(self.module) == key:
            self._follow_requests(self.module)
        if kind == "module" and self.module is not None and self._key(self.module) == key:
            self.leads, self.key = type(self.module), key
            self.remove("module")
            self._bound("module", self.leads, "__call__", self._leader_called)

    def follow_every_call(self, key: Hashable) -> None:
        """Watch this module alone, but each of its calls: ``generate`` looks ``__call__`` up just once."""
        if self.module is not None and self._key(self.module) == key:
            self.leads, self.key = type(self.module), key
            self.remove("module")
            self._bound("module", self.leads, torch_private.MODULE_CALL, self._leader_called)

    def _follow_trained(self) -> None:
        if self.trained is not None:
            self._bound("model", type(self.trained), "__call__", self._trained_called)

    def _module_class(self) -> type:
        import torch

        return torch.nn.Module

    def _bound(
        self,
        kind: str,
        owner: type,
        name: str,
        seen: Callable[[Any], None],
        of: type[CallWatch] = CallWatch,
    ) -> None:
        self.watches[kind] = of(owner, name, seen)
        if not self.compiling:
            self.watches[kind].install()

    # What each source sees

    def _watch_optimizers(self) -> None:
        tick, switch = self.tick, torch_private.dynamo_switch()

        def step_ended(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self.unwatched is not None:
                self._counted_as(id(optimizer))
                return
            self.updated, self.trained_now = True, False
            if self.kind == "iteration":
                return
            prior, self.in_hook.now = switch(None), True
            try:
                self.updates.stepped(optimizer)
                tick("optimizer", id(optimizer), type(optimizer).__name__)
            finally:
                self.in_hook.now = False
                switch(prior)

        torch_private.hide_from_dynamo(step_ended)
        self.step_ended = step_ended
        self.removers["optimizer"] = lambda: self._hook_optimizers(False)
        self._hook_optimizers(True)

    def _watch_fastai(self) -> None:
        owner = getattr(sys.modules[FASTAI], "Optimizer", None)
        if self.kind is None and isinstance(owner, type):
            self.watches[OF_FASTAI] = ReturnWatch(owner, "step", lambda one: self.step_ended(one, (), {}))
            self.watches[OF_FASTAI].install()

    def _hook_optimizers(self, on: bool) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if getattr(self.in_hook, "now", False):
            return  # torch is going through its hooks, and would fail if one less were left: it stays, idle
        if self.optimizer_hook is not None:
            self.optimizer_hook.remove()
            self.optimizer_hook = None
        if on:
            self.optimizer_hook = register_optimizer_step_post_hook(self.step_ended)

    def _watch_compiled(self) -> None:
        module = sys.modules[torch_private.EVAL_FRAME]
        original = getattr(module, "_callback_from_stance", None)
        if original is None:
            return
        tick = self.tick

        def callback_from_stance(callback: Any) -> Any:
            if callable(callback):  # not the False and None that switch Dynamo off
                tick("compiled", id(callback), "torch.compile")
            return original(callback)

        torch_private.hide_from_dynamo(callback_from_stance)
        self.compiled_call = (module, callback_from_stance, original)
        self.removers["compiled"] = lambda: self._hook_compiled(False)
        self._hook_compiled(not self.compiling)

    def _hook_compiled(self, on: bool) -> None:
        if self.compiled_call is not None:
            module, ours, original = self.compiled_call
            if module._callback_from_stance in (ours, original):
                module._callback_from_stance = ours if on else original

    def _watch_requests(self) -> None:
        mixin = getattr(sys.modules[GENERATION], "GenerationMixin", None)
        if hasattr(mixin, "generate"):
            self._bound("request", cast(type, mixin), "generate", self._requested)

    def _follow_requests(self, model: Any) -> None:
        """Watch the model's own generate(), which may call others', and the parts of its requests."""
        self.remove("request")
        self._bound("request", type(model), "generate", self._leader_requested)
        self._bound("model", type(model), torch_private.MODULE_CALL, self._generating)
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            with contextlib.suppress(Exception):  # the model's own code
                self.encoder = model.get_encoder()
                if type(self.encoder) is not type(model):
                    self._bound("encoder", type(self.encoder), torch_private.MODULE_CALL, self._encoding)

    def _requested(self, model: Any) -> None:
        self.module, self.prefilled = model, False
        self.tick("request", self._key(model), type(model).__name__)

    def _leader_requested(self, model: Any) -> None:
        if model is self.module:
            self._requested(model)

    def _generating(self, model: Any) -> None:
        if model is self.module:
            self.part("decode" if self.prefilled else "prefill")
            self.prefilled = True

    def _encoding(self, encoder: Any) -> None:
        # A model that is given no encoder's output calls the encoder itself, as a part of its prefill.
        if encoder is self.encoder and not self.prefilled:
            self.part("encode")

    def _module_called(self, module: Any) -> None:
        if self.wanted is not None and (type(module).__name__ == self.wanted or module is self.named):
            self.module = module
            self.tick("module", self._key(module), self.wanted)
            return
        if _surrounded(inspect.currentframe(), self.calling):
            return
        if self.wanted is not None and (named := torch_private.submodule(module, self.wanted)) is not None:
            self.named = named
        if (before := self.module) is not None and before is not module:
            self.before = before
        self.module, training = module, _trains(module)
        if training:
            self.trained = module
        if not self._awaits_optimizer(module):
            idle = module.training and torch_private.trains(module)
            # A loss is called as often as what it judges, and no sooner a sign of steps.
            training = training or (self.trained is not None and self._judges(module))
            signal: Signal = "training module" if training else "idle module" if idle else "module"
            if _surrounded(inspect.currentframe(), self.stepping):
                signal = "closure's module"
            self.tick(signal, self._key(module), type(module).__name__)
        elif _records_gradients():
            self.tick("optimizer's module", self._key(module), type(module).__name__)
        else:
            self._acts(module)

    def _judges(self, module: Any) -> bool:
        """Whether a module without parameters is called where gradients are recorded."""
        return module.training and _records_gradients() and not torch_private.trains(module)

    def _acts(self, module: Any) -> None:
        """A module that could be trained is called, and is not trained."""
        if self.updated:
            self.updated, self.acting = False, module
        loaded, self.loaded = self.loaded, self.loads()
        signal: Signal = "acting module" if self.loaded == loaded else "fed acting module"
        self.tick(signal, self._key(module), type(module).__name__)

    def _takes_batch(self, iterator: Any) -> None:
        self.batches += 1
        self._between("batch")

    def _called_between_updates(self, module: Any) -> None:
        if not self.iterations():
            self.remove("module")
            self._follow_trained()
        elif not _surrounded(inspect.currentframe(), self.calling):
            if module is self.trained:
                self._trained_called(module)
            if not _records_gradients() and torch_private.trains(module):
                self._acts(module)

    def _acting_called(self, module: Any) -> None:
        if self.updated and module is self.acting and not _records_gradients():
            self.updated = False
            self.tick("iteration", 0, type(module).__name__)

    def _awaits_optimizer(self, module: Any) -> bool:
        """Whether an optimizer's step is the better sign of the program's steps, and may still come."""
        if not torch_private.optimizer_made() or not torch_private.trains(module):
            return False
        self.awaiting_since = self.awaiting_since or time.monotonic()
        return time.monotonic() - self.awaiting_since < OPTIMIZER_PATIENCE_S

    def _trained_called(self, module: Any) -> None:
        if (self.updates.looking or not self.trained_now) and module is self.trained:
            if training := _records_gradients() and module.training:
                self.updates.called(type(module).__name__)
            if not self.trained_now:
                self.trained_now = self.model_called(training)

    def _leader_called(self, module: Any) -> None:
        if self._is_leader(module):
            self.tick("module", self.key, type(module).__name__)

    def _key(self, module: Any) -> int:
        """By what a module is known: itself, or the one of its class that was called before it and is gone,
        as where an application loads its model anew for each request."""
        before, key = self.called.get(type(module), (None, 0))
        one = None if before is None else before()
        if one is not module:
            key = id(module) if before is None or one is not None else key
            self.called[type(module)] = weakref.ref(module), key
        return key

    def _is_leader(self, module: Any) -> bool:
        """Whether this is the module whose calls lead, or takes the place of one that is gone."""
        leader = self.module
        if leader is not None or type(module) is not self.leads:
            return module is leader
        if _surrounded(inspect.currentframe(), self.calling):
            return False
        self.module = module
        return True

    def _graph_replayed(self, graph: Any) -> None:
        self.replays += 1
        caller = inspect.currentframe()
        while caller is not None and caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        # Those of compiled functions are parts of their calls.
        if caller is not None and INDUCTOR not in caller.f_code.co_filename.replace("\\", "/"):
            self.replaying = graph
            try:
                self.tick("graph", 0, "CUDA graph")
            finally:
                self.replaying = None

    def _waits(self, tensor: object) -> None:
        """The program is about to wait for the device; not where it reads a tensor of the host."""
        prior = self.switch(None)
        try:
            if torch_private.reads_host(tensor):
                self._between("loop")
                return
            now = time.monotonic()
            self.waits_since = self.waits_since or now
            if self.kind is None:
                self.waits_looked_at = self.waits_looked_at + 1 if int(now) == self.second else 0
                self.second = int(now)
            often = self.kind is None and self.waits_looked_at > WAITS_LOOKED_AT
            if self.wanted in (None, "loop") and not often:
                early = self.kind is None and self._too_early(now - self.waits_since)
                signal: Signal = "early loop" if early else "loop"
                if self.kind is None and not early and _surrounded(inspect.currentframe(), self.stepping):
                    signal = "closure's loop"
                self.tick(signal, 0, "calls that wait for the device")
        except Exception:  # the program's own call is not ours to break
            pass
        finally:
            self.switch(prior)

    def _between(self, watch: str) -> None:
        """A step of several calls may have ended at what this watch has seen, which is no step itself."""
        if self.kind not in (None, "loop"):
            self.tick("between", watch, "")

    def _too_early(self, since_s: float) -> bool:
        """Whether a surer source may tick yet, so long after the first call that waited: soon, or once the
        model's call or the optimizer's step is over in which the program waits."""
        if since_s < WAITS_PATIENCE_S:
            return True
        return since_s < OPTIMIZER_PATIENCE_S and _surrounded(inspect.currentframe(), self.within_step)

    def _other_called(self, module: Any) -> None:
        if module is self.before and not _surrounded(inspect.currentframe(), self.calling):
            self.tick("module", self._key(module), type(module).__name__)

    def _range_entered(self, range_: Any, only: str | None = None) -> None:
        name = str(range_.name)
        of_a_library = name.startswith(LIBRARY_RANGES) or COMPILER_RANGE in name
        if name == only or (only is None and not of_a_library):
            self.tick("range", name, name)

    def _range_left(self, range_: Any, only: str) -> None:
        if range_.name == only:
            self.tick("range end", only, only)


def _surrounded(frame: FrameType | None, codes: frozenset[Any]) -> bool:
    """True when a function with one of these codes is on the stack."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _records_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()


def _trains(module: Any) -> bool:
    """True when an optimizer's step may follow this call: gradients of its parameters are recorded."""
    return _records_gradients() and module.training and torch_private.trains(module)
