"""Instants and their files, active and archived; what a commit says. No base files here."""
