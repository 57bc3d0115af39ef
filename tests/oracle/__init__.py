"""Java Hudi as an outside judge of our tables (`pytest -m oracle tests/oracle`)."""
