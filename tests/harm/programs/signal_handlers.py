# Handlers and timers of the program's own: user signals, alarms, a wakeup descriptor.
# needs: cpu
import os
import signal
from collections import Counter

import fingerprint
import torch
from torch import nn

seen = Counter()


def handle(number, frame):
    seen[signal.Signals(number).name] += 1


for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
    signal.signal(number, handle)
torch.manual_seed(0)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(80):
    loss = model(torch.ones(2, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pause()
names = ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGSEGV", "SIGCHLD", "SIGPIPE", "SIGHUP")
print([str(signal.getsignal(getattr(signal, name))).split(" at ")[0] for name in names])
print(sorted(seen.items()), signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(fingerprint.weights(model), fingerprint.draws())
