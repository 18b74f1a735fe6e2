"""An optimizer for programs in which it does not matter: torch's own load its compiler when they step, which
takes as long as all else."""

import torch


class Descent(torch.optim.Optimizer):
    def __init__(self, parameters, *options, **named_options):
        super().__init__(parameters, {})

    def add_param_group(self, param_group):
        self.param_groups.append({"params": list(param_group["params"])})

    def zero_grad(self, set_to_none=True):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.1)
