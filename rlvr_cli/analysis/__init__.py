"""What runs left behind, looked at closely."""
