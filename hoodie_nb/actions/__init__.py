"""What each timeline action will do (plan) and did (record). They are executed in `commit`."""
