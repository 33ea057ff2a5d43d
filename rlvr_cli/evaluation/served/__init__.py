"""Evaluation of a model behind a server with OpenAI's API."""
