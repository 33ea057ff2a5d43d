"""The ledger: what the papers claim, as data; each claim is run, measured and judged by a rule written down before."""
