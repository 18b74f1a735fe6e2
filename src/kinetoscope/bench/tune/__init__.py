"""The program under each setting of torch.compile, measured side by side."""
