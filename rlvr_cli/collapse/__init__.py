"""The signs of a policy that collapses, in the records of a training: what to look for, and when to say so."""
