"""Java Hudi as an independent judge of our tables (`pytest -m oracle tests/oracle`)."""
