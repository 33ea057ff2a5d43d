"""The base of every other package: nothing here is of a method, task, scheduler or engine."""
