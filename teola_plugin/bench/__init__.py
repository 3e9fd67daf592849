"""The figures of the papers, ours beside the published ones: `teola bench`, docs/papers.md."""
