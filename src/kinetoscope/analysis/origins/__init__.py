"""Which op, module, annotation, graph, step and line each piece of device work came from."""
