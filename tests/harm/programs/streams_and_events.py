# Work on many streams ordered by events, timed by events, with callbacks of the program's own in between.
# needs: cuda
# sanitize: yes
import fingerprint
import torch

torch.manual_seed(0)
low, high = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
a = torch.randn(128, 128, device="cuda") / 12
x = torch.randn(128, 128, device="cuda")
total_ms = 0.0
torch.cuda.synchronize()
for step in range(80):
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    with torch.cuda.stream(low):
        begin.record()
        y = torch.tanh(a @ x)
        middle.record()
    with torch.cuda.stream(high):
        high.wait_event(middle)
        z = torch.tanh(a @ y)
        y.record_stream(high)
        end.record()
    low.wait_event(end)
    with torch.cuda.stream(low):
        x = z * 0.5 + x * 0.5
        z.record_stream(low)
    if step % 16 == 0:
        end.synchronize()
        total_ms += begin.elapsed_time(end)
        low.synchronize()
        print(step, low.query(), fingerprint.tensors(x))
torch.cuda.synchronize()
print(total_ms > 0, torch.cuda.current_stream() == torch.cuda.default_stream(), fingerprint.draws())
