"""What one sees and tries: session, doctor, flights (real input), demo."""
