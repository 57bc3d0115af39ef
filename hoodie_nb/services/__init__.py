"""Table maintenance besides writes."""
