"""The figures of the papers, ours beside the published ones: `make bench-papers`, docs/papers.md."""
