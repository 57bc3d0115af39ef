"""What a write must check first in the table as it is on disk; the handle of a writer."""
