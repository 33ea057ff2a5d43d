"""Its verifier is not tried."""
