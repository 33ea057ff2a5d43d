"""What every other package rests on, and what knows no method, task, scheduler or engine."""
