"""The user's data becomes keyed rows; what is invalid is refused or set aside."""
