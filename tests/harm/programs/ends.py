# Every way in which a program that trains may end by itself.
# needs: cpu
# arguments: raise | thread_raise | text | exit | thread_exit | execv | term | kill | abort | fault | int
# status: 1 | 1 | 1 | 3 | 7 | 0 | -15 | -9 | -6 | -11 | ?
# suite: thread_exit
import atexit
import ctypes
import os
import signal
import sys
import threading
import time

import torch
from descent import Descent
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = Descent(model.parameters())
atexit.register(print, "atexit", flush=True)


def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def fail(text):
    try:
        raise KeyError(text)
    except KeyError as error:
        raise ValueError("because of it") from error


def end(way):
    if way == "raise":
        fail("own")
    elif way == "thread_raise":
        thread = threading.Thread(target=fail, args=("in a thread",), name="failing")
        thread.start()
        thread.join()
        sys.exit(1)
    elif way == "text":
        sys.exit("said on stderr")
    elif way == "exit":
        sys.exit(3)
    elif way == "thread_exit":
        threading.Timer(0.05, os._exit, (7,)).start()
        while True:
            train(1)
    elif way == "execv":
        os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])
    elif way in ("term", "kill"):
        os.kill(os.getpid(), getattr(signal, "SIG" + way.upper()))
        time.sleep(30)
    elif way == "abort":
        os.abort()
    elif way == "fault":
        ctypes.string_at(0)
    else:
        signal.raise_signal(signal.SIGINT)


try:
    train(40)
    print("trained", flush=True)
    end(sys.argv[1])
finally:
    print("finally", flush=True)
