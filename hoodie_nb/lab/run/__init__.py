"""What the events of a run amount to; recordings; the thread that has widgets redrawn."""
