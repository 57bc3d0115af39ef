"""For learning and demonstration: flights (real input), the race, the doctor, widgets."""
