"""Work on a data directory as a whole: backup, repair, salvage, and verification at rest."""
