"""The timeline: instants, commit metadata, the archive, a split timeline."""
