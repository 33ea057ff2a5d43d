"""vLLM as the sampler of a training: in the training processes, or behind a server."""
