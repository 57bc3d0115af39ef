"""Intake: data of any kind becomes keyed rows; bad rows are refused or set aside."""
