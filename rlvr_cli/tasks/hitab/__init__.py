"""Questions on hierarchical tables (HiTab)."""
