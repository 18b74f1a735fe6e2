"""A sphere becomes a statue: its vertices move until points on it are where scanned points are."""

import os
import time

import torch
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
SPLITS, SCANNED, SAMPLED, NEAR = (1, 200, 60, 32) if TINY else (6, 50_000, 5000, 2500)
EDGES, SMOOTH, NORMALS = 1.0, 0.1, 0.01  # what shapes cost
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def sphere():
    """An octahedron whose faces were split into four, several times."""
    vertices = torch.tensor([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]]).float()
    faces = torch.tensor(
        [[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5], [1, 2, 5], [3, 1, 5], [0, 3, 5]]
    )
    for _ in range(SPLITS):
        sides = faces[:, [[0, 1], [1, 2], [2, 0]]].sort(2).values
        codes, which = torch.unique(sides[..., 0] * len(vertices) + sides[..., 1], return_inverse=True)
        a, b = codes // len(vertices), codes % len(vertices)
        ab, bc, ca = (which + len(vertices)).unbind(1)
        vertices = torch.cat([vertices, F.normalize(vertices[a] + vertices[b], dim=1)])
        va, vb, vc = faces.unbind(1)
        corners = [(va, ab, ca), (vb, bc, ab), (vc, ca, bc), (ab, bc, ca)]
        faces = torch.cat([torch.stack(one, 1) for one in corners])
    return vertices.to(device), faces.to(device)


def statue():
    """What was scanned: a sphere with bumps."""
    x = F.normalize(torch.randn(SCANNED, 3, device=device), dim=1)
    bumps = 1 + 0.2 * torch.sin(5 * x[:, :1]) * torch.cos(4 * x[:, 1:2]) + 0.1 * x[:, 2:].pow(3)
    return x * bumps


class Topology:
    """Edges of a mesh, each once, and the faces on both sides of each."""

    def __init__(self, faces):
        sides = faces[:, [[1, 2], [2, 0], [0, 1]]].sort(2).values.flatten(0, 1)
        self.edges, which = torch.unique(sides, dim=0, return_inverse=True)
        order = which.argsort(stable=True).view(-1, 2)  # of a closed mesh every edge has two faces
        self.sides = order // 3
        ends = self.edges.flatten()
        self.degrees = torch.bincount(ends, minlength=int(faces.max()) + 1)


class Mesh:
    """Vertices and faces; whatever else is asked for is computed."""

    kept = None

    def __init__(self, vertices, faces):
        self.vertices, self.faces = vertices, faces

    def topology(self):
        if "topology-once" in FIX:
            if Mesh.kept is None:
                Mesh.kept = Topology(self.faces)
            return Mesh.kept
        return Topology(self.faces)

    def crosses(self):
        a, b, c = self.vertices[self.faces].unbind(1)
        return torch.linalg.cross(b - a, c - a)

    def sample(self, count):
        """Points on faces, as many as their areas want."""
        areas = self.crosses().detach().norm(dim=1)
        chosen = torch.multinomial(areas, count, replacement=True)
        u, v = torch.rand(2, count, 1, device=device)
        u = u.sqrt()
        a, b, c = self.vertices[self.faces[chosen]].unbind(1)
        return (1 - u) * a + u * (1 - v) * b + u * v * c


def nearest(a, b):
    with torch.no_grad():
        return torch.cat([torch.cdist(some, b).argmin(1) for some in a.split(NEAR)])


def chamfer(a, b):
    there, back = nearest(a, b), nearest(b, a)
    return (a - b[there]).square().sum(1).mean() + (b - a[back]).square().sum(1).mean()


def edge_loss(mesh):
    a, b = mesh.vertices[mesh.topology().edges].unbind(1)
    return (a - b).square().sum(1).mean()


def smooth_loss(mesh):
    """How far vertices are from the middle of their neighbours."""
    topology = mesh.topology()
    a, b = topology.edges.unbind(1)
    sums = torch.zeros_like(mesh.vertices).index_add(0, a, mesh.vertices[b]).index_add(0, b, mesh.vertices[a])
    return (sums / topology.degrees[:, None] - mesh.vertices).norm(dim=1).mean()


def normal_loss(mesh):
    """Neighbouring faces look the same way."""
    normals = F.normalize(mesh.crosses(), dim=1)
    a, b = normals[mesh.topology().sides].unbind(1)
    return (1 - (a * b).sum(1)).mean()


def main():
    vertices, faces = sphere()
    scanned = statue()
    moved = torch.zeros_like(vertices, requires_grad=True)
    optimizer = torch.optim.Adam([moved], lr=2e-3)
    lead, began, shown = min(STEPS // 2, 5), 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad()
        mesh = Mesh(vertices + moved, faces)
        near = chamfer(mesh.sample(SAMPLED), scanned[torch.randint(SCANNED, (SAMPLED,), device=device)])
        parts = [near, EDGES * edge_loss(mesh), SMOOTH * smooth_loss(mesh), NORMALS * normal_loss(mesh)]
        sum(parts).backward()
        optimizer.step()
        if "parts-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = [part.item() for part in parts]
        if step % 50 == 0:
            print(f"step {step}: chamfer {shown[0]:.5f}, edges {shown[1]:.5f}, smooth {shown[2]:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {sum(shown):.5f}; {each:.3f} ms per step")


main()
