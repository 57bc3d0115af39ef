"""fsck: finds problems and changes nothing; the repairs are in `services`."""
