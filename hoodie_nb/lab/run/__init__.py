"""A run: the state that its events make, recordings, and the thread that follows them."""
