"""The drop-in's pass over graphs of torch.compile: what it finds, what it puts there, and how ranks agree on it."""
