"""Start, monitor and end the processes of a training, locally and on Slurm."""
