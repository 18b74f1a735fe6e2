"""A thread that waits for requests: it sleeps in the system until one comes.

No source of steps is watched and no profiler is there while it waits. Captures of CUDA graphs are noticed:
while one runs nothing of ours touches the device, and CUPTI is not detached from a server that replays
graphs. Under `--graphs` each is recorded once, whenever it comes, since the ops of its replays are known
from nothing else. It is a thread that `threading` does not list, with all signals blocked; it is not there
while the process forks, and a fork has one of its own.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.live import channel
from kinetoscope.capture.live.channel import Greeting, LiveRequest, Progress
from kinetoscope.capture.live.recording import LiveRecording, unfinished
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.graphs import GraphCaptures
from kinetoscope.capture.recorder.profiler import TorchDevice
from kinetoscope.capture.recorder.unlocked import first_used_here
from kinetoscope.errors import in_one_line
from kinetoscope.recording import folder as folders

WRITTEN_WITHIN_S = 60.0  # an end of the program waits so long for what is being recorded to be written
# Until CUPTI is tried to be detached again, the last of them time and again: that is safe while a server has
# nothing to do.
AGAIN_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Listener:
    """Waits for requests to record this process, one after the other, into ``folder``/NNN."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder, self.options = folder, options
        self.command = tuple(sys.orig_argv)
        self.when_saved = lambda: None
        self.socket: socket.socket | None = None
        self.gone = threading.Event()  # the thread is
        self.current: LiveRecording | None = None
        self.done = threading.Event()  # what was current is
        self.left_open = (
            False  # an operator that began in a capture did not end with it: no other is recorded
        )
        self.unfinished: tuple[str, ...] = ()  # operators and ranges that a session has left open
        self.has_recorded = self.ended = self.releasing = False
        self.imported_torch = threading.get_ident()
        self.device = TorchDevice(Options(shapes=options.shapes, flops=options.flops))
        self.graphs = self._no_graphs()

    def _no_graphs(self) -> GraphCaptures:
        return GraphCaptures(self.device, self.folder / "captures" / f"{os.getpid()}.json")

    def begin(self) -> None:
        """Wait from now on. Raises OSError where the system has no such sockets."""
        self._resume()
        os.register_at_fork(before=self._pause, after_in_parent=self._resume)
        captures = self.device.captures
        captures.before, captures.after = self._capture_begins, self._capture_ended
        captures.install()

    def _capture_begins(self, graph: Any) -> None:
        """A graph is about to be captured in this thread, and no other is."""
        if self.ended or self.current is not None or not self.options.graphs or self.left_open:
            return
        if torch_private.profiler_runs() or torch_private.in_backward() or not self.graphs.wanted():
            return
        self.graphs.trace.parent.mkdir(mode=0o700, exist_ok=True)
        self.has_recorded = True
        # A recording on request is of all threads, a capture of its own alone: an operator that is open when
        # either ends is none of the other's.
        self.device.all_threads = True
        with first_used_here(self.imported_torch):
            self.graphs.begin(graph)

    def _capture_ended(self, graph: Any) -> None:
        with self.device.captures.lock:
            recorded = self.graphs.end(graph)
        if recorded and self.graphs.paths and unfinished(self.graphs.paths[-1]):
            self.left_open = True
        if recorded:
            self._released()

    def _released(self) -> bool:
        """Detach CUPTI, where that is safe; False: it stays attached."""
        with self.device.captures.lock:
            busy = self.current is not None or self.graphs.session is not None
            return not (busy or self.ended) and self.device.release()

    def _release_soon(self) -> None:
        """Have a thread of its own do so as soon as the server rests."""
        if self.releasing:
            return
        self.releasing = True
        _thread.start_new_thread(self._release, ())

    def _release(self) -> None:
        with suppress(Exception):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            for seconds in chain(AGAIN_S, repeat(AGAIN_S[-1])):
                time.sleep(seconds)
                if self.ended or self._released() or not self.device.captures.survive_detaching():
                    break
        self.releasing = False

    def _resume(self) -> None:
        if self.ended or self.socket is not None:
            return
        self.socket, self.gone = channel.bound(self.folder), threading.Event()
        _thread.start_new_thread(self._wait, (self.socket, self.gone))

    def _pause(self) -> None:
        """End the thread, and wait until it has."""
        listener, self.socket = self.socket, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            self.gone.wait(1.0)
            listener.close()

    def forked(self) -> bool:
        """This process is a fork of the one that waited: whether it waits for requests of its own."""
        if self.has_recorded:
            self.ended, self.current = True, None
            self.device.captures.remove()
            torch_private.leave_recording_to_parent()
            return False
        self.graphs = self._no_graphs()
        with suppress(OSError):
            self._resume()
        return True

    def end(self, exit: str, failure: BaseException | None = None) -> None:
        """The program ends: write what is being recorded, and wait no more."""
        self.ended = True
        current = self.current
        if current is not None:
            current.cut(f"the program ended ({exit})")
            self.done.wait(WRITTEN_WITHIN_S)
        self._pause()
        self.graphs.removed()

    def _wait(self, listener: socket.socket, gone: threading.Event) -> None:
        with suppress(Exception):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while self.socket is listener:
                connection, _ = listener.accept()
                try:
                    self._answer(connection)
                except Exception:  # whoever asked is gone, or asks what is none of a request
                    connection.close()
        gone.set()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(channel.PATIENCE_S)
        if channel.peer(connection)[1] != os.getuid():
            connection.close()
            return
        request = msgspec.json.decode(next(channel.lines(connection)), type=LiveRequest).checked()
        if not request.record:
            import torch

            device = torch.cuda.is_initialized()
            busy = self.current is not None
            folder = os.fsencode(self.folder)
            channel.send(connection, Greeting(os.getpid(), folder, self.command, device, busy))
            connection.close()
        elif refused := self._refused():
            text, hint = refused
            channel.send(connection, Progress(text, over=True, hint=hint))
            connection.close()
        else:
            self._begin(connection, request)

    def _refused(self) -> tuple[str, str] | None:
        """Why no other recording can be made now, and what helps; None where one can."""
        if self.current is not None:
            return "it is being recorded already", "try again when that is over"
        if self.unfinished:
            return (
                f"{', '.join(self.unfinished[:3])} began in the last recording and had not ended when that "
                "did: torch could crash the server if it ends in another",
                "start the server anew; put no range around many steps",
            )
        return None

    def _begin(self, connection: socket.socket, request: LiveRequest) -> None:
        folder = self.folder / f"{request.record:03}"
        ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
        if not (ours and folders.claim(folder, request.rank)):
            raise ValueError("the folder is another's")
        requester = _Requester(connection)
        self.done.clear()
        self.has_recorded = True
        self.current = LiveRecording(
            folder,
            request,
            self.options,
            self.graphs,
            requester.tell,
            requester.stands,
            self.imported_torch,
        )
        _thread.start_new_thread(self._record, (self.current, requester))

    def _record(self, recording: LiveRecording, requester: _Requester) -> None:
        recorded, text = False, ""
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            recorded = recording.run() is not None
            text = recording.summary() if recorded else (recording.notes or ["nothing was recorded"])[-1]
        except Exception as error:  # ours to bear: the program goes on without us
            text = f"recording stopped: {in_one_line(error)}"
        finally:
            if not recorded:
                folders.unclaim(recording.folder, recording.request.rank)
            self.unfinished = recording.unfinished
            self.current = None
            self.done.set()
            requester.over(text, recorded=recorded)
        if not self._released():
            self._release_soon()


class _Requester:
    """Who requested a recording, at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.poll = connection, select.poll()
        self.poll.register(connection, select.POLLIN)

    def tell(self, text: str, *, steps: bool = False) -> None:
        with suppress(OSError):
            channel.send(self.connection, Progress(text, steps=steps))

    def stands(self) -> bool:
        """Whether the request still does: its end of the connection is open, and nothing more came of it."""
        return not self.poll.poll(0)

    def over(self, text: str, *, recorded: bool) -> None:
        with suppress(OSError):
            channel.send(self.connection, Progress(text, over=True, recorded=recorded))
        self.connection.close()
