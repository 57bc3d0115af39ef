"""The durable records beside the timeline: progress, prepared and sealed checkpoints."""
