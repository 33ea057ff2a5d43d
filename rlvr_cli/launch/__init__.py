"""Several processes for one training: how they are started, watched and ended."""
