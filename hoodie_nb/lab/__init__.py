"""What a user sees and tries: flights (real input), the race, the doctor, widgets."""
