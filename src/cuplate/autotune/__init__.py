"""Parameters left to measurement: `cuplate.tune` and what finds, checks and keeps its winners."""
