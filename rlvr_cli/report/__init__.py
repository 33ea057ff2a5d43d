"""Figures and pages made from what the project knows."""
