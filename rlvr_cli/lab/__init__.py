"""The lab: a tiny Qwen3-architecture model with its own tokenizer, warm-started on generated Knights & Knaves."""
