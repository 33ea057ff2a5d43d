"""A model that is divided among the processes: DeepSpeed ZeRO."""
