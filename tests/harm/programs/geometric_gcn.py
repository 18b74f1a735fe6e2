# A graph network by torch-geometric, trained on a random graph.
# needs: cpu
# packages: torch_geometric
import fingerprint
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(8, 16), GCNConv(16, 16)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, data):
        x = self.first(data.x, data.edge_index).relu()
        x = self.second(x, data.edge_index).relu()
        return self.head(global_mean_pool(x, data.batch))


graphs = [
    Data(x=torch.randn(12, 8), edge_index=torch.randint(0, 12, (2, 40)), y=torch.randint(0, 3, (1,)))
    for _ in range(160)
]
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(4):
    for batch in DataLoader(graphs, batch_size=10, shuffle=True):
        batch = batch.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.4f}")
print(fingerprint.weights(model), fingerprint.draws())
