"""More small programs whose authors count steps in different ways, by the loop around their calls.

As those of ``step_programs``, each prints ``steps: N`` and ``clock: S``.
"""

from __future__ import annotations

# A pipeline's twelve time steps and its decoder make one picture.
PIPELINE = """
net, decoder = mlp(64, 64), nn.Linear(64, 256)
class Pipeline:
    @torch.no_grad()
    def __call__(self, x, steps=12):
        for t in range(steps):
            x = x + 0.1 * net(x)
        return decoder(x).cpu().numpy()
pipeline = Pipeline()
for call in range(400):
    began = time.perf_counter()
    pipeline(torch.randn(8, 64))
    times.append(time.perf_counter() - began)
"""

# Perplexity of documents: each is as many windows as it is long; a sum is read back.
DOCUMENTS = """
net = mlp(32, 16)
def perplexity(document):
    total = torch.zeros(())
    with torch.no_grad():
        for window in document.split(8):
            total += F.cross_entropy(net(window), torch.zeros(len(window), dtype=torch.long))
    return total.item()
for number in range(400):
    began = time.perf_counter()
    perplexity(torch.randn(40 + 8 * (number % 3), 32))
    times.append(time.perf_counter() - began)
"""

# Monte Carlo dropout: each batch of a loader is looked at twelve times, and NumPy does the rest.
DOUBTS = """
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)).eval()
net[2].train()
@torch.no_grad()
def doubts(images):
    passes = []
    for _ in range(12):
        passes.append(net(images).softmax(1).numpy())
    mean = np.stack(passes).mean(0)
    return -(mean * np.log(mean)).sum(1)
referred, began = 0, time.perf_counter()
for images, in DataLoader(TensorDataset(torch.randn(2400, 32)), batch_size=6):
    referred += (doubts(images) > 1.2).sum()
    times.append(time.perf_counter() - began)
    began = time.perf_counter()
"""

# An evaluation fed by a loader, again and again: each batch is a step.
EVALUATIONS = """
from torch.utils.data import DataLoader, TensorDataset
net = mlp(32, 4).eval()
loader = DataLoader(TensorDataset(torch.randn(60, 32)), batch_size=6)
@torch.no_grad()
def evaluate():
    right = 0
    for batch, in loader:
        began = time.perf_counter()
        right += net(batch).argmax(1).sum()
        times.append(time.perf_counter() - began)
    return right.item()
for repetition in range(60):
    evaluate()
"""

# Neither a module nor an optimizer: the nearest of many vectors, in chunks.
SEARCH = """
index = torch.randn(4000, 32)
def search(queries):
    best = torch.full((len(queries), 5), float("inf"))
    for chunk in index.split(1000):
        distances = queries.pow(2).sum(1, keepdim=True) - 2 * queries @ chunk.T
        best = torch.cat([best, distances.topk(5, largest=False).values], 1).topk(5, largest=False).values
    return best.cpu().numpy(), best.mean().item()
until = time.perf_counter() + 7
while time.perf_counter() < until:
    began = time.perf_counter()
    found, mean = search(torch.randn(16, 32))
    hits = int((torch.from_numpy(found) < 0).sum())
    times.append(time.perf_counter() - began)
"""

# A simulation in torch functions that says now and then where it is.
SIMULATION = """
field = torch.randn(64, 64)
until = time.perf_counter() + 7
while time.perf_counter() < until:
    began = time.perf_counter()
    for substep in range(10):
        field = field + 0.1 * (field.roll(1, 0) + field.roll(-1, 0) - 2 * field)
    energy = field.square().sum().item()
    times.append(time.perf_counter() - began)
"""

# A GAN whose critic steps twice, in a loop of its own, before its generator does.
TWICE = """
critic, generator = mlp(8, 1), mlp(4, 8)
d_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
g_optimizer = torch.optim.RMSprop(generator.parameters(), lr=1e-4)
for iteration in range(150):
    began = time.perf_counter()
    for _ in range(2):
        d_optimizer.zero_grad()
        (critic(generator(torch.randn(16, 4)).detach()).mean() - critic(torch.randn(16, 8)).mean()).backward()
        d_optimizer.step()
    g_optimizer.zero_grad()
    (-critic(generator(torch.randn(16, 4))).mean()).backward()
    g_optimizer.step()
    times.append(time.perf_counter() - began)
"""

