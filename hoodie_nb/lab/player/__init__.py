"""The player: a recorded run as one page that needs neither a kernel nor a network."""
