"""Actions of the timeline, as plans and records: publish, clean, roll back, restore, archive."""
