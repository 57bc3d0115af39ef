"""Who does the work: intake, assigner, writer, coordinator, index, and where they run."""
