"""Judge mathematical answers, in worker processes with deadlines."""
