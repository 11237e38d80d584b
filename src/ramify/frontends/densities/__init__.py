"""Models of log densities with several grouping factors: `rf.Model` with z by factor."""