# TD3: a step of the critic each time, of the actor every second time: a step is an update.
TD3 = """
actor, critic = mlp(4, 2), mlp(6, 1)
actor_optimizer = torch.optim.RMSprop(actor.parameters(), lr=1e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
env = Envs(1)
for step in range(200):
    began = time.perf_counter()
    with torch.no_grad():
        action = actor(torch.from_numpy(env.state)).numpy()
    env.step(action)
    state = torch.randn(32, 4)
    loss = critic(torch.cat([state, actor(state).detach()], 1)).square().mean()
    critic_optimizer.zero_grad()
    loss.backward()
    critic_optimizer.step()
    if step % 2 == 0:
        actor_optimizer.zero_grad()
        (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()
        actor_optimizer.step()
    times.append(time.perf_counter() - began)
"""

# Meta-learning: four tasks of five steps, each with an optimizer of its own, to one of the outer optimizer.
META = """
import copy
model = mlp(4, 1)
meta = torch.optim.Adam(model.parameters(), lr=1e-3)
for iteration in range(120):
    began = time.perf_counter()
    meta.zero_grad()
    for task in range(2):
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=1e-2)
        for k in range(3):
            loss = learner(torch.randn(16, 4)).square().mean()
            inner.zero_grad()
            loss.backward()
            inner.step()
        for p, q in zip(model.parameters(), learner.parameters()):
            p.grad = p.data - q.data if p.grad is None else p.grad + p.data - q.data
    meta.step()
    times.append(time.perf_counter() - began)
"""

# Two towers, each with an optimizer of its own that steps once an iteration.
TOWERS = """
queries, items = mlp(8, 16), mlp(8, 16)
optimizers = torch.optim.AdamW(queries.parameters()), torch.optim.AdamW(items.parameters())
for iteration in range(150):
    began = time.perf_counter()
    logits = queries(torch.randn(32, 8)) @ items(torch.randn(32, 8)).T
    loss = F.cross_entropy(logits, torch.arange(32))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    times.append(time.perf_counter() - began)
"""

# A recurrent model, trained on parts of a sequence.
TRUNCATED = """
cell, head = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-2)
for sequence in range(20):
    state = None
    for part in torch.randn(8, 80, 4).split(10, 1):
        began = time.perf_counter()
        out, state = cell(part, state)
        state = state.detach()
        loss = head(out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
"""

# A server's loop: it takes what has arrived, and answers; its model was warmed up in another thread.
SERVING = """
import queue, threading
net, waiting = mlp(16, 16).eval(), queue.Queue()
class Server(threading.Thread):
    @torch.inference_mode()
    def answer(self, batch):
        for answer, row in zip(batch, net(torch.stack([x for x, _ in batch]))):
            answer[1].append(row.cpu().numpy())
    def run(self):
        while (first := waiting.get()) is not None:
            began = time.perf_counter()
            self.answer([first, *[waiting.get() for _ in range(3)]])
            times.append(time.perf_counter() - began)
server = Server()
with torch.no_grad():
    for _ in range(30):
        net(torch.randn(4, 16))
server.start()
answers = []
for request in range(800):
    waiting.put((torch.randn(16), answers))
    if request % 4 == 3:
        time.sleep(0.002)
waiting.put(None)
server.join()
"""

# A web application that loads its model anew for each request, and reads the five likeliest names one by one.
APPLICATION = """
import io, json, threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(64, 64), nn.Linear(64, 20)
    def forward(self, x):
        return self.head(self.body(x))
weights = io.BytesIO()
torch.save(Net().state_dict(), weights)
def load_model():
    model = Net()
    weights.seek(0)
    model.load_state_dict(torch.load(weights))
    return model.eval()
@torch.no_grad()
def predict(body):
    model = load_model()
    best, which = model(torch.tensor(json.loads(body))[None]).softmax(1)[0].topk(5)
    return [{"name": i.item(), "chance": chance.item()} for chance, i in zip(best, which)]
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        answer = json.dumps(predict(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass
def people(port, requests):
    for _ in range(requests):
        connection = HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/predict", json.dumps([0.5] * 64))
        connection.getresponse().read()
        connection.close()
server = HTTPServer(("127.0.0.1", 0), Handler)
client = threading.Thread(target=people, args=(server.server_port, 300))
client.start()
for request in range(300):
    began = time.perf_counter()
    server.handle_request()
    times.append(time.perf_counter() - began)
client.join()
server.server_close()
"""

