"""A model that is divided among the processes: DeepSpeed ZeRO and FSDP2."""