# Graphs captured by hand, one for each batch size, and then only replayed: a stand-in replays on the CPU.
REPLAYS = """
net = mlp(64, 64)
@torch.no_grad()
def run(self):
    for _ in range(4):
        torch.relu(self.x @ self.x.T)
Base = torch.cuda.CUDAGraph.__mro__[1]
Base.replay, Base.reset = run, lambda self: None
graphs = {}
with torch.no_grad():
    for size in (1, 2, 4, 8):
        for warmup in range(2):
            net(torch.randn(size, 64))
        graphs[size] = object.__new__(torch.cuda.CUDAGraph)
        graphs[size].x, graphs[size]._tracker = torch.randn(64 * size, 64), None
class Engine:
    def __init__(self):
        self.requests = 0
    def decode(self, size):
        graphs[size].replay()
    def serve(self):
        for step in range(300):
            began = time.perf_counter()
            self.decode((1, 2, 4, 8)[step // 30 % 4])
            times.append(time.perf_counter() - began)
Engine().serve()
"""

# nanoGPT's train.py: batches from an array, no loader; losses are estimated first, and then now and then, in
# the loop that trains.
ESTIMATES = """
net = mlp(16, 16)
data = np.random.default_rng(0).standard_normal((4096, 16)).astype(np.float32)
def batch():
    return torch.from_numpy(data[np.random.randint(0, 4000, 8)])
@torch.no_grad()
def estimate_loss():
    net.eval()
    losses = [net(batch()).square().mean().item() for _ in range(10)]
    net.train()
    return sum(losses)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
iteration = 0
while True:
    if iteration % 500 == 0:
        estimate_loss()
    began = time.perf_counter()
    net(batch()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - began)
    iteration += 1
    if iteration == 400:
        break
"""

# The forward-forward algorithm on normalized images: a loader without workers makes one batch of them all
# with a module, and then every layer is trained with an optimizer of its own.
NORMALIZED = """
from torch.utils.data import DataLoader, Dataset
class Normalize(nn.Module):
    def forward(self, image):
        return (image - 0.1307) / 0.3081
class Images(Dataset):
    def __init__(self):
        self.normalize = Normalize()
    def __len__(self):
        return 3000
    def __getitem__(self, index):
        return self.normalize(torch.full((16,), index / 3000))
images = next(iter(DataLoader(Images(), batch_size=3000)))
for layer in (nn.Linear(16, 32), nn.Linear(16, 32)):
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    for epoch in range(200):
        began = time.perf_counter()
        loss = torch.log1p(torch.exp(2 - layer(images).relu().pow(2).mean(1))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
"""

# The word language model of PyTorch's examples: no optimizer, a loss in a module, weights updated by hand.
BY_HAND = """
net, criterion = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50), nn.LogSoftmax(1)), nn.NLLLoss()
tokens = torch.randint(0, 50, (8000,))
def train():
    net.train()
    for i in range(0, 7980, 20):
        began = time.perf_counter()
        net.zero_grad()
        loss = criterion(net(tokens[i : i + 20]), tokens[i + 1 : i + 21])
        loss.backward()
        for p in net.parameters():
            p.data.add_(p.grad, alpha=-0.1)
        loss.item()
        times.append(time.perf_counter() - began)
train()
"""

# A normalizing flow whose layers read whether they are initialised (rosinality/glow-pytorch), in a first pass
# that takes longer than a second.
FLAGS = """
class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("initialized", torch.tensor(0))
    def forward(self, x):
        time.sleep(0.05 if self.initialized.item() == 0 else 0.002)
        self.initialized.fill_(1)
        return x * self.scale
class Glow(nn.Module):
    def __init__(self):
        super().__init__()
        self.flows = nn.ModuleList(ActNorm() for _ in range(48))
    def forward(self, x):
        for flow in self.flows:
            x = flow(x)
        return x
model = Glow()
optimizer = torch.optim.Adam(model.parameters())
for step in range(40):
    began = time.perf_counter()
    loss = model(torch.randn(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
"""

# An optimizer reads the number of its steps for each parameter, on the CPU; the first step takes long.
COLD = """
model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(1000, 4)
for step in range(40):
    began = time.perf_counter()
    starts = torch.randint(0, 990, (4,))
    batch = torch.stack([data[s] for s in starts.tolist()])
    time.sleep(0.01 if step else 1.2)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
"""
